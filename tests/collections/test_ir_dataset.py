"""Datasets of ir_datasets, registered by the tests."""

from pathlib import Path

import pytest
import requests

from cai_pyserini.collections.contract import Document
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a dataset of ir_datasets from TSV texts, or documents in JSONL, in a registry of this test alone."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    import ir_datasets
    from ir_datasets.datasets.beir import BeirTitleDoc
    from ir_datasets.formats import JsonlDocs, TrecQrels, TsvDocs, TsvQueries
    from ir_datasets.util import LocalDownload

    monkeypatch.setattr(ir_datasets, "registry", ir_datasets.util.Registry())

    def local(text: str) -> LocalDownload:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.tsv"
        path.write_text(text)
        return LocalDownload(path)

    def make(id: str, docs: str, queries: str, qrels: str | None = None, kind: type = BeirTitleDoc) -> None:
        reader = JsonlDocs if docs.startswith("{") else TsvDocs
        parts = [reader(local(docs), kind), TsvQueries(local(queries))]
        if qrels is not None:
            parts.append(TrecQrels(local(qrels), {0: "not", 1: "relevant"}))
        ir_datasets.registry.register(id, ir_datasets.datasets.base.Dataset(*parts))

    return make


DOCS = "d1\tZinc.\tColds\nd2\tPlasmodium.\t\n"  # doc_id, text, title
TSV_QUERIES = "q1\tflu\nq2\tfever\n"


def test_an_ir_dataset_with_splits(register) -> None:
    register("made", DOCS, TSV_QUERIES)
    register("made/test", DOCS, TSV_QUERIES, "q1 0 d1 1\nq1 0 d2 0\n")
    register("made/dev", DOCS, TSV_QUERIES, "q2 0 d2 1\n")
    collection = open_collection(IndexConfig(name="made", source="ir_datasets:made/{split}"))
    assert list(collection.documents()) == [Document("d1", "Colds Zinc."), Document("d2", " Plasmodium.")]
    assert (collection.topics("test"), collection.topics("dev")) == ({"q1": "flu"}, {"q2": "fever"})
    assert collection.qrels("test") == {"q1": {"d1": 1, "d2": 0}}
    assert collection.check("dev") == {"documents": 2, "queries": 1, "judgments": 1}
    whole = open_collection(IndexConfig(name="made", source="ir_datasets:made"))
    assert not whole.has_qrels("test") and whole.check("test") == {"documents": 2, "queries": 2}


def test_the_title_is_not_part_of_the_text(register) -> None:
    from ir_datasets.datasets.cord19 import Cord19Doc
    from ir_datasets.datasets.msmarco_document import MsMarcoDocument
    from ir_datasets.formats.trec import TrecDoc

    register("cord", "d1\tColds\tdoi\tdate\tZinc.\n", TSV_QUERIES, kind=Cord19Doc)
    register("web", "d1\thttp://x\tColds\tZinc.\n", TSV_QUERIES, kind=MsMarcoDocument)
    register("news", "d1\tColds Zinc.\t<xml>\n", TSV_QUERIES, kind=TrecDoc)
    for name in ("cord", "web", "news"):
        config = IndexConfig(name=name, source=f"ir_datasets:{name}")
        (document,) = open_collection(config).documents()
        assert document.contents.split() == ["Colds", "Zinc."]
        (text,) = open_collection(config.replace(fields=["text"])).documents()
        assert text.contents.split() == ["Colds", "Zinc."][name != "news" :]


def test_a_field_without_a_value_is_empty(register) -> None:
    """ir_datasets renders it as the word None."""
    from ir_datasets.datasets.nfcorpus import NfCorpusDoc

    lines = (
        '{"doc_id": "d1", "url": null, "title": null, "abstract": "Zinc."}\n',
        '{"doc_id": "d2", "url": "x", "title": "Colds", "abstract": null}\n',
    )
    register("made", "".join(lines), TSV_QUERIES, kind=NfCorpusDoc)
    documents = open_collection(IndexConfig(name="made", source="ir_datasets:made")).documents()
    assert [document.contents for document in documents] == [" Zinc.", "Colds "]


@pytest.mark.parametrize("source, split", [("ir_datasets:nothing", "test"), ("ir_datasets:made/{split}", "dev")])
def test_an_unknown_ir_dataset_is_named(register, source: str, split: str) -> None:
    register("made", DOCS, TSV_QUERIES)
    name = source.removeprefix("ir_datasets:").replace("{split}", split)
    with pytest.raises(CaiError, match=f"ir_datasets has no dataset '{name}'"):
        open_collection(IndexConfig(name="any", source=source)).check(split)


@pytest.mark.parametrize("ask", ["documents", "size"])
def test_a_failed_download_names_what_works_without_a_network(
    register, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    register("made", DOCS, TSV_QUERIES)
    collection = open_collection(IndexConfig(name="made", source="ir_datasets:made"))

    def fail(*_: object) -> None:
        raise requests.ConnectionError

    monkeypatch.setattr("ir_datasets.formats.TsvDocs.docs_iter", fail)
    monkeypatch.setattr("ir_datasets.formats.TsvDocs.docs_count", fail)
    with pytest.raises(CaiError, match=r"made could not be downloaded \(ConnectionError\)\. Without a network: the"):
        list(collection.documents()) if ask == "documents" else collection.size
