"""Write Lucene indexes, of impacts and of text, which Anserini and Pyserini open as their own.

The fields are Anserini's: `id`, stored and in doc values; `contents`, the terms; and the stored field `raw`, which
Pyserini's `searcher.doc(id).raw()` returns. Text has positions, norms and term vectors (for RM3), and beside Anserini's
fields `words`, the words as they are, with positions, for exact phrases. Of impacts, documents
have frequencies: Anserini's JsonVectorCollection repeats each term as often as its impact, so its indexing time grows
with the sum of impacts. Here, a document is `term␁impact term␁impact …`, split at white space and analyzed by
DelimitedTermFrequencyTokenFilter, so that the time grows with the number of terms.

Metadata, which Anserini does not write, have fields of their own, for filters and facets. A number, or the day of a
date, is a DoubleField `metadata.NAME` (points and sorted numeric doc values); a string, or each string of a list, is a
KeywordField (terms and sorted set doc values).

Several processes write a part of the documents each, and the parts are merged in order to a single segment. Threads
would not help: calls into Java go one at a time, see indexes.jvm.
"""

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.collections.contract import Collection, Record
from cai_pyserini.core import files
from cai_pyserini.core.config import PASSAGE
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import STRINGS, Kind, Metadata, bounds
from cai_pyserini.core.processes import spread
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes import jvm
from cai_pyserini.vectors.json_vectors import DELIMITER

FIELD = "contents"
WORDS = "words"  # of texts, as they are
PREFIX = "metadata."  # of the names of metadata fields
IDS = "docid"  # a file of indexes with metadata or of passages: ids in index order
BATCH = 1024  # documents per step of the progress bar
RAM_BUFFER_MB = 64.0  # megabytes in the JVM's heap


class Part(NamedTuple):
    """One of several parts of the documents of an index, which a process writes."""

    number: int
    parts: int
    whole: Path

    @property
    def folder(self) -> Path:
        """Where the part is written: of a single one, the index itself."""
        return self.whole / f"part {self.number}" if self.parts > 1 else self.whole


def raw_json(record: Record, contents: str, pretty: bool = False) -> str:
    """The stored JSON of a document; `contents` is the indexed text. `pretty` is as Anserini's JsonCollection stores
    it. Passages have `start` and `passages`, see Record, and `text`, unless they are indexed as title and text."""
    others = {key: value for key in ("title", "language", "metadata") if (value := getattr(record, key))}
    if record.passages:
        others |= {"start": record.start, "passages": record.passages}
        others |= {"text": record.text} if record.text and contents != f"{record.title} {record.text}" else {}
    style: dict[str, Any] = {"indent": 2, "separators": (",", " : ")} if pretty else {}
    return json.dumps({"id": record.id, **others, "contents": contents}, ensure_ascii=False, **style)


def stats_of(collection: Collection) -> dict[str, Any]:
    """What the manifest of an index says of the documents of a collection."""
    metadata, has_passages = collection.metadata, collection.has_passages
    return ({"metadata": metadata} if metadata else {}) | ({"passages": True} if has_passages else {})


def raw_documents(collection: Collection) -> Callable[[str], str]:
    """A function from a document id to its stored JSON, to be called in the collection's order.

    It raises CaiError for an id that is not in the rest of the collection.
    """
    records = collection.records()

    def raw(id: str) -> str:
        for record in records:
            if record.id == id:
                return raw_json(record, collection.contents_of(record))
        message = f"document {id!r} is not in collection {collection.name}, or not in this order"
        if PASSAGE in id and not collection.has_passages:
            message += "; if it is a passage, set `passages` in the collection's YAML file, as the run did"
        raise CaiError(message)

    return raw


def write_index(
    folder: Path,
    count: int,
    write_part: Callable[[Part], Generator[int]],
    kinds: Mapping[str, Kind],
    *,
    total: int | None,
    label: str,
) -> int:
    """Write an index with one segment in `count` parts, and perhaps the file IDS; return the number of documents.
    `write_part` writes a part, and yields the numbers of documents that it has added."""
    parts = [Part(number, count, folder) for number in range(count)]
    with spread(write_part, parts) as counts:
        added = (document for count in counts for document in range(count))
        documents = sum(1 for _ in progress(added, total, label))
    with writing(folder) as writer:
        if count > 1:
            writer.addIndexes(*(directory(part.folder) for part in parts))
            for part in parts:
                files.remove(part.folder)
        writer.forceMerge(1)
    _write_ids(folder, bool(kinds))
    return documents


