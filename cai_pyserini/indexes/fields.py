"""Metadata fields in Lucene indexes, for filters and facets.

Anserini writes none, so they go to a separate index in the same document order, and the fields of both indexes are
merged unchanged to one segment. A number, or the day of a date, is a DoubleField `metadata.NAME` (points and sorted
numeric doc values); a string, or each string of a list, is a KeywordField (terms and sorted set doc values).
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact, files
from cai_pyserini.core.metadata import Kind, Metadata, bounds
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.writer import directory, writing

PREFIX = "metadata."  # prefix of field names
IDS = "docid"  # a file: document ids in index order
TABLE = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE metadata (id TEXT PRIMARY KEY, fields TEXT) WITHOUT ROWID"""


def add_metadata(index: Path, collection: Collection) -> artifact.Stats:
    """Add the metadata of a collection to a Lucene index of one segment, and write the file IDS.

    Returns the stats for the manifest, the types by name; none for a collection without metadata.
    """
    if not collection.metadata:
        return {}
    original = [path for path in index.iterdir() if path.is_file()]
    separate, merged, values = (index / name for name in ("metadata", "merged", "values"))
    with closing(sqlite3.connect(values)) as file, jvm.using_java(f"adding metadata to {index}"):
        open_index = jvm.java_class("org.apache.lucene.index.DirectoryReader").open
        with closing(open_index(directory(index))) as documents:
            _write(documents, separate, index / IDS, collection, _metadata_by_id(collection, file))
            with closing(open_index(directory(separate))) as metadata:
                _merge(merged, documents, metadata)
    for path in (*original, separate, values):
        files.remove(path)
    for path in merged.iterdir():
        path.rename(index / path.name)
    files.remove(merged)
    return {"metadata": collection.metadata}


def _metadata_by_id(collection: Collection, file: sqlite3.Connection) -> Callable[[str], Metadata]:
    """A function from a document id to its metadata, stored in an SQLite file, because the order of an index can differ
    from the collection's."""
    file.executescript(TABLE)
    records = ((record.id, json.dumps(record.metadata)) for record in collection.records() if record.metadata)
    file.executemany("INSERT INTO metadata VALUES (?, ?)", records)

    def metadata_of(id: str) -> Metadata:
        row = file.execute("SELECT fields FROM metadata WHERE id = ?", (id,)).fetchone()
        return json.loads(row[0]) if row else {}

    return metadata_of


def _write(
    documents: Any, folder: Path, ids: Path, collection: Collection, metadata_of: Callable[[str], Metadata]
) -> None:
    """Write an index of one segment with the metadata of documents, in the same order, and a file with their ids."""
    values = _leaf(documents).getBinaryDocValues("id")
    document, fields = jvm.java_class("org.apache.lucene.document.Document")(), _Fields()
    with writing(folder) as writer:
        with ids.open("w", encoding="utf-8") as file:
            for _ in progress(range(documents.maxDoc()), documents.maxDoc(), "metadata"):
                values.nextDoc()
                id = values.binaryValue().utf8ToString()
                file.write(f"{id}\n")
                document.clear()
                for field in fields.of(metadata_of(id), collection.metadata):
                    document.add(field)
                writer.addDocument(document)
        writer.forceMerge(1)


def _merge(folder: Path, *readers: Any) -> None:
    """Merge the fields of several indexes, with the same documents in the same order, to an index of one segment."""
    java = jvm.java_class
    both = java("org.apache.lucene.index.ParallelLeafReader")(*map(_leaf, readers))
    codec = java("org.apache.lucene.index.SlowCodecReaderWrapper").wrap(both)
    # pyjnius confuses addIndexes(CodecReader...) with addIndexes(Directory...).
    kinds = "long", "[Lorg.apache.lucene.index.CodecReader;"
    add = batch.virtual("org.apache.lucene.index.IndexWriter", "addIndexes", *kinds)
    arguments = java("java.util.ArrayList")()
    with writing(folder) as writer:
        arguments.add(writer)
        arguments.add(codec)
        add.invokeWithArguments(arguments)


def _leaf(reader: Any) -> Any:
    """The single segment of an index."""
    return reader.leaves().get(0).reader()


class _Fields:
    """Lucene fields, reused for all documents, because creating Java objects from Python is slow."""

    def __init__(self) -> None:
        self._fields: dict[str, list[Any]] = {}
        self._not_stored = jvm.java_class("org.apache.lucene.document.Field$Store").NO

    def of(self, metadata: Metadata, kinds: Mapping[str, Kind]) -> Iterator[Any]:
        """Yield the fields of a document."""
        for name, value in metadata.items():
            is_number, fields = kinds[name] in ("number", "date"), self._fields.setdefault(name, [])
            for number, item in enumerate(value if isinstance(value, list) else [value]):
                if number == len(fields):
                    kind, empty = ("DoubleField", 0.0) if is_number else ("KeywordField", "")
                    make_field = jvm.java_class(f"org.apache.lucene.document.{kind}")
                    fields.append(make_field(PREFIX + name, empty, self._not_stored))
                if is_number:
                    fields[number].setDoubleValue(bounds(item, kinds[name])[0])
                else:
                    fields[number].setStringValue(item)
                yield fields[number]
