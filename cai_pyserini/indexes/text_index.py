"""Index text for BM25 with Lucene and Anserini's analyzers, as Anserini's IndexCollection does."""

import logging
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from itertools import batched, islice
from pathlib import Path

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import languages_in, unless_english
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import processes_for
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.analyzer import exact_words, lucene_analyzer
from cai_pyserini.indexes.writer import BATCH, DocumentAdder, Part, raw_json, stats_of, write_index, writing

MIN_DOCUMENTS = 100_000  # per process, as its JVM takes seconds to warm up
GENERATED = "train"  # split of the qrels of generated queries
TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE queries (id TEXT PRIMARY KEY, text TEXT);
CREATE TABLE judged (place TEXT, query TEXT, document TEXT)"""
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
) -> Path:
    """Index the text of a collection, and the words of its names, with Anserini's analyzers for its languages.

    Stores positions and document vectors (for RM3) and, with `raw`, the documents. `generated` is a collection of
    generated queries to append to the documents that its qrels assign them to, or to all their passages (docT5query,
    Nogueira & Lin 2019). Runs at most `threads` processes (0: one per processor).
    """
    inputs = {
        "documents": collection.fingerprint("documents"),
        "metadata": collection.metadata_fingerprint,
        "generated": generated and [generated.fingerprint(part) for part in ("queries", "train")],
    }
    language = unless_english(collection.language)
    recipe = artifact.recipe("index", inputs, kind="bm25", raw=raw, language=language)

    def write(folder: Path) -> artifact.Stats:
        queries = folder / "generated" if generated else None
        if generated and queries:
            store_queries(generated, queries, collection)
        count = processes_for(collection.whole_size or 0, MIN_DOCUMENTS, threads)
        write_part = partial(_write_part, collection, raw, queries)
        kinds, total = collection.metadata, collection.size
        documents = write_index(folder, count, write_part, kinds, total=total, label="index bm25")
        if queries:
            files.remove(queries)
        stats = {"kind": "bm25", "raw": raw, "documents": documents, "documents_digest": collection.documents_digest}
        return stats | stats_of(collection) | {"bytes": files.folder_bytes(folder)}

    return artifact.make(output, recipe, write)


def _write_part(collection: Collection, raw: bool, queries: Path | None, part: Part) -> Generator[int]:
    """Write the index of every n-th document, and yield the number of documents of each batch that are not empty."""
    queries_of = stored_queries(queries, collection) if queries else lambda id: []
    with writing(part.folder) as writer:
        with jvm.using_java("indexing text"):
            analyzers = {language: lucene_analyzer(language) for language in languages_in(collection.language)}
            add = DocumentAdder(writer, collection.metadata, is_text=True, stores_raw=raw)
        for batch in batched(islice(collection.records(), part.number, None, part.parts), BATCH):
            added = 0
            with jvm.using_java("indexing text"):
                for record in batch:
                    text = collection.contents_of(record)
                    contents = " ".join([text, *queries_of(record.id)])
                    if contents.strip():
                        words = " ".join(exact_words(f"{text} {record.names}"))
                        indexed = f"{contents} {record.names}"
                        analyzer = analyzers[record.language or collection.language]
                        add(record.id, indexed, raw_json(record, contents, pretty=True), words, analyzer)
                        added += 1
            yield added


def store_queries(generated: Collection, path: Path, collection: Collection) -> None:
    """Store generated queries, and the documents or passages that the qrels of `generated` assign them to, in a new
    SQLite file, as there are several per document.

    Warns of judged documents that `collection` lacks. Raises CaiError if it lacks all of them or is strict, for a
    duplicate query id, and for qrels of an unknown query.
    """
    queries, judgments = generated.streamed(GENERATED)
    with closing(sqlite3.connect(path)) as file:
        file.executescript(TABLES)
        for query in queries:
            try:
                file.execute("INSERT INTO queries VALUES (?, ?)", (query.id, " ".join(query.text.split())))
            except sqlite3.IntegrityError:
                raise CaiError(f"{query.where}: query id {query.id!r} occurs twice; ids must be unique") from None
        judged = ((judgment.where, judgment.query, judgment.document) for judgment in judgments)
        file.executemany("INSERT INTO judged VALUES (?, ?, ?)", judged)
        file.execute("CREATE INDEX documents ON judged (document)")
        for where, id in file.execute(UNKNOWN_QUERY):
            raise CaiError(
                f"{where}: query {id!r} is in the qrels but not among the queries: add it to them, or remove its "
                "judgments"
            )
        if file.execute("SELECT 1 FROM judged LIMIT 1").fetchone() is None:
            raise CaiError(f"{generated.place}: its qrels, split {GENERATED!r}, assign no query to any document")
        _require_documents(file, collection)
        file.commit()


def stored_queries(path: Path, collection: Collection) -> Callable[[str], list[str]]:
    """A function from a document or passage id to its generated queries, in order."""
    file = sqlite3.connect(path)

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
