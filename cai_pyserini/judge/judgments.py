"""Relevance judgments in SQLite, and the qrels that follow from them.

The table `judgments` only grows: a row is a grade, or NULL for a document that was skipped, or it undoes an earlier
row. The view `current` has, of every query, document and judge, the last row that is not undone.
"""

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, multimode
from typing import NamedTuple

from cai_pyserini.collection.contract import Qrels
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from cai_pyserini.core.lock import execute_alone

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS judgments (
    number INTEGER PRIMARY KEY,
    query TEXT NOT NULL,
    document TEXT NOT NULL,
    judge TEXT NOT NULL,
    grade INTEGER,
    time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    undoes INTEGER REFERENCES judgments
) STRICT;
CREATE VIEW IF NOT EXISTS current AS
    SELECT max(number) AS number, query, document, judge, grade, time FROM judgments
    WHERE undoes IS NULL AND number NOT IN (SELECT undoes FROM judgments WHERE undoes IS NOT NULL)
    GROUP BY query, document, judge;
"""
RULES: dict[str, Callable[[Sequence[int]], int]] = {  # the grades of several judges, in the order of time -> one
    "majority": lambda grades: min(multimode(grades)),
    "mean": lambda grades: math.floor(mean(grades) + 0.5),
    "max": max,
    "last": lambda grades: grades[-1],
}

Grades = dict[str, dict[str, int | None]]  # of a judge: query -> document -> grade, None for skipped


class Judged(NamedTuple):
    """A judge's grade of a document for a query."""

    query: str
    document: str
    judge: str
    grade: int


class Judgments:
    """A database of judgments; one that does not exist is made if it is `new`.

    Several processes can use it, on a file system of this machine. Raises CaiError for a file that is no such database.
    """

    def __init__(self, path: Path, new: bool = False):
        if not new and not path.is_file():
            raise CaiError(f"no file {path}: `python -m cai_pyserini.judge serve` makes it")
        try:
            self._db = sqlite3.connect(path, timeout=30, autocommit=True, check_same_thread=False)
            if new:
                execute_alone(self._db, path, SCHEMA)
            self._db.execute("SELECT number, undoes FROM judgments, current USING (number) LIMIT 1")
        except sqlite3.Error as error:
            raise CaiError(f"{path} cannot be used as a database of judgments: {error}") from None

    def add(self, query: str, document: str, judge: str, grade: int | None) -> None:
        """Record a grade, or None for skipped, unless it is the current one."""
        self._db.execute(
            "INSERT INTO judgments (query, document, judge, grade) SELECT :query, :document, :judge, :grade "
            "WHERE NOT EXISTS (SELECT 1 FROM current WHERE query = :query AND document = :document "
            "AND judge = :judge AND grade IS :grade)",
            {"query": query, "document": document, "judge": judge, "grade": grade},
        )

    def undo(self, judge: str) -> tuple[str, str] | None:
        """Undo the last judgment of a judge that is not undone: its query and document; None if there is none."""
        return self._db.execute(
            "INSERT INTO judgments (query, document, judge, undoes) SELECT query, document, judge, number "
            "FROM current WHERE judge = ? ORDER BY number DESC LIMIT 1 RETURNING query, document",
            [judge],
        ).fetchone()

    def of(self, judge: str) -> Grades:
        """The current grades of a judge, in the order of time."""
        found: Grades = {}
        rows = self._db.execute("SELECT query, document, grade FROM current WHERE judge = ? ORDER BY number", [judge])
        for query, document, grade in rows:
            found.setdefault(query, {})[document] = grade
        return found

    def all(self) -> list[Judged]:
        """The current grades of all judges, in the order of time."""
        columns = ", ".join(Judged._fields)
        rows = self._db.execute(f"SELECT {columns} FROM current WHERE grade IS NOT NULL ORDER BY number")  # noqa: S608
        return [Judged(*row) for row in rows]

    def skipped(self) -> dict[str, set[str]]:
        """The documents of each query that a judge has skipped."""
        found: dict[str, set[str]] = {}
        for query, document in self._db.execute("SELECT query, document FROM current WHERE grade IS NULL"):
            found.setdefault(query, set()).add(document)
        return found

    def counts(self) -> Counter[str]:
        """The number of current grades of each query."""
        rows = self._db.execute("SELECT query, count(*) FROM current WHERE grade IS NOT NULL GROUP BY query")
        return Counter(dict(rows.fetchall()))

    def judges(self) -> list[str]:
        return [judge for (judge,) in self._db.execute("SELECT DISTINCT judge FROM judgments ORDER BY judge")]


def qrels_of(judged: Iterable[Judged], rule: str) -> Qrels:
    """One grade per query and document, by a rule of RULES."""
    grades: dict[str, dict[str, list[int]]] = {}
    for query, document, _, grade in judged:
        grades.setdefault(query, {}).setdefault(document, []).append(grade)
    merge = RULES[rule]
    return {query: {id: merge(given) for id, given in of_query.items()} for query, of_query in grades.items()}


def write_qrels(qrels: Qrels, path: Path) -> None:
    """Write qrels: in BEIR's format as .tsv, in TREC's as .txt or .qrels. Raises CaiError for another suffix."""
    forms = {".tsv": "{}\t{}\t{}\n", ".txt": "{} 0 {} {}\n", ".qrels": "{} 0 {} {}\n"}
    if path.suffix not in forms:
        raise CaiError(f"{path}: its name should end with .txt or .qrels for TREC's format, or .tsv for BEIR's")
    lines = [forms[path.suffix].format(q, id, grade) for q, grades in qrels.items() for id, grade in grades.items()]
    write_text(path, "query-id\tcorpus-id\tscore\n" * (path.suffix == ".tsv") + "".join(lines))