def delimited_analyzer(filter: str) -> Any:
    """A Lucene analyzer for `term␁number term␁number …`; the token filter `filter` interprets the numbers."""
    # Allow tokens longer than Lucene's longest term, so that too long a term is refused, not split.
    builder = jvm.java_class("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
    builder = builder.withTokenizer("whitespace", "maxTokenLen", str(1 << 20))
    return builder.addTokenFilter(filter, "delimiter", DELIMITER).build()


@contextmanager
def writing(folder: Path) -> Iterator[Any]:
    """A Lucene IndexWriter, which keeps the order of documents and merges segments only on request. It is closed at
    the end, or rolled back after an error, which also closes its files."""
    using_java = partial(jvm.using_java, f"writing {folder}")
    with using_java():
        java = jvm.java_class
        config = java("org.apache.lucene.index.IndexWriterConfig")(delimited_analyzer("delimitedTermFrequency"))
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


class DocumentAdder:
    """Adds documents to an IndexWriter, with metadata of these types. Java objects are reused, because creating them
    from Python is slow."""

    def __init__(self, writer: Any, kinds: Mapping[str, Kind], is_text: bool, stores_raw: bool):
        java = jvm.java_class
        self._writer, self._kinds = writer, kinds
        kind, options = java("org.apache.lucene.document.FieldType")(), java("org.apache.lucene.index.IndexOptions")
        kind.setIndexOptions(options.DOCS_AND_FREQS_AND_POSITIONS if is_text else options.DOCS_AND_FREQS)
        kind.setOmitNorms(not is_text)
        kind.setStoreTermVectors(is_text)
        kind.setStoreTermVectorPositions(is_text)
        exact = java("org.apache.lucene.document.FieldType")()
        exact.setIndexOptions(options.DOCS_AND_FREQS_AND_POSITIONS)
        exact.setOmitNorms(True)
        text = jvm.start().cast("java.lang.CharSequence", java("java.lang.String")(""))
        tokens = java("org.apache.lucene.analysis.core.KeywordTokenizer")()  # replaced by those of each document
        store = java("org.apache.lucene.document.Field$Store")
        self._not_stored = store.NO
        contents = jvm.start().cast("org.apache.lucene.analysis.TokenStream", tokens) if is_text else text
        self._contents = java("org.apache.lucene.document.Field")(FIELD, contents, kind)
        self._words = java("org.apache.lucene.document.Field")(WORDS, text, exact) if is_text else None
        self._id = java("org.apache.lucene.document.StringField")("id", "", store.YES)
        no_bytes = java("org.apache.lucene.util.BytesRef")(b"")
        self._id_values = java("org.apache.lucene.document.BinaryDocValuesField")("id", no_bytes)
        self._raw = java("org.apache.lucene.document.StoredField")("raw", "") if stores_raw else None
        self._metadata: dict[str, list[Any]] = {}  # name -> as many fields as a document has had values
        self._document = java("org.apache.lucene.document.Document")()
        always = (self._id, self._id_values, self._contents, self._words, self._raw)
        self._always = [field for field in always if field]
        for field in self._always:
            self._document.add(field)

    def __call__(self, id: str, contents: str, raw: str, words: str = "", analyzer: Any = None) -> None:
        """Add a document; `raw` is its JSON, from which its metadata are. Of texts, `words` has the exact words, and a
        Lucene `analyzer` splits the contents."""
        self._id.setStringValue(id)
        self._id_values.setBytesValue(id.encode())
        if self._words:
            self._contents.setTokenStream(analyzer.tokenStream(FIELD, contents))
            self._words.setStringValue(words)
        else:
            self._contents.setStringValue(contents)
        if self._raw:
            self._raw.setStringValue(raw)
        if self._kinds:
            self._document.clear()
            for field in (*self._always, *self._fields(json.loads(raw).get("metadata", {}))):
                self._document.add(field)
        self._writer.addDocument(self._document)

    def _fields(self, metadata: Metadata) -> Iterator[Any]:
        for name, value in metadata.items():
            is_string, fields = self._kinds[name] in STRINGS, self._metadata.setdefault(name, [])
            for number, item in enumerate(value if isinstance(value, list) else [value]):
                if number == len(fields):
                    kind, empty = ("KeywordField", "") if is_string else ("DoubleField", 0.0)
                    make_field = jvm.java_class(f"org.apache.lucene.document.{kind}")
                    fields.append(make_field(PREFIX + name, empty, self._not_stored))
                if is_string:
                    fields[number].setStringValue(item)
                else:
                    fields[number].setDoubleValue(bounds(item, self._kinds[name])[0])
                yield fields[number]


def _write_ids(index: Path, has_metadata: bool) -> None:
    """Write IDS, unless documents have no metadata and are no passages, by the id of the first one."""
    with jvm.using_java(f"reading {index}"), closing(_open(index)) as reader:
        segments = reader.leaves()
        values: Any = segments.get(0).reader().getBinaryDocValues("id") if segments.size() else None
        ids = (values.binaryValue().utf8ToString() for _ in range(reader.maxDoc()) if values.nextDoc() >= 0)
        first = [*islice(ids, 1)]
        if has_metadata or (first and first[0].endswith(f"{PASSAGE}0")):
            with (index / IDS).open("w", encoding="utf-8") as file:
                file.writelines(f"{id}\n" for id in chain(first, ids))


def ids_are_unique(index: Path) -> bool:
    """Whether all documents of an index of one segment have different ids."""
    with jvm.using_java(f"reading {index}"), closing(_open(index)) as reader:
        return bool(reader.leaves().get(0).reader().terms("id").size() == reader.maxDoc())


def _open(index: Path) -> Any:
    return jvm.java_class("org.apache.lucene.index.DirectoryReader").open(directory(index))


def directory(folder: Path) -> Any:
    return jvm.java_class("org.apache.lucene.store.FSDirectory").open(
        jvm.java_class("java.nio.file.Paths").get(str(folder.absolute()))
    )
