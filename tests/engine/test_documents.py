"""From a passage to the whole document, and back: what indexes store of passages gives the document's text."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.hits import without_title
from cai_pyserini.engine.open import open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.analyzer import lucene_analyzer
from cai_pyserini.indexes.batch import MAPPER, SEARCHER
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import BadFilter, any_term_query
from cai_pyserini.indexes.jvm import java_class, start, using_java
from cai_pyserini.indexes.lucene import READER
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.indexes.writer import DocumentAdder, _open, writing
from cai_pyserini.plugin.documents import documents as retrieved
from tests.conftest import corpus_of

pytestmark = pytest.mark.slow
DOCUMENTS = {
    "guide": "\n  Fever of one day.\n\nFever fever, zinc:\t gout  and\n more gout. A bladder, infected.  \n",
    "guide#1": "Another document, whose id is like that of a passage.",
    "paged": "\f \fFever on page three. \f\f Zinc\f on page six, and more of it\f\f",
    "short": "Zinc",
    "none": " \n ",
}
TITLE = "Fever"  # with which texts begin, too


@pytest.fixture(scope="module", params=[("title", "text"), ("text",), ("text", "title"), "generated"], ids=str)
def collection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BeirFolder:
    """Texts with white space of all kinds, in passages of 4 words that share 1."""
    folder = tmp_path_factory.mktemp("documents")
    lines = [
        json.dumps(
            {"_id": id, "title": TITLE, "text": text, "metadata": {"pages": 8, "page": 1} if "\f" in text else {}}
        )
        for id, text in DOCUMENTS.items()
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    kinds = {"pages": "number", "page": "number"}
    fields = ("title", "text") if request.param == "generated" else request.param
    made = BeirFolder(folder, "made", fields, metadata=kinds).in_passages(4, 1)
    generated = None
    if request.param == "generated":
        generated = corpus_of(folder / "generated", {"x": ""}, {"g": "what helps"}, train={"g": {"guide": 1}})
    index_bm25(made, folder / "index", 1, generated)
    return made


def test_a_document_is_its_passages(collection: BeirFolder) -> None:
    """The faults: only passages have ids; words that passages share are there twice; titles or generated queries are
    taken for text."""
    with open_index(Path(collection.place) / "index") as engine:
        for id, text in DOCUMENTS.items():
            stored = engine.document(id)
            if not text.strip() and collection.fields == ("text",):  # no index has it
                assert stored is None
                continue
            assert stored and (stored.id, stored.title, stored.passages) == (id, TITLE, 0)
            assert stored.metadata == ({"pages": 8} if "\f" in text else {})
            whole, expected = without_title(stored), normalized(text)
            assert len(whole) == len(expected) and whole.strip() == expected.strip()
            assert id != "paged" or [page.strip() for page in whole.split("\f")] == [
                p.strip() for p in text.split("\f")
            ]
        for hit in engine.search("fever zinc gout document what helps"):
            passage, document = engine.document(hit.passage or ""), engine.document(hit)
            assert passage and document and (passage.id, document.id) == (hit.passage, hit.id)
            text = without_title(document)
            assert text[hit.start : hit.end] == hit.text == hit.text.rstrip()
            assert hit.page == (1 + text.count("\f", 0, hit.start) if hit.id == "paged" else None)
        for found, hit in zip(retrieved(engine, "zinc", 3), engine.search("zinc", 3), strict=True):
            assert (found.id, found.document, found.metadata["document"]) == (hit.passage, hit.id, hit.id)
            assert (found.metadata["start"], found.metadata["end"]) == (hit.start, hit.end)
        assert engine.document("no such document") is engine.document("guide#99") is None


def test_a_document_is_explained_by_its_best_passage_at_any_rank(collection: BeirFolder) -> None:
    """The faults: documents beyond the hits have no explanation; a passage has none."""
    (name, retriever), *_ = open_index(Path(collection.place) / "index").parts.retrievers.items()
    with Engine(name, {name: retriever}, most_hits=1, passages=True) as engine:
        query = "zinc on page one day"
        (best, *others), explained = engine.search(query, k=4), engine.explain(query, DOCUMENTS)
        assert others and (explained[best.id].rank, explained[others[0].id].rank) == (1, None)
        for hit in (best, *others):
            scores = retriever.searcher.explain(query, engine._stored_ids(hit.id))
            assert explained[hit.id].score == max(each.score for each in scores.values())
            assert explained[hit.id].score == pytest.approx(hit.score, abs=2e-4) and explained[hit.id].terms
        for id, rank in {best.passage: 1, "paged#0": None}.items():
            passage = engine.explain(query, id or "")
            assert (passage.document, passage.rank, passage.score) == (
                id,
                rank,
                retriever.searcher.explain(query, [id or ""])[id or ""].score,
            )
        assert engine.explain("zinc", "guide#1").terms == []  # the document, not a passage
        assert engine.explain("zinc", ["guide#99", "no"]) == {}


def test_documents_are_counted(collection: BeirFolder) -> None:
    """The fault: passages are counted, as often as a document has them."""
    with open_index(Path(collection.place) / "index") as engine:
        indexed = len(DOCUMENTS) - (collection.fields == ("text",))  # without the document that has no text
        assert engine.documents == len(engine) == indexed < engine.passages
        assert engine.facets("pages", filter="pages:8") == {"pages": {"8": 1}}
        assert engine.facets("pages", "fever zinc", filter="NOT page:6") == {"pages": {"8": 1}}
        matches = engine.matches("gout document")
        assert matches and matches.documents == 2
        with pytest.raises(BadFilter, match="facets: no field 'page'; those of this index: pages"):
            engine.facets(["pages", "page"])


def test_passages_in_any_order_and_several_segments_are_folded(java: None, tmp_path: Path) -> None:
    """Indexes that several processes wrote have a document's passages apart from each other; updates add segments."""
    draw = Random(1)
    documents = np.array([draw.randrange(70) for _ in range(300)], np.int32)
    passages = [(draw.choice("ab"), "fever" if draw.random() < 0.3 else "zinc") for _ in documents]
    for number, (_, word) in enumerate(passages):  # of one document, all have the same value
        passages[number] = (passages[[*documents].index(documents[number])][0], word)
    with writing(tmp_path) as writer, using_java("writing"):
        add, analyzer = DocumentAdder(writer, {"v": "string"}, is_text=True, stores_raw=True), lucene_analyzer("en")
        for number, (value, word) in enumerate(passages):
            add(str(number), word, json.dumps({"metadata": {"v": value}}), analyzer=analyzer)
            if number in (10, 74, 138):
                writer.flush()
    with using_java("reading"), closing(_open(tmp_path)) as reader:
        assert reader.leaves().size() == 4
        searcher = java_class(SEARCHER)(start().cast(READER, reader))
        manager = java_class("org.apache.lucene.facet.FacetsCollectorManager")()
        collector = searcher.search(any_term_query("contents", ["fever"]), manager)
        matches = Matches(reader, collector, java_class(MAPPER)(), lambda: documents)
        assert matches.documents == sum(word == "fever" for _, word in passages)
        found = {(documents[n], value) for n, (value, word) in enumerate(passages) if word == "fever"}
        assert matches.fold().documents == len(found) == matches.fold().documents
        assert matches.values("v", "string", 9) == Counter(value for _, value in found)
        assert {*documents[matches.passes]} == {document for document, _ in found}
