"""Indexes store documents, so that stock Pyserini shows them."""

import json
from pathlib import Path

import pytest

from cai_pyserini.beir.__main__ import main as beir
from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.index.__main__ import main
from cai_pyserini.index.impact import index_impacts
from cai_pyserini.index.writer import raw_documents

D6 = "A case report without a title: a myocardial infarction in a marathon runner."


def raw(index: Path, id: str) -> dict | None:
    from pyserini.index.lucene import LuceneIndexReader

    stored = LuceneIndexReader(str(index)).doc_raw(id)
    return stored and json.loads(stored)


def test_the_stored_form_has_id_title_and_contents(tiny: Path) -> None:
    stored = raw_documents(BeirFolder(tiny, "tiny"))
    assert json.loads(stored("d3")) == {
        "id": "d3",
        "title": "Aromatase",
        "contents": "Aromatase Phytochemicals that inhibit aromatase may prevent breast cancer.",
    }
    assert json.loads(stored("d6")) == {"id": "d6", "contents": f" {D6}"}
    with pytest.raises(CaiError, match="document 'd1' is not in collection tiny, or not in this order"):
        stored("d1")


def test_contents_are_the_fields_that_are_searched(tiny: Path) -> None:
    stored = raw_documents(BeirFolder(tiny, "tiny", ["text"]))
    assert json.loads(stored("d6")) == {"id": "d6", "contents": D6}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bm25", "splade-idf", "joint-splade-idf"])
def test_stock_pyserini_shows_documents(run_folder: Path, name: str, java: None) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher, LuceneSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    assert (found := raw(run_folder / "indexes" / name, "d6")) and found["contents"].strip() == D6
    index = str(run_folder / "indexes" / name)
    searcher = LuceneSearcher(index) if name == "bm25" else LuceneImpactSearcher(index, CaiQueryEncoder(index))
    document = json.loads(searcher.doc("d3").raw())
    assert document["title"] == "Aromatase"
    assert searcher.doc("no such document") is None


@pytest.mark.slow
def test_documents_are_left_out_where_asked(run_folder: Path, tiny: Path, tmp_path: Path, java: None) -> None:
    beir([str(tiny), "--output", str(tmp_path / "run"), "--no-raw", "--systems", "bm25", "splade-doc"])
    assert raw(tmp_path / "run" / "indexes" / "bm25", "d6") is None
    assert raw(tmp_path / "run" / "indexes" / "splade", "d6") is None
    impacts = run_folder / "impacts" / "splade-idf"
    main(["impact", "--input", str(impacts), "--output", str(tmp_path / "plain")])
    assert raw(tmp_path / "plain", "d6") is None
    main(["impact", "--input", str(impacts), "--collection", str(tiny), "--output", str(tmp_path / "plain")])
    assert raw(tmp_path / "plain", "d6")  # the same folder, since the recipe says what is stored


@pytest.mark.slow
def test_another_collection_is_refused(run_folder: Path, broken: Path, tmp_path: Path) -> None:
    lines = (broken / "corpus.jsonl").read_text().splitlines()
    (broken / "corpus.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(CaiError, match="document 'd1' is not in collection broken"):
        index_impacts(run_folder / "impacts" / "splade-idf", tmp_path / "index", BeirFolder(broken, "broken"))
    assert not (tmp_path / "index").exists()
