"""Indexes store documents, so that stock Pyserini shows them."""

import json
from pathlib import Path

import pytest

from cai_pyserini.cli.index import main
from cai_pyserini.cli.run import main as beir
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.lucene.impact_index import index_impacts

TEXT = "A case report without a title: a myocardial infarction in a marathon runner."

pytestmark = pytest.mark.slow


def raw(index: Path, id: str) -> dict | None:
    from pyserini.index.lucene import LuceneIndexReader

    stored = LuceneIndexReader(str(index)).doc_raw(id)
    return stored and json.loads(stored)


@pytest.mark.parametrize("name", ["bm25", "splade-idf", "joint-splade-idf"])
def test_stock_pyserini_shows_documents(run_folder: Path, name: str, java: None) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher, LuceneSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index = str(run_folder / "indexes" / name)
    searcher = LuceneSearcher(index) if name == "bm25" else LuceneImpactSearcher(index, CaiQueryEncoder(index))
    assert json.loads(searcher.doc("d3").raw()) == {
        "id": "d3",
        "title": "Aromatase",
        "metadata": {"year": 2011},
        "contents": "Aromatase Phytochemicals that inhibit aromatase may prevent breast cancer.",
    }
    assert json.loads(searcher.doc("d6").raw()) == {"id": "d6", "contents": f" {TEXT}"}
    assert searcher.doc("no such document") is None


def test_what_is_stored_is_what_was_asked_for(run_folder: Path, tiny: Path, tmp_path: Path, java: None) -> None:
    beir([str(tiny), "--output", str(tmp_path / "run"), "--no-raw", "--systems", "bm25", "splade-doc"])
    assert raw(tmp_path / "run" / "indexes" / "bm25", "d6") is None
    assert raw(tmp_path / "run" / "indexes" / "splade", "d6") is None
    impacts, index = run_folder / "impacts" / "splade-idf", tmp_path / "index"
    main(["impact", "--input", str(impacts), "--output", str(index)])
    assert raw(index, "d6") is None
    index_impacts(impacts, index, BeirFolder(tiny, "tiny", ["text"]))  # which are the fields that are searched
    assert raw(index, "d6") == {"id": "d6", "contents": TEXT}


def test_another_collection_is_refused(run_folder: Path, broken: Path, tmp_path: Path) -> None:
    lines = (broken / "corpus.jsonl").read_text().splitlines()
    (broken / "corpus.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(CaiError, match="was made of other documents than broken has now: make its vectors again"):
        index_impacts(run_folder / "impacts" / "splade-idf", tmp_path / "index", BeirFolder(broken, "broken"))
    assert not (tmp_path / "index").exists()
