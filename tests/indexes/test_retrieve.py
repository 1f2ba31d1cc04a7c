"""The search stage: which queries, which hits, and how long it takes."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import retrieve
from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.faiss import FaissSearcher
from cai_pyserini.indexes.retrieve import queries_for, require_same_encoder, search
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import compute
from cai_pyserini.runs.trec import Hits, read_run, removes_query, scores_by_query
from cai_pyserini.vectors.queries import Queries, Query
from tests.conftest import stage_command, stored_vectors

main = stage_command("search")

NUMBERS = ["0", "1", "2"]  # of documents and of queries
ROWS = np.array([[4, 0], [3, 1], [0, 2]], np.float32)


@pytest.fixture
def index(checkpoint: Path, tmp_path: Path) -> Path:
    """A dense index of three documents; ROWS are also the vectors of the three queries."""
    digest = checkpoint_digest(checkpoint)
    vectors = stored_vectors(tmp_path / "documents", ROWS, ids=[NUMBERS], kind="dense", checkpoint=digest)
    return index_dense(vectors, tmp_path / "index")


@pytest.fixture
def queries(checkpoint: Path, tmp_path: Path) -> Queries:
    vectors = stored_vectors(tmp_path / "queries", ROWS, ids=[NUMBERS], kind="dense", role="queries")
    encoder = EncoderModel(EncoderConfig(name="test", checkpoint=str(checkpoint), kind="dense"), "cpu")
    return Queries(dict.fromkeys(NUMBERS, "text"), encoder, stored=vectors.folder)


def ranking(run: Path) -> dict[str, list[str]]:
    return {query: list(hits) for query, hits in scores_by_query(read_run(run)).items()}


def test_a_run_of_all_queries(index: Path, queries: Queries, tmp_path: Path) -> None:
    run = search(index, queries, tmp_path / "run.trec", hits=2, tag="dense")
    assert run.read_text().splitlines()[:3] == ["0 Q0 0 1 16.0 dense", "0 Q0 1 2 12.0 dense", "1 Q0 0 1 12.0 dense"]
    assert ranking(run) == {"0": ["0", "1"], "1": ["0", "1"], "2": ["2", "1"]}
    assert artifact.require(run, "search").stats["queries"] == 3


def test_removing_a_query_leaves_as_many_hits(index: Path, queries: Queries, tmp_path: Path) -> None:
    run = search(index, queries, tmp_path / "run.trec", hits=2, remove_query=True)
    assert ranking(run) == {"0": ["1", "2"], "1": ["0", "2"], "2": ["1", "0"]}


@pytest.mark.slow
def test_the_clock_starts_after_a_warm_up(
    index: Path, queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, clock = list[int](), [0.0]
    monkeypatch.setattr(retrieve, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    search_many = FaissSearcher.search_many

    def slow_at_first(
        self: FaissSearcher, queries: dict[str, Query], hits: int, threads: int
    ) -> Iterator[dict[str, Hits]]:
        clock[0] += 1 if searched else 100
        searched.append(len(queries))
        yield from search_many(self, queries, hits, threads)

    monkeypatch.setattr(FaissSearcher, "search_many", slow_at_first)
    stats = artifact.require(search(index, queries, tmp_path / "run.trec"), "search").stats
    assert searched == [256, 3]
    assert 500 <= stats["ms_per_query"] < 10_000  # encoding and search took 1.5 s, the warm-up 100


QRELS = {"0": {"1": 1}, "1": {"0": 2, "1": 0}, "2": {"0": 1}}


@pytest.mark.parametrize(
    ("qrels", "auto", "warned"),
    [
        (QRELS, True, ""),  # as in ArguAna: queries are documents
        (None, False, ""),
        (
            QRELS | {"2": {"2": 1}, "3": {"3": 2}},  # numbered alike by chance
            False,
            "judge document '2' relevant to the query of the same id (2 such queries): hits with the id of their query",
        ),
    ],
)
def test_hits_with_the_id_of_their_query(
    qrels: dict | None, auto: bool, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert removes_query("always", qrels) and not removes_query("never", qrels)
    with caplog.at_level(logging.WARNING):
        assert removes_query("auto", qrels) is auto
    assert warned in caplog.text and bool(caplog.records) == bool(warned)


def test_an_index_of_another_encoder_is_refused(
    index: Path, queries: Queries, checkpoint: Path, tiny: Path, tmp_path: Path
) -> None:
    assert queries.encoder
    require_same_encoder(index, queries.encoder, None)
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    save_file({"weight": torch.eye(128)}, tmp_path / "p.safetensors")
    idf = compute(BeirFolder(tiny, "tiny"), queries.encoder.config, tmp_path / "idf")
    for changed, message in (
        (
            {"checkpoint": str(other)},
            rf"{index} was not encoded as test encodes documents \(the checkpoint changed\): encode",
        ),
        ({"projection": str(tmp_path / "p.safetensors")}, r"as test encodes documents \(the checkpoint changed\)"),
        ({"pooling": "cls"}, r"as test encodes documents \(pooling cls, was unset\)"),
        ({"document_prompt": "x: "}, r'as test encodes documents \(document_prompt "x: ", was ""\)'),
        ({"idf": str(idf)}, r"was not encoded as test encodes documents \(idf changed\)"),
    ):
        encoder = EncoderModel(queries.encoder.config.replace(**changed), "cpu")
        with pytest.raises(CaiError, match=message):
            search(index, Queries(queries.topics, encoder), tmp_path / "run.trec")
    assert not (tmp_path / "run.trec").exists()


def test_a_dense_index_does_not_name_an_encoder(index: Path, checkpoint: Path) -> None:
    with pytest.raises(CaiError, match=r"index is a dense index, which does not name .*: give one"):
        queries_for(index, {"q": "text"})
    named = queries_for(index, {"q": "text"}, str(checkpoint))
    assert named.encoder and named.encoder.checkpoint == checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bm25", "splade-idf", "dense"])
def test_an_index_of_fewer_documents_than_its_manifest_says_is_refused(
    name: str, run_folder: Path, index: Path, tmp_path: Path
) -> None:
    whole = index if name == "dense" else run_folder / "indexes" / name
    broken = Path(shutil.copytree(whole, tmp_path / "broken"))
    documents = artifact.require(broken, "index").stats["documents"]
    manifest = broken / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"documents": {documents},', f'"documents": {documents + 1},'))
    with pytest.raises(CaiError, match=f"broken has {documents} documents, its manifest says {documents + 1}: delete"):
        open_searcher(broken)


@pytest.mark.slow
def test_commands(
    tiny: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    output = tmp_path / "run.trec"

    def run(name: str, *arguments: object, index: str = "") -> list[tuple[str, ...]]:
        """What the command finds, if it is what the whole run found for the system of this name."""
        paths = ["--index", run_folder / "indexes" / (index or name), "--collection", tiny, "--output", output]
        main([*map(str, paths), *map(str, arguments)])
        assert capsys.readouterr().out.startswith(f"{output}: 5 queries, ")
        ours, whole = (
            [tuple(row.split()[:5]) for row in path.read_text().splitlines()]
            for path in (output, run_folder / "runs" / f"{name}.trec")
        )
        assert bool(arguments) or ours == whole
        return ours

    bm25, splade = run("bm25"), run("splade-idf")
    assert run("splade-doc-idf", "--query", "bow", index="splade-idf") != splade
    expected = (run_folder / "runs" / "splade-doc-idf.trec").read_text()
    assert output.read_text().replace("cai_pyserini", "splade-doc-idf") == expected
    assert run("splade-idf", "--encoder", checkpoint) == splade
    assert len(run("splade-idf", "--hits", "1")) == 5
    kept = run("splade-idf", "--remove-query", "never")
    assert set(kept) > {row for row in kept if row[0] == row[2] == "d8"} != set()
    assert not {row for row in splade if row[0] == row[2]}
    assert {row[:3] for row in run("bm25", "--k1", "2", "--b", "0.9")} == {row[:3] for row in bm25}
    output.unlink()
    with pytest.raises(CaiError, match=r"no .*qrels/dev"):
        run("bm25", "--split", "dev")
    assert not output.exists()
