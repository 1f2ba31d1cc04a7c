"""Index text for BM25 with Anserini."""

import logging
import os
import sqlite3
from collections.abc import Callable
from itertools import batched, islice
from pathlib import Path

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import unless_english
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes.anserini import run_indexer
from cai_pyserini.indexes.fields import add_metadata
from cai_pyserini.indexes.index_shards import require_room, shard_settings
from cai_pyserini.indexes.writer import raw_json

HEAP = "2g"
BUFFER_MB = "512"  # Lucene's indexing buffer
FILE_DOCUMENTS = 20_000  # documents per file that Anserini reads; a file is a unit of work for its threads
GENERATED = "train"  # split of the qrels of generated queries
TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE queries (place TEXT, id TEXT, text TEXT);
CREATE TABLE judged (place TEXT, query TEXT, document TEXT)"""
DUPLICATE_QUERY = """
SELECT (SELECT place FROM queries WHERE id = every.id ORDER BY rowid LIMIT 1 OFFSET 1), id
FROM queries AS every GROUP BY id HAVING count(*) > 1 LIMIT 1"""
UNKNOWN_QUERY = "SELECT judged.place, query FROM judged LEFT JOIN queries ON id = query WHERE id IS NULL LIMIT 1"
MISSING_DOCUMENTS = """
SELECT place, document, (SELECT count(DISTINCT document) FROM judged WHERE document NOT IN there),
(SELECT count(DISTINCT document) FROM judged) FROM judged WHERE document NOT IN there LIMIT 1"""
QUERIES_OF_DOCUMENT = """
SELECT DISTINCT queries.rowid, text FROM judged JOIN queries ON id = query
WHERE document IN (?, ?) AND text <> '' ORDER BY queries.rowid"""
logger = logging.getLogger(__name__)


def index_bm25(
    collection: Collection,
    output: Path,
    threads: int = 0,
    generated: Collection | None = None,
    *,
    raw: bool = True,
    shard_id: int = 0,
    shard_num: int = 1,
) -> Path:
    """Index the text of a collection with Anserini's IndexCollection and its analyzer for the collection's language.

    Stores positions and document vectors (for RM3) and, with `raw`, the documents. `generated` is a collection of
    generated queries to append to the documents that its qrels assign them to, or to all their passages (docT5query,
    Nogueira & Lin 2019). With `shard_num`, indexes only documents whose number modulo `shard_num` is `shard_id`. Raises
    CaiError if there are none.
    """
    inputs = {
        "documents": collection.fingerprint("documents"),
        "metadata": collection.metadata_fingerprint,
        "generated": generated and [generated.fingerprint(part) for part in ("queries", "train")],
    }
    settings = {"language": unless_english(collection.language), **shard_settings(shard_id, shard_num)}
    recipe = artifact.recipe("index", inputs, kind="bm25", raw=raw, **settings)

    def write(folder: Path) -> artifact.Stats:
        staging, index = folder / "staging", folder / "index"
        staging.mkdir()
        queries_of = queries_of_documents(generated, folder / "generated", collection) if generated else None
        count = _stage_json(collection, staging, queries_of or (lambda id: []), shard_id, shard_num)
        files.remove(folder / "generated")
        require_room(count, f"collection {collection.name}")
        if not count:
            raise CaiError(f"collection {collection.name} has too few documents for {shard_num} shards")
        options = {"input": staging, "index": index, "threads": threads or os.cpu_count() or 1}
        options |= {"collection": "JsonCollection", "generator": "DefaultLuceneDocumentGenerator"}
        options |= {"language": collection.language, "memoryBuffer": BUFFER_MB}
        switches = ["storePositions", "storeDocvectors", *(["storeRaw"] if raw else [])]
        indexed = run_indexer("IndexCollection", count, HEAP, options, *switches)
        files.remove(staging)
        for path in list(index.iterdir()):
            path.rename(folder / path.name)
        index.rmdir()
        stats = {"kind": "bm25", "raw": raw, "documents": indexed, "documents_digest": collection.documents_digest}
        stats |= add_metadata(folder, collection)
        return stats | {"bytes": files.folder_bytes(folder)}

    return artifact.make(output, recipe, write)


def _stage_json(
    collection: Collection, folder: Path, queries_of: Callable[[str], list[str]], shard_id: int, shard_num: int
) -> int:
    """Write the documents of a shard as files for Anserini's JsonCollection. Returns the number of documents."""
    count = 0
    records = progress(collection.records(), collection.size, "index bm25")
    for number, part in enumerate(batched(islice(records, shard_id, None, shard_num), FILE_DOCUMENTS)):
        with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
            for record in part:
                contents = " ".join([collection.contents_of(record), *queries_of(record.id)])
                file.write(raw_json(record.id, record.title, contents, record.metadata) + "\n")
        count += len(part)
    return count


def queries_of_documents(generated: Collection, path: Path, collection: Collection) -> Callable[[str], list[str]]:
    """A function from a document or passage id to its generated queries, in order, as the qrels of `generated` assign
    them.

    The queries are in a new SQLite file `path`, as there are several per document. Warns of judged documents that
    `collection` lacks. Raises CaiError if it lacks all of them or is strict, for a duplicate query id, and for qrels of
    an unknown query.
    """
    file = sqlite3.connect(path)
    file.executescript(TABLES)
    queries, judgments = generated.streamed(GENERATED)
    texts = ((query.where, query.id, " ".join(query.text.split())) for query in queries)
    file.executemany("INSERT INTO queries VALUES (?, ?, ?)", texts)
    judged = ((judgment.where, judgment.query, judgment.document) for judgment in judgments)
    file.executemany("INSERT INTO judged VALUES (?, ?, ?)", judged)
    file.executescript("CREATE INDEX ids ON queries (id); CREATE INDEX documents ON judged (document)")
    for where, id in file.execute(DUPLICATE_QUERY):
        raise CaiError(f"{where}: query id {id!r} occurs twice; ids must be unique")
    for where, id in file.execute(UNKNOWN_QUERY):
        raise CaiError(
            f"{where}: query {id!r} is in the qrels but not among the queries: add it to them, or remove its judgments"
        )
    if file.execute("SELECT 1 FROM judged LIMIT 1").fetchone() is None:
        raise CaiError(f"{generated.place}: its qrels, split {GENERATED!r}, assign no query to any document")
    _require_documents(file, collection)

    def queries_of(id: str) -> list[str]:
        return [text for _, text in file.execute(QUERIES_OF_DOCUMENT, (id, collection.document_of(id)))]

    return queries_of


def _require_documents(file: sqlite3.Connection, collection: Collection) -> None:
    """Warn of judged documents that a collection lacks. Raises CaiError if it lacks all of them or is strict."""
    file.execute("CREATE TEMP TABLE there (id TEXT PRIMARY KEY) WITHOUT ROWID")
    records = progress(collection.records(), collection.size, "generated queries")
    ids = ((id,) for record in records for id in {record.id, collection.document_of(record.id)})
    file.executemany("INSERT OR IGNORE INTO there VALUES (?)", ids)
    for where, document, missing, judged in file.execute(MISSING_DOCUMENTS):
        message = f"{where}: document {document!r} of the generated queries is not in collection {collection.name}"
        if missing == judged or collection.strict:
            example = next(collection.records()).id
            raise CaiError(f"{message} ({missing:,} of {judged:,} such documents), whose ids are such as {example!r}")
        logger.warning(
            "%s (%s of %s such documents): their queries are left out", message, f"{missing:,}", f"{judged:,}"
        )
    file.execute("DROP TABLE there")
