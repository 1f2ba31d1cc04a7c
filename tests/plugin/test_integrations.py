"""Every framework gets the hits of our own search, with equal scores, texts, metadata and filters."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ir_measures import parse_measure

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Kind
from cai_pyserini.engine.open import Run, open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import Evaluation
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.runs.measures import MEASURES, mean
from tests.metadata import QUERIES
from tests.test_docs import ROOT, blocks

pytestmark = pytest.mark.slow

SYSTEM, FILTER = "joint", "year>=2010"
Found = list[tuple[str, float, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def engine(metadata_run: Path) -> Iterator[Engine]:
    engine = Run(metadata_run).open(SYSTEM)
    yield engine
    engine.close()


def expected(engine: Engine, query: str, hits: int) -> Found:
    (ranking,) = engine.search([query], hits, filter=FILTER)
    stored = [(hit, engine.document(hit.stored)) for hit in ranking]
    return [(hit.id, hit.score, each.contents, {**each.metadata, "title": each.title}) for hit, each in stored if each]


def test_langchain(engine: Engine) -> None:
    from langchain_core.runnables import ConfigurableField

    from cai_pyserini.plugin.langchain import CaiRetriever

    retriever = CaiRetriever(engine=engine, k=7, filter=FILTER)
    one = retriever.invoke(QUERIES[0])
    each = retriever.configurable_fields(filter=ConfigurableField(id="filter"))
    assert not each.invoke(QUERIES[0], {"configurable": {"filter": "year:1066"}})
    many = asyncio.run(each.abatch(QUERIES, {"configurable": {"filter": FILTER}}))
    assert one == many[0]
    for query, found in zip(QUERIES, many, strict=True):
        whole = [(d.id, d.metadata.pop("score"), d.page_content, d.metadata) for d in found]
        assert whole == expected(engine, query, 7)


def test_llama_index(engine: Engine) -> None:
    from cai_pyserini.plugin.llama_index import CaiRetriever

    retriever = CaiRetriever(engine, similarity_top_k=7, filter=FILTER)
    for found in (retriever.retrieve(QUERIES[0]), asyncio.run(retriever.aretrieve(QUERIES[0]))):
        whole = [(each.node_id, each.score, each.text, each.metadata) for each in found]
        assert whole == expected(engine, QUERIES[0], 7)


def test_haystack(engine: Engine, metadata_run: Path) -> None:
    """In a saved and loaded pipeline, synchronous and asynchronous."""
    from haystack import Pipeline

    from cai_pyserini.plugin.haystack import CaiRetriever

    pipeline = Pipeline()
    pipeline.add_component("retriever", CaiRetriever(str(metadata_run), SYSTEM, FILTER, top_k=3))
    inputs = {"retriever": {"query": QUERIES[0], "top_k": 7}}
    text = pipeline.dumps()
    allowed = {"allowed_modules": [CaiRetriever.__module__]}
    one, other = (Pipeline.loads(text, **allowed) for _ in range(2))
    loaded = [one.run(inputs), asyncio.run(other.run_async(inputs))]
    for found in loaded:
        documents = found["retriever"]["documents"]
        assert [(d.id, d.score, d.content, d.meta) for d in documents] == expected(engine, QUERIES[0], 7)
    of_index = CaiRetriever(str(metadata_run / "indexes" / "joint-splade-idf"), filter=FILTER)
    assert not of_index.run(QUERIES[0], top_k=0)["documents"]
    assert [d.id for d in of_index.run(QUERIES[0])["documents"]] == [id for id, *_ in expected(engine, QUERIES[0], 10)]


def test_a_component_of_haystack_is_opened_once(metadata_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: concurrent first calls each open the index."""
    from cai_pyserini.plugin import haystack

    opened: list[Engine] = []
    whole = haystack.open_index
    monkeypatch.setattr(haystack, "open_index", lambda *how, **more: opened.append(whole(*how, **more)) or opened[-1])
    retriever = haystack.CaiRetriever(str(metadata_run / "indexes" / "bm25"))
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(retriever.run, QUERIES[:2]))
    assert all(each["documents"] for each in found) and len(opened) == 1


