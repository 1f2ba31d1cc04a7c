"""Collections that Pyserini has by name: the documents of a prebuilt index, and topics with their qrels."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import artifact, jsonl, jvm
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.plugin import hook


@jvm.using_java("reading a prebuilt index")
def import_collection(index: str, topics: str, output: Path) -> Path:
    """Write a BEIR folder of the documents that an index stores, and the topics and qrels of a name as its split test.

    Raises CaiError for unknown names, and for an index without its documents.
    """
    hook.register()
    from pyserini.search import get_qrels_file, get_topics  # import the JVM
    from pyserini.search.lucene import LuceneSearcher
    from pyserini.util import download_prebuilt_index

    try:
        queries = {str(id): topic["title"] for id, topic in get_topics(topics).items()}
        qrels, source = Path(get_qrels_file(topics)), Path(download_prebuilt_index(index, verbose=False))
    except (ValueError, FileNotFoundError) as error:
        raise CaiError(f"Pyserini: {error}") from None

    def documents() -> Iterator[dict[str, str]]:
        searcher = LuceneSearcher(str(source))
        for number in progress(range(searcher.num_docs), searcher.num_docs, "documents"):
            document = searcher.doc(number)
            if not (raw := document.raw()):
                raise CaiError(f"{index} does not store its documents; another index of the collection, as .flat, may")
            fields = json.loads(raw)
            title, text = (fields.get("title", ""), fields["text"]) if "text" in fields else ("", fields["contents"])
            yield {"_id": document.docid(), "title": title, "text": text}

    def write(folder: Path) -> artifact.Stats:
        count = jsonl.write(folder / "corpus.jsonl", documents())
        jsonl.write(folder / "queries.jsonl", ({"_id": id, "text": text} for id, text in queries.items()))
        (folder / "qrels").mkdir()
        shutil.copy(qrels, folder / "qrels" / "test.txt")
        # Pyserini takes ids of digits for numbers, without their zeros in front.
        if unknown := BeirFolder(folder, index).qrels("test").keys() - queries.keys():
            raise CaiError(f"{topics}: Pyserini's qrels judge a query {min(unknown)}, which its topics do not have")
        return {"documents": count, "queries": len(queries)}

    inputs = {"index": source.name, "topics": artifact.digest(queries), "qrels": artifact.file_digest(qrels)}
    return artifact.make(output, artifact.recipe("plugin", inputs), write)
