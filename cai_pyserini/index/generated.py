"""Generated queries, found by their documents. There are several per document, so they are in a file, not in memory."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core.errors import CaiError

SPLIT = "train"
TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE queries (place TEXT, id TEXT, text TEXT);
CREATE TABLE judged (place TEXT, query TEXT, document TEXT)"""
INDEXES = """
CREATE INDEX ids ON queries (id);
CREATE INDEX documents ON judged (document)"""
TWICE = """
SELECT (SELECT place FROM queries WHERE id = every.id ORDER BY rowid LIMIT 1 OFFSET 1), id
FROM queries AS every GROUP BY id HAVING count(*) > 1 LIMIT 1"""
UNKNOWN = "SELECT judged.place, query FROM judged LEFT JOIN queries ON id = query WHERE id IS NULL LIMIT 1"
OF_DOCUMENT = """
SELECT DISTINCT queries.rowid, text FROM judged JOIN queries ON id = query
WHERE document = ? AND text <> '' ORDER BY queries.rowid"""


def queries_of_documents(collection: Collection, path: Path) -> Callable[[str], list[str]]:
    """A function that returns the queries which the qrels of a collection assign to a document, in their order.

    They are kept in a new file `path`. Raises CaiError for a query id that occurs twice, and for qrels of no query.
    """
    file = sqlite3.connect(path)
    file.executescript(TABLES)
    queries, judgments = collection.streamed(SPLIT)
    texts = ((query.where, query.id, " ".join(query.text.split())) for query in queries)
    file.executemany("INSERT INTO queries VALUES (?, ?, ?)", texts)
    judged = ((judgment.where, judgment.query, judgment.document) for judgment in judgments)
    file.executemany("INSERT INTO judged VALUES (?, ?, ?)", judged)
    file.executescript(INDEXES)
    for where, id in file.execute(TWICE):
        raise CaiError(f"{where}: query id {id!r} occurs twice; ids must be unique")
    for where, id in file.execute(UNKNOWN):
        raise CaiError(f"{where}: query {id!r} is in the qrels but not among the queries")
    return lambda document: [text for _, text in file.execute(OF_DOCUMENT, (document,))]
