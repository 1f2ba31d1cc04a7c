"""Names in Pyserini's catalogues: unreachable, and served on this machine."""

import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.plugin.prebuilt import import_collection
from tests.indexes.stock import bm25, reader, run_module
from tests.servers import answering

pytestmark = pytest.mark.slow
in_network = pytest.mark.skipif(version("pyserini").startswith("2.3."), reason="2.3 has its lists in the package")
QUERIES = ["bladder infection", "cancer of the colon"]
NAME = "beir-v1.0.0-tiny"
SITE = """
import urllib.request
from pathlib import Path

class Local(urllib.request.BaseHandler):
    handler_order = 0

    def https_open(self, request):
        name = request.full_url.rpartition("/")[2]
        return self.parent.open("{server}/" + (name if Path("{folder}", name).exists() else "list.json"))

urllib.request.install_opener(urllib.request.build_opener(Local))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of the files in tmp_path."""
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as http:
        yield f"http://127.0.0.1:{http.server_port}"


@pytest.fixture
def lists(java: None, monkeypatch: pytest.MonkeyPatch, server: str, tmp_path: Path) -> Path:
    """The file in place of all catalogues of indexes; the caches are empty."""
    from pyserini import prebuilt_index_info

    for catalogue in vars(prebuilt_index_info).values():
        for name, value in {"_urls": [f"{server}/list.json"], "_url": f"{server}/dict.json", "_info": None}.items():
            if name in getattr(catalogue, "__dict__", ()):
                monkeypatch.setattr(catalogue, name, value)
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "dict.json").write_text("{}")
    return tmp_path / "list.json"


def serve_index(index: Path, folder: Path, server: str) -> dict[str, object]:
    """Put an index into the server's folder, as an archive. Returns its entry in a catalogue."""
    archive = Path(shutil.make_archive(str(folder / index.name), "gztar", index.parent, index.name))
    checks = {"md5": md5(archive.read_bytes()).hexdigest(), "size": archive.stat().st_size}
    place = {"filename": archive.name, "urls": [f"{server}/{archive.name}"]}
    return {"description": "", **place, **checks, **reader(index).stats()}