def test_pyterrier_finds_the_same(engine: Engine) -> None:
    import pyterrier as pt

    from cai_pyserini.plugin.pyterrier import CaiRetriever

    topics = pd.DataFrame({"qid": ["b", "a"], "query": QUERIES[:2], "note": ["x", "y"]})
    retriever = CaiRetriever(engine, 7, FILTER, text=True)
    found = retriever(topics)
    assert list(found.columns) == ["qid", "query", "note", "docno", "score", "rank", "text"]
    for qid, query in zip(topics["qid"], topics["query"], strict=True):
        of_query = found[found["qid"] == qid]
        assert of_query["rank"].tolist() == list(range(7))
        rows = of_query[["docno", "score", "text"]].itertuples(index=False, name=None)
        assert list(rows) == [hit[:3] for hit in expected(engine, query, 7)]
    assert retriever(topics[:0]).columns.equals(found.columns)
    assert pt.inspect.transformer_outputs(retriever % 3, ["qid", "query"]) == ["qid", "query", *found.columns[3:]]


def test_experiments_of_pyterrier_have_our_measures(run_folder: Path, tiny: Path) -> None:
    import pyterrier as pt

    from cai_pyserini.plugin.pyterrier import CaiDataset, CaiRetriever

    run, names = RunFolder(run_folder), ["bm25", SYSTEM, "hybrid-splade-idf-minmax"]
    others = pt.apply.generic(lambda found: found[found["qid"] != found["docno"]])  # one query is also a document
    retrievers = [CaiRetriever(Run(run_folder).open(name)) >> others for name in names]
    measures = [parse_measure(name) for name in MEASURES]
    table = pt.Experiment(retrievers, *CaiDataset(str(tiny)).get_topicsqrels(), measures, names).set_index("name")
    for name in names:
        of_run = json.loads(Evaluation(parse_system(name), run).output.read_text())
        for measure in MEASURES:
            assert table.loc[name, measure] == pytest.approx(mean(of_run[measure]), abs=1e-9)
    assert not pt.java.started()  # a process cannot have a second JVM


def test_metadata_is_kept_whatever_its_names_letters_and_numbers(java: None, tmp_path: Path) -> None:
    from cai_pyserini.plugin import documents
    from cai_pyserini.plugin.langchain import CaiRetriever

    kinds: dict[str, Kind] = {"score": "number", "title": "string", "_title": "list", "id": "string"}
    own = {"score": 4.5, "title": "E\u0301conomie", "_title": ["x"], "id": 2**53 + 1}
    lines = [{"_id": "a", "title": "Tea", "text": "green tea", "metadata": own}]
    lines += [{"_id": "b", "text": "tea", "metadata": own | {"title": "\u00c9conomie", "id": 2**53}}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = open_index(index_bm25(BeirFolder(tmp_path, "x", metadata=kinds), tmp_path / "index"))
    assert engine.facets(["title"]) == {"title": {"\u00c9conomie": 2}}
    assert len(engine.search(["tea"], filter="title:E\u0301conomie")[0]) == 2
    (found,) = CaiRetriever(engine=engine, filter="id:9007199254740993").invoke("tea")
    ((hit, *_),) = engine.search(["tea"], filter="id:9007199254740993")
    composed = own | {"title": "\u00c9conomie", "id": "9007199254740993"}
    assert found.metadata == composed | {"__title": "Tea", "_score": hit.score}
    assert [each.metadata for each in documents.documents(engine, "tea", 1)] == [composed | {"__title": "Tea"}]


def test_documents_that_are_not_stored_are_named(metadata_run: Path) -> None:
    from cai_pyserini.plugin.documents import documents

    alone = open_index(metadata_run / "indexes" / "dense", encoder="minilm")
    with pytest.raises(CaiError, match="no index of dense stores documents"):
        list(documents(alone, QUERIES[0], 10))


def test_the_page_shows_what_is_printed(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "how-to" / "integrations.md"
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()) as printed:
        for code in blocks(page, "python"):
            exec(code.replace("runs/tiny", str(run_folder)), names)
    assert printed.getvalue() == "".join(blocks(page, ""))
