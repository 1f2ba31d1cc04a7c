"""Write impacts with Lucene's IndexWriter, and the JSON that indexes store for documents.

Anserini's JsonVectorCollection repeats each term as often as its impact, so its indexing time grows with the sum of
impacts. Here, a document is `term␁impact term␁impact …`, split at white space and analyzed by
DelimitedTermFrequencyTokenFilter, so that the time grows with the number of terms. Anserini and Pyserini see the same
index: a field `contents` with documents and frequencies but no norms, scored by ImpactSimilarity; a field `id`, stored
and in doc values; and the stored field `raw`, which Pyserini's `searcher.doc(id).raw()` returns.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import files
from cai_pyserini.core.config import PASSAGE
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm
from cai_pyserini.vectors.json_vectors import DELIMITER

FIELD = "contents"
RAM_BUFFER_MB = 64.0  # megabytes in the JVM's heap


def raw_json(id: str, title: str, contents: str, metadata: Mapping[str, Any]) -> str:
    """The stored JSON of a document; `contents` is the indexed text."""
    others = {key: value for key, value in {"title": title, "metadata": metadata}.items() if value}
    return json.dumps({"id": id, **others, "contents": contents}, ensure_ascii=False)


def raw_documents(collection: Collection) -> Callable[[str], str]:
    """A function from a document id to its stored JSON, to be called in the collection's order.

    It raises CaiError for an id that is not in the rest of the collection.
    """
    records = collection.records()

    def raw(id: str) -> str:
        for record in records:
            if record.id == id:
                return raw_json(id, record.title, collection.contents_of(record), record.metadata)
        message = f"document {id!r} is not in collection {collection.name}, or not in this order"
        if PASSAGE in id and not collection.has_passages:
            message += "; if it is a passage, set `passages` in the collection's YAML file, as the run did"
        raise CaiError(message)

    return raw


def delimited_analyzer(filter: str) -> Any:
    """A Lucene analyzer for `term␁number term␁number …`; the token filter `filter` interprets the numbers."""
    # Allow tokens longer than Lucene's longest term, so that too long a term is refused, not split.
    builder = jvm.java_class("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
    builder = builder.withTokenizer("whitespace", jvm.java_map({"maxTokenLen": str(1 << 20)}))
    return builder.addTokenFilter(filter, jvm.java_map({"delimiter": DELIMITER})).build()


@contextmanager
def writing(folder: Path) -> Iterator[Any]:
    """A Lucene IndexWriter that keeps the order of documents and merges segments only on request. It is closed at the
    end, or rolled back after an error, which also closes its files."""
    using_java = partial(jvm.using_java, f"writing {folder}")
    with using_java():
        java = jvm.java_class
        analyzer = delimited_analyzer("delimitedTermFrequency")
        config = java("org.apache.lucene.index.IndexWriterConfig")(analyzer)
        config.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
        config.setRAMBufferSizeMB(RAM_BUFFER_MB)
        config.setUseCompoundFile(False)
        policy = java("org.apache.lucene.index.LogDocMergePolicy")()  # keeps the order of documents
        policy.setNoCFSRatio(0.0)
        policy.setMergeFactor(1 << 20)  # a single merge at the end
        config.setMergePolicy(policy)
        writer = java("org.apache.lucene.index.IndexWriter")(directory(folder), config)
    try:
        yield writer
        with using_java():
            writer.close()
    except BaseException:
        with using_java():
            writer.rollback()
        raise


def document_adder(writer: Any, raw: Callable[[str], str] | None) -> Callable[[str, str], None]:
    """A function that adds a document to an IndexWriter, with the stored JSON from `raw` if given."""
    java = jvm.java_class
    kind = java("org.apache.lucene.document.FieldType")()
    kind.setIndexOptions(java("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
    kind.setOmitNorms(True)
    text = jvm.start().cast("java.lang.CharSequence", java("java.lang.String")(""))
    contents_field = java("org.apache.lucene.document.Field")(FIELD, text, kind)
    id_field = java("org.apache.lucene.document.StringField")(
        "id", "", java("org.apache.lucene.document.Field$Store").YES
    )
    no_bytes = java("org.apache.lucene.util.BytesRef")(b"")
    id_values = java("org.apache.lucene.document.BinaryDocValuesField")("id", no_bytes)
    raw_field = java("org.apache.lucene.document.StoredField")("raw", "")
    document = java("org.apache.lucene.document.Document")()
    for field in (id_field, id_values, contents_field, *([raw_field] if raw else [])):
        document.add(field)

    def add(id: str, contents: str) -> None:
        # The Document is reused, because creating Java objects from Python is slow.
        id_field.setStringValue(id)
        id_values.setBytesValue(id.encode())
        contents_field.setStringValue(contents)
        if raw:
            raw_field.setStringValue(raw(id))
        writer.addDocument(document)

    return add


def merge(parts: Sequence[Path], index: Path) -> None:
    """Merge indexes in order to one segment in `index`, which may be the only part, and remove the parts."""
    with writing(index) as writer:
        if [*parts] != [index]:
            writer.addIndexes(*map(directory, parts))
            for part in parts:
                files.remove(part)
        writer.forceMerge(1)


def ids_are_unique(index: Path) -> bool:
    """Whether all documents of an index of one segment have different ids."""
    reader = jvm.java_class("org.apache.lucene.index.DirectoryReader").open(directory(index))
    ids = reader.leaves().get(0).reader().terms("id").size()
    documents = reader.maxDoc()
    reader.close()
    return bool(ids == documents)


def directory(folder: Path) -> Any:
    return jvm.java_class("org.apache.lucene.store.FSDirectory").open(
        jvm.java_class("java.nio.file.Paths").get(str(folder.absolute()))
    )
