"""Reranked runs: the best documents of a run, in the order of the cross-encoder's scores."""

import math
from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import read_run, run_of, scores_by_query, write_run
from cai_pyserini.fusion.__main__ import main
from cai_pyserini.fusion.rerank import rerank
from cai_pyserini.models.cross_encoder import CrossEncoder
from tests.conftest import damaged

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
    output = rerank(run, topics, collection, cross_encoder, tmp_path / "out.trec", 3, "cpu", "float32", "tag")
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


def test_a_score_that_is_not_finite_is_refused_by_id(
    collection: BeirFolder, run: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    broken = damaged(cross_encoder, tmp_path / "broken", "position_embeddings.weight", 4, math.nan)
    with pytest.raises(CaiError, match=r"the score of '.+' and 'd\d+' has NaN or infinity"):
        rerank(run, collection.topics("test"), collection, broken, tmp_path / "out.trec", 3, "cpu")
    assert not (tmp_path / "out.trec").exists()


@pytest.mark.parametrize(
    "hits, message",
    [
        ({"q9": [("d1", 1.0)]}, "query 'q9', which is not among the topics"),
        ({"q1": [("elsewhere", 1.0)]}, "elsewhere"),
    ],
)
def test_a_run_of_another_collection_is_refused(
    hits: dict, message: str, collection: BeirFolder, cross_encoder: Path, tmp_path: Path
) -> None:
    write_run(run_of(hits), tmp_path / "run.trec", "first")
    with pytest.raises(CaiError, match=message):
        rerank(tmp_path / "run.trec", collection.topics("test"), collection, cross_encoder, tmp_path / "out.trec")
    assert not (tmp_path / "out.trec").exists()


def test_command(
    tiny: Path, run: Path, cross_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.trec"
    arguments = ["rerank", "--collection", str(tiny), "--run", str(run), "--output", str(output), "--depth", "2"]
    main([*arguments, "--cross-encoder", str(cross_encoder), "--device", "cpu"])
    assert capsys.readouterr().out == f"{output}: 5 queries\n"
    found = {query: set(hits) for query, hits in scores_by_query(read_run(output)).items()}
    assert found == {"q1": {"d5", "d1"}, "q2": {"d4", "d6"}, "d8": {"d9"}}
    output.unlink()
    with pytest.raises(CaiError, match=r"is not a checkpoint: it has no config\.json"):
        main([*arguments, "--cross-encoder", str(tmp_path)])
    assert not output.exists()
