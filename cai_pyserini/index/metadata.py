"""Metadata in Lucene indexes: values by which documents are filtered and counted.

Anserini writes none, so they are written to an index of their own, in the order of the documents, and the fields of
both are merged, as they are, to one segment. A number, and the day of a date, is a DoubleField `metadata.NAME` (points,
and sorted numeric doc values); a string, and each of a list, a KeywordField (terms, and sorted set doc values).
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core import artifact, files, jvm
from cai_pyserini.core.metadata import Kind, Metadata, bounds
from cai_pyserini.core.terminal import progress
from cai_pyserini.index.writer import directory, writing

PREFIX = "metadata."  # of the names of fields
IDS = "docid"  # a file: the ids of the documents, in the order of the index
TABLE = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE metadata (id TEXT PRIMARY KEY, fields TEXT) WITHOUT ROWID"""


def add_metadata(index: Path, collection: Collection) -> artifact.Stats:
    """Add the metadata of a collection to a Lucene index of one segment, and write the file IDS.

    Returns what the manifest says of it: the types, by name. Does nothing for a collection without metadata.
    """
    if not collection.metadata:
        return {}
    before = [path for path in index.iterdir() if path.is_file()]
    alone, merged, values = (index / name for name in ("metadata", "merged", "values"))
    with closing(sqlite3.connect(values)) as file, jvm.using_java(f"adding metadata to {index}"):
        open_index = jvm.java_class("org.apache.lucene.index.DirectoryReader").open
        with closing(open_index(directory(index))) as documents:
            _write(documents, alone, index / IDS, collection, _by_id(collection, file))
            with closing(open_index(directory(alone))) as metadata:
                _merge(merged, documents, metadata)
    for path in (*before, alone, values):
        files.remove(path)
    for path in merged.iterdir():
        path.rename(index / path.name)
    files.remove(merged)
    return {"metadata": collection.metadata}


def _by_id(collection: Collection, file: sqlite3.Connection) -> Callable[[str], Metadata]:
    """A function that returns the metadata of a document, from a file that is filled first: indexes can have another
    order than the collection."""
    file.executescript(TABLE)
    records = ((record.id, json.dumps(record.metadata)) for record in collection.records() if record.metadata)
    file.executemany("INSERT INTO metadata VALUES (?, ?)", records)

    def of(id: str) -> Metadata:
        found = file.execute("SELECT fields FROM metadata WHERE id = ?", (id,)).fetchone()
        return json.loads(found[0]) if found else {}

    return of


def _write(documents: Any, folder: Path, ids: Path, collection: Collection, of: Callable[[str], Metadata]) -> None:
    """Write an index of one segment of the metadata of documents, in their order, and their ids to a file."""
    values = _leaf(documents).getBinaryDocValues("id")
    document, fields = jvm.java_class("org.apache.lucene.document.Document")(), _Fields()
    with writing(folder) as writer:
        with ids.open("w", encoding="utf-8") as file:
            for _ in progress(range(documents.maxDoc()), documents.maxDoc(), "metadata"):
                values.nextDoc()
                id = values.binaryValue().utf8ToString()
                file.write(f"{id}\n")
                document.clear()
                for field in fields.of(of(id), collection.metadata):
                    document.add(field)
                writer.addDocument(document)
        writer.forceMerge(1)


def _merge(folder: Path, *readers: Any) -> None:
    """Write an index of one segment with the fields of several, whose documents are the same in the same order."""
    java = jvm.java_class
    both = java("org.apache.lucene.index.ParallelLeafReader")(*map(_leaf, readers))
    codec = java("org.apache.lucene.index.SlowCodecReaderWrapper").wrap(both)
    with writing(folder) as writer:
        _add_index(writer, codec)


def _add_index(writer: Any, reader: Any) -> None:
    """Call IndexWriter.addIndexes(CodecReader...), for which pyjnius takes addIndexes(Directory...)."""
    java = jvm.java_class
    named, invoke = java("java.lang.Class").forName, "java.lang.invoke.Method"
    kind = java(invoke + "Type").methodType(
        java("java.lang.Long").TYPE, named("[Lorg.apache.lucene.index.CodecReader;")
    )
    writers = named("org.apache.lucene.index.IndexWriter")
    arguments = java("java.util.ArrayList")()
    arguments.add(writer)
    arguments.add(reader)
    java(invoke + "Handles").publicLookup().findVirtual(writers, "addIndexes", kind).invokeWithArguments(arguments)


def _leaf(reader: Any) -> Any:
    """The only segment of an index."""
    return reader.leaves().get(0).reader()


class _Fields:
    """Fields of Lucene, which are used again: creating Java objects from Python is slow."""

    def __init__(self) -> None:
        self._made: dict[str, list[Any]] = {}
        self._stored = jvm.java_class("org.apache.lucene.document.Field$Store").NO

    def of(self, metadata: Metadata, kinds: Mapping[str, Kind]) -> Iterator[Any]:
        """Yield the fields of a document."""
        for name, value in metadata.items():
            is_number, made = kinds[name] in ("number", "date"), self._made.setdefault(name, [])
            for number, one in enumerate(value if isinstance(value, list) else [value]):
                if number == len(made):
                    kind, empty = ("DoubleField", 0.0) if is_number else ("KeywordField", "")
                    made.append(
                        jvm.java_class(f"org.apache.lucene.document.{kind}")(PREFIX + name, empty, self._stored)
                    )
                if is_number:
                    made[number].setDoubleValue(bounds(one, kinds[name])[0])
                else:
                    made[number].setStringValue(one)
                yield made[number]
