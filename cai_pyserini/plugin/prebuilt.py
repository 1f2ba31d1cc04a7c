"""Import Pyserini's collections by name: the documents of a prebuilt index, and topics with their qrels."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes import jvm
from cai_pyserini.plugin import hook

FAILURES = (ValueError, OSError, AssertionError)  # raised by Pyserini; AssertionError for a wrong checksum


@jvm.using_java("reading a prebuilt index")
def import_collection(index: str, topics: str | None, output: Path) -> Path:
    """Write a BEIR folder with the documents that an index stores, and named topics and their qrels as its split test.

    Raises CaiError for unknown names, and for an index that does not store its documents.
    """
    hook.register()
    from pyserini.prebuilt_index_info import TF_INDEX_INFO  # imports the JVM
    from pyserini.search import _base, get_qrels_file, get_topics
    from pyserini.search.lucene import LuceneSearcher
    from pyserini.util import download_prebuilt_index

    try:
        source = Path(download_prebuilt_index(index, verbose=False))
    except FAILURES as error:
        raise _failure(error, index, TF_INDEX_INFO) from None
    try:
        queries = {str(id): topic["title"] for id, topic in get_topics(topics).items()} if topics else {}
        qrels = Path(get_qrels_file(topics)) if topics else None
    except FAILURES as error:
        known = vars(_base).get("topics_mapping") or vars(_base).get("_topics_mapping")  # Pyserini 2.3, and 2.4
        raise _failure(error, topics or "", known or ()) from None

    def documents() -> Iterator[dict[str, str]]:
        searcher = LuceneSearcher(str(source))
        for number in progress(range(searcher.num_docs), searcher.num_docs, "documents"):
            document = searcher.doc(number)
            try:
                fields = json.loads(document.raw() or "")
                text = fields["text"] if "text" in fields else fields["contents"]  # contents begin with the title
                title = fields.get("title", "") if "text" in fields else ""
            except (ValueError, KeyError):
                raise CaiError(
                    f"{index} does not store its documents as JSON with text or contents; another index of the "
                    "collection, such as .flat, may"
                ) from None
            yield {"_id": document.docid(), "title": title, "text": text}

    def write(folder: Path) -> artifact.Stats:
        count = jsonl.write(folder / "corpus.jsonl", documents())
        if qrels:
            jsonl.write(folder / "queries.jsonl", ({"_id": id, "text": text} for id, text in queries.items()))
            (folder / "qrels").mkdir()
            shutil.copy(qrels, folder / "qrels" / "test.txt")
            # Pyserini reads ids of digits as numbers, which drops leading zeros.
            if unknown := BeirFolder(folder, index).qrels("test").keys() - queries.keys():
                raise CaiError(f"{topics}: Pyserini's qrels judge a query {min(unknown)}, which its topics do not have")
        return {"documents": count, "queries": len(queries)}

    qrels_digest = qrels and artifact.file_digest(qrels)
    inputs = {"index": source.name, "topics": artifact.digest([*queries.items()]), "qrels": qrels_digest}
    return artifact.make(output, artifact.recipe("plugin", inputs, "prebuilt"), write)


def _failure(error: Exception, name: str, known: Iterable[str]) -> CaiError:
    return CaiError(f"Pyserini: {error}{'' if name in known else did_you_mean(name, known)}")
