"""Reranked runs: the best documents of a run, in the order of the cross-encoder's scores."""

from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.runs.rerank import Reranker, rerank
from cai_pyserini.runs.trec import read_run, run_of, scores_by_query, write_run

HITS = {
    "q1": [("d5", 4.0), ("d1", 3.0), ("d7", 2.0), ("d2", 1.0)],
    "q2": [("d4", 3.0), ("d6", 2.0)],
    "d8": [("d9", 1.0)],
}


@pytest.fixture
def collection(tiny: Path) -> BeirFolder:
    return BeirFolder(tiny, "tiny")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(run_of(HITS), tmp_path / "run.trec", "first")
    return tmp_path / "run.trec"


def test_the_best_documents_get_the_scores_of_the_model(
    collection: BeirFolder, run: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    topics = collection.topics("test")
    settings: Any = {"depth": 3, "device": "cpu", "precision": "float32", "tag": "tag"}
    output = rerank(run, topics, collection, cross_encoder, tmp_path / "out.trec", **settings)
    assert {line.split()[-1] for line in output.read_text().splitlines()} == {"tag"}
    reranked = scores_by_query(read_run(output))
    assert {query: set(hits) for query, hits in reranked.items()} == {
        query: {id for id, _ in hits[:3]} for query, hits in HITS.items()
    }
    model = CrossEncoder(cross_encoder, "cpu", "float32")
    for query, hits in reranked.items():
        texts = collection.contents(set(hits), "the test")
        scores = model.score([topics[query]] * len(hits), [texts[id] for id in hits])
        assert list(hits.values()) == pytest.approx(scores.tolist(), abs=1e-5)
        assert list(hits.values()) == sorted(hits.values(), reverse=True)
    stats = artifact.require(output, "fusion rerank").stats
    assert stats["queries"] == 5 and stats["ms_per_query"] is None  # of a run of other origin nothing is known


def test_minutes_lower_the_depth(
    collection: BeirFolder, run: Path, cross_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is the one of that depth, under the same name; it is not measured again, as another machine's pace would
    make it out of date."""
    monkeypatch.setattr(CrossEncoder, "seconds_per_pair", lambda self, *texts: 60.0)
    texts = collection.topics("test"), collection, cross_encoder

    def reranked(name: str, depth: int, minutes: float | None) -> artifact.Manifest:
        rerank(run, *texts, tmp_path / name, depth=depth, device="cpu", minutes=minutes)
        return artifact.require(tmp_path / name, "fusion rerank")

    limited = reranked("limited.trec", 4, 5.5)  # 3, 5, 6 and 7 pairs
    assert limited.stats["decision"] == [
        "cross-encoder reranks the best 2 of 4 documents: more would take over 5.5 minutes"
    ]
    assert limited.digest == reranked("two.trec", 2, None).digest
    assert (tmp_path / "limited.trec").read_bytes() == (tmp_path / "two.trec").read_bytes()
    with pytest.raises(CaiError, match=r"one document per query takes about 3\.0 minutes, more than 2"):
        reranked("none.trec", 4, 2.0)

    monkeypatch.setattr(CrossEncoder, "seconds_per_pair", lambda self, *texts: 1.0)
    assert reranked("limited.trec", 4, 5.5) == limited
    assert reranked("limited.trec", 4, 6.0).recipe["settings"]["depth"] == 4
    assert reranked("limited.trec", 4, None).stats["decision"] == []
    with monkeypatch.context() as patch:  # what is up to date loads no model
        patch.setattr(CrossEncoder, "__init__", lambda *_: pytest.fail("loaded"))
        assert reranked("limited.trec", 4, None) == reranked("limited.trec", 4, 5.5)
    with artifact.dry_run(), pytest.raises(artifact.NotUpToDate):
        reranked("limited.trec", 3, 5.5)


@pytest.mark.parametrize(
    "hits, message",
    [({"q9": [("d1", 1.0)]}, "query 'q9', which is not among the topics"), ({"q1": [("elsewhere", 1.0)]}, "elsewhere")],
)
def test_a_run_of_another_collection_is_refused(
    hits: dict, message: str, collection: BeirFolder, cross_encoder: Path, tmp_path: Path
) -> None:
    write_run(run_of(hits), tmp_path / "run.trec", "first")
    with pytest.raises(CaiError, match=message):
        rerank(tmp_path / "run.trec", collection.topics("test"), collection, cross_encoder, tmp_path / "out.trec")
    assert not (tmp_path / "out.trec").exists()


def test_as_many_documents_are_scored_as_there_is_time_for(cross_encoder: Path) -> None:
    """By what the last batch took: three documents a second, then one in a tenth of a second."""
    times = iter([0, 1, 2.5, 2.6, 3.5, 4])
    reranker = Reranker(str(cross_encoder), "cpu", clock=lambda: next(times))
    reranker.seconds_per_document = 1.0
    documents = [f"zinc and colds {n}" for n in range(99)]
    expected = CrossEncoder(cross_encoder, "cpu").score(["cold"] * 4, documents[:4]).tolist()
    assert reranker.scores("cold", documents, deadline=3) == pytest.approx(expected, abs=1e-4)
    assert reranker.scores("cold", documents, deadline=3) == []
    assert reranker.seconds_per_document == pytest.approx(0.05)  # lower, so that one slow batch is not the last
