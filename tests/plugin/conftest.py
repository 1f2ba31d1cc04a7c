"""Topics in Pyserini's formats, and Pyserini's search for them."""

from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.plugin.export import export_topics


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
