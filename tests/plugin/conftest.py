"""Topics in Pyserini's formats, impacts of the tiny collection, Lucene's hits in their indexes, and an empty cache."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact, files, jsonl
from cai_pyserini.core.config import encoder_yaml, load_encoder
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.retrieve import queries_for
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.plugin.export import export_topics

Rankings = dict[str, dict[str, float]]  # query -> document -> sum of weight * impact


@pytest.fixture(scope="session")
def joint(run_folder: Path) -> Path:
    """A joint index."""
    return run_folder / "indexes" / "joint-splade-idf"


@pytest.fixture(scope="session")
def topics(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test topics of the tiny collection in Pyserini's formats."""
    folder = tmp_path_factory.mktemp("export") / "topics"
    return export_topics(BeirFolder(tiny, "tiny").topics("test"), load_encoder("splade-tiny"), folder, "cpu")


def ranking(run: Path) -> list[tuple[str, str, str]]:
    """Query, document and rank of every hit, by query."""
    rows = [row.split() for row in run.read_text().splitlines()]
    return sorted(((r[0], r[2], r[3]) for r in rows), key=lambda row: (row[0], int(row[2])))


def scores(run: Path) -> dict[tuple[str, str], float]:
    """Query and document -> score."""
    rows = [row.split() for row in run.read_text().splitlines()]
    return {(r[0], r[2]): float(r[4]) for r in rows}


def search_topics(index: Path, encoder: object, collection: Path, **settings: object) -> dict[tuple[str, str], float]:
    """Pyserini's hits for the test topics: query and document -> score on the scale of our runs."""
    from pyserini.search.lucene import LuceneImpactSearcher

    searcher, stats = LuceneImpactSearcher(str(index), encoder, **settings), artifact.require(index, "index").stats
    return {
        (query, hit.docid): hit.score / (stats["query_scale"] * stats["document_scale"])
        for query, text in BeirFolder(collection, "tiny").topics("test").items()
        for hit in searcher.search(text, 1000)
        if hit.docid != query
    }


def search_arguments(index: Path, topics: Path, encoder: object, output: Path) -> list[object]:
    """Arguments of pyserini.search.lucene."""
    settings = ["--impact", "--hits", 1000, "--remove-query", "--output", output]
    return ["--index", index, "--topics", topics / "topics.json", "--encoder", encoder, *settings]


@pytest.fixture(scope="session")
def queries(tiny: Path) -> dict[str, str]:
    """The test queries; one has no word in any document, and one has a repeated word."""
    more = {"none": "quux", "again": "fever fever of unknown fever"}
    return BeirFolder(tiny, "tiny").topics("test") | more


@pytest.fixture(scope="session", params=["splade-idf", "joint-splade-idf"])
def name(request: pytest.FixtureRequest) -> str:
    """A system of the run on the tiny collection."""
    return request.param


@pytest.fixture(scope="session")
def impacts(run_folder: Path, name: str) -> Path:
    return run_folder / "impacts" / name


@pytest.fixture(scope="session")
def index(run_folder: Path, name: str) -> Path:
    return run_folder / "indexes" / name


@pytest.fixture(scope="session")
def expected(java: None, index: Path, queries: dict[str, str]) -> Rankings:
    """The hits in the Lucene index."""
    return search_lucene(index, queries)


BY_HAND = {"d1": {"fever": 3, "cold": 5}, "d2": {"fever": 1}, "d3": {"cold": 2, "##s": 7, "fever": 100}, "empty": {}}


@pytest.fixture
def impacts_by_hand(checkpoint: Path, tmp_path: Path) -> Path:
    """Output of the impact stage with two shards; one document has no impacts."""
    return stored_impacts(checkpoint, tmp_path / "impacts", (BY_HAND, {"d5": {"é": 300}}))


def stored_impacts(
    checkpoint: Path, output: Path, shards: Sequence[Mapping[str, Mapping[str, int]]], version: int = 1
) -> Path:
    """Write impacts, by document id, as the impact stage does."""
    config = load_encoder("splade-tiny").replace(range=10.0)

    def write(folder: Path) -> artifact.Stats:
        for number, shard in enumerate(shards):
            records = ({"id": id, "contents": "", "vector": vector} for id, vector in shard.items())
            jsonl.write(folder / f"{number:05d}.jsonl", records)
        files.write_text(folder / "encoder.yaml", encoder_yaml(config, folder))
        loss = {"relative_error": 0.0, "dropped": 0.0, "clipped": 0.0}
        vectors = [vector for shard in shards for vector in shard.values()]
        counts = {"vectors": len(vectors), "nonzeros": sum(map(len, vectors))}
        made_with = {"encoder": EncoderModel(config, "cpu").identity("documents"), "documents_digest": None}
        made_with |= {"settings": config.shaping("vectors", "impacts", defaults=True), "made_from": {}}
        return {**counts, "document_scale": 102.3, "loss": loss, **made_with}

    return artifact.make(output, artifact.recipe("impact", {"version": version}), write)


def search_lucene(index: Path, queries: dict[str, str]) -> Rankings:
    """All hits in an impact index."""
    searcher = open_searcher(index)
    encoded, _ = queries_for(index, queries, str(index)).for_search(searcher.query_scale)
    scale = searcher.document_scale * searcher.query_scale
    batches = searcher.search_many(encoded, 1000, 1)
    found = {id: {doc: score * scale for doc, score in hits} for batch in batches for id, hits in batch.items()}
    searcher.close()
    return found


def assert_same(found: Rankings, expected: Rankings, rel: float = 2e-6) -> None:
    """Assert equal documents and scores for every query."""
    assert found.keys() == expected.keys()
    for query, scores in expected.items():
        assert found[query] == pytest.approx(scores, rel=rel), query


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Pyserini cache."""
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CAI_PYSERINI_REGISTRY", raising=False)
    return tmp_path / "cache"
