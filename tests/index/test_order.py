"""Reordered indexes: alike documents are near each other, and nothing else is different."""

import json
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.index.__main__ import main
from cai_pyserini.index.impact import index_impacts
from cai_pyserini.index.order import TERMS, places
from cai_pyserini.search.lucene import LuceneSearcher
from tests.index.stock import postings, reader, search
from tests.index.test_json_vectors import vector_line

DOCUMENTS = 400


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON vectors of two topics, alternating, with many equal impacts, in two files."""
    draw = np.random.default_rng(0)
    lines = []
    for number in range(DOCUMENTS):
        terms = 20 * (number % 2) + draw.choice(20, 10, replace=False)
        vector = {f"t{term}": int(impact) for term, impact in zip(terms, draw.integers(1, 4, 10), strict=True)}
        lines.append(vector_line(f"d{number}", vector | {"all": 1}) + "\n")
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "00000.jsonl").write_text("".join(lines[:150]))
    (folder / "00001.jsonl").write_text("".join(lines[150:]))
    return folder


def test_places_put_topics_apart(vectors: Path) -> None:
    found = np.array(places(sorted(vectors.glob("*.jsonl")), None))
    assert sorted(found) == list(range(DOCUMENTS))
    first = found[::2] < DOCUMENTS // 2
    assert first.all() or not first.any()


def test_the_largest_terms_of_a_document_count(tmp_path: Path) -> None:
    """Documents whose TERMS large impacts are of one topic, and whose many small ones are of others."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(200):
        small = {f"small{term}": 1 for term in range(300) if (number // 2) % 2 == term % 2}
        large = {f"large{number % 2}-{term}": 9 for term in draw.choice(2 * TERMS, TERMS, replace=False)}
        rows.append(vector_line(f"d{number}", small | large) + "\n")
    (tmp_path / "0.jsonl").write_text("".join(rows))
    first = np.array(places([tmp_path / "0.jsonl"], None))[::2] < 100
    assert first.all() or not first.any()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text(f"{vector_line('a', {'x': 1})}\n{vector_line('b', {'x': 0})}\n")
    with pytest.raises(CaiError, match=rf"{tmp_path}/0\.jsonl:2: the impact of 'x' is 0"):
        index_impacts(tmp_path, tmp_path / "index", reorder=True)
    assert not (tmp_path / "index").exists()


@pytest.mark.slow
@pytest.mark.parametrize("hits", [1, 7, 1000])
def test_results_are_the_same(java: None, vectors: Path, tmp_path: Path, hits: int) -> None:
    given, reordered = (index_impacts(vectors, tmp_path / f"{order}", reorder=order) for order in (False, True))
    draw = np.random.default_rng(1)
    queries = [{f"t{t}": int(draw.integers(1, 3)) for t in draw.choice(40, 6, replace=False)} for _ in range(30)]
    queries += [{"all": 1}, {"t3": 1}, {"absent": 1}]
    expected = search(given, *queries, hits=hits)
    assert any(len({score for _, score in of_query}) < len(of_query) for of_query in expected) or hits == 1
    assert search(reordered, *queries, hits=hits) == expected
    searchers = [LuceneSearcher(index, artifact.require(index, "index")) for index in (given, reordered)]
    for query, of_query in zip(queries, expected, strict=True):
        ours, theirs = (searcher.search(query, hits) for searcher in searchers)
        assert ours == theirs == [(id, pytest.approx(score, abs=1e-2)) for id, score in of_query]  # stock parts ties


@pytest.mark.slow
def test_an_index_is_one_segment_in_the_new_order(java: None, vectors: Path, tmp_path: Path) -> None:
    index = index_impacts(vectors, tmp_path / "index", reorder=True)
    stock = reader(index)
    ids = [stock.convert_internal_docid_to_collection_docid(number) for number in range(DOCUMENTS)]
    expected = np.argsort(places(sorted(vectors.glob("*.jsonl")), None))
    assert ids == [f"d{number}" for number in expected]
    assert stock.reader.leaves().size() == 1
    assert len(postings(index, "all")) == DOCUMENTS


@pytest.mark.slow
def test_documents_are_stored_beside_their_ids(java: None, run_folder: Path, tiny: Path, tmp_path: Path) -> None:
    collection = BeirFolder(tiny, "tiny")
    index = index_impacts(run_folder / "impacts" / "splade-idf", tmp_path / "index", collection, reorder=True)
    stock = reader(index)
    assert stock.stats() == reader(run_folder / "indexes" / "splade-idf").stats()
    for document in collection.documents():
        assert json.loads(stock.doc(document.id).raw())["contents"] == document.contents


@pytest.mark.slow
def test_command(java: None, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["impact", "--input", str(vectors), "--output", str(tmp_path / "index")]
    digests = []
    for flags in ([], ["--reorder"], ["--reorder"]):
        main([*arguments, *flags])
        digests.append(artifact.require(tmp_path / "index", "index").digest)
    assert capsys.readouterr().out.count(f"{DOCUMENTS} documents") == 3
    assert digests[0] != digests[1] == digests[2]