@in_network
@pytest.mark.parametrize(
    "index, topics, expected",
    [
        ("beir-v1.0.0-scifact.flat", "", "your registry has no index beir-v1.0.0-scifact.flat, and Pyserini looks "),
        ("robust04", "", "your registry has no index robust04, and Pyserini looks names up at "),  # an alias
        ("", "robust04", "^Pyserini looks names up at https://.*/topics.json, which cannot be reached: .*Errno"),
    ],
)
def test_a_name_that_cannot_be_looked_up(
    index: str,
    topics: str,
    expected: str,
    run_folder: Path,
    lists: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it would keep its proxies
    (tmp_path / "topics.tsv").write_text("1\tbladder infection\n")
    flags = ["--index", index or run_folder / "indexes" / "bm25", "--topics", topics or tmp_path / "topics.tsv"]
    with pytest.raises(CaiError, match=expected):
        run_module("pyserini.search.lucene", *flags, "--output", tmp_path / "run.trec")


@in_network
def test_a_prebuilt_index_by_name_and_alias(lists: Path, server: str, run_folder: Path, tmp_path: Path) -> None:
    from pyserini.search.lucene import LuceneSearcher
    from pyserini.util import download_prebuilt_index

    index = run_folder / "indexes" / "bm25"
    entry = serve_index(index, tmp_path, server)
    lists.write_text(
        json.dumps([{"name": "beir-v1.0.0-tiny.flat", **entry}, {"name": "msmarco-v1-passage.unicoil", **entry}])
    )
    found = LuceneSearcher.from_prebuilt_index("beir-v1.0.0-tiny.flat")
    folder = Path(download_prebuilt_index("msmarco-passage-unicoil-d2q"))
    assert folder == tmp_path / "cache" / "indexes" / f"bm25.{entry['md5']}"
    assert found.num_docs == 12 and bm25(folder, QUERIES) == bm25(index, QUERIES)


@pytest.fixture(scope="module")
def built(java: None, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny collection's index like Pyserini's .flat indexes, and one that does not store documents."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "corpus").mkdir()
    shutil.copy(tiny / "corpus.jsonl", folder / "corpus")
    given = ["--collection", "BeirFlatCollection", "--input", folder / "corpus"]
    given += ["--generator", "DefaultLuceneDocumentGenerator"]
    for index, stored in {"flat": ["--storeRaw"], "bare": []}.items():
        run_module("pyserini.index.lucene", *given, "--index", folder / index, *stored)
    return folder


@pytest.fixture
def by_name(
    lists: Path, built: Path, server: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BeirFolder:
    """The tiny collection like Pyserini's BEIR collections: indexes, topics and qrels. This process and its children
    read the server's files in place of every https URL."""
    from pyserini.search import _base

    entries = {index: serve_index(built / index, tmp_path, server) for index in ("flat", "bare")}
    lists.write_text(json.dumps([{"name": f"{NAME}.{index}", **entry} for index, entry in entries.items()]))
    collection = BeirFolder(tiny, "tiny")
    queries, qrels = collection.topics("test"), collection.qrels("test")
    (tmp_path / "topics.tsv").write_text("".join(f"{id}\t{text}\n" for id, text in queries.items()))
    judged = [f"{id} 0 {document} {grade}\n" for id, grades in qrels.items() for document, grade in grades.items()]
    (tmp_path / "qrels.txt").write_text("".join(judged))
    topics = {"path": "topics.tsv", "reader_class": "io.anserini.search.topicreader.TsvStringTopicReader"}
    (tmp_path / "topics.json").write_text(json.dumps({f"{NAME}-test": topics}))
    (tmp_path / "qrels.json").write_text(json.dumps({f"{NAME}-test": "qrels.txt"}))
    for name in ("topics", "qrels"):
        (tmp_path / f"{name}-aliases.json").write_text("{}")
        monkeypatch.setattr(_base, f"_{name}_mapping", None)
    site = tmp_path / "sitecustomize.py"
    site.write_text(SITE.format(folder=str(tmp_path), server=server))
    monkeypatch.setattr(urllib.request, "_opener", None)
    exec(site.read_text(), {})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return collection


@in_network
def test_a_collection_by_name(by_name: BeirFolder, built: Path, tmp_path: Path) -> None:
    """Its texts, and the BM25 scores of its unused index; once imported, no catalogue is read."""
    load_collection(f"pyserini:{NAME}.flat")
    for list_of_names in tmp_path.glob("*.json"):
        list_of_names.unlink()
    ours = load_collection(f"pyserini:{NAME}.flat")
    assert ours.name == NAME
    assert {*ours.documents()} == {*by_name.documents()}
    assert (ours.topics("test"), ours.qrels("test")) == (by_name.topics("test"), by_name.qrels("test"))
    queries = ours.topics("test").values()
    assert bm25(index_bm25(ours, tmp_path / "index", 1), queries) == bm25(built / "flat", queries)


@in_network
def test_what_cannot_be_imported(by_name: BeirFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a collection, it would have no documents, or no qrels for its queries."""
    with monkeypatch.context() as patch, pytest.raises(CaiError, match=r"looks names up at https.* cannot be reached"):
        patch.setattr(urllib.request, "_opener", None)
        patch.setenv("https_proxy", "http://127.0.0.1:1")
        import_collection(f"{NAME}.flat", f"{NAME}-test", tmp_path / "output")
    (tmp_path / "qrels.txt").write_text((tmp_path / "qrels.txt").read_text().replace("q1", "007"))
    for index, topics, message in [
        (NAME, None, rf"name {NAME}.*; did you mean {NAME}\.flat or {NAME}\.bare\?$"),
        (f"{NAME}.flat", f"{NAME}-dev", rf"Topic {NAME}-dev Not Found; did you mean {NAME}-test\?$"),
        (f"{NAME}.bare", f"{NAME}-test", f"{NAME}.bare does not store its documents as JSON .*, such as .flat, may"),
        (f"{NAME}.flat", f"{NAME}-test", "Pyserini's qrels judge a query 007, which its topics do not have"),
    ]:
        with pytest.raises(CaiError, match=message):
            import_collection(index, topics, tmp_path / "output")
        assert not (tmp_path / "output").exists()


def test_an_unknown_name_is_left_to_pyserini(lists: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher

    lists.write_text("[]")
    assert LuceneImpactSearcher.from_prebuilt_index("no-such-index", "splade-tiny") is None
    assert "Unrecognized index name no-such-index" in capsys.readouterr().out
