"""Relevance judgments in SQLite, and qrels from them.

The table `judgments` is append-only: a row is a grade, or NULL for a skipped document, or undoes an earlier row. The
view `current` has, for each query, document, their texts and judge, the last row that is not undone. A grade counts
only while query and document have the texts that were judged. A database has one rubric.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from statistics import multimode
from typing import Any, NamedTuple

from cai_pyserini.collections.contract import Qrels
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.lock import alone_in
from cai_pyserini.indexes.searcher import Stored

SCHEMA = """
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS rubric (grade INTEGER PRIMARY KEY, meaning TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS judgments (
    number INTEGER PRIMARY KEY,
    query TEXT NOT NULL,
    document TEXT NOT NULL,
    judge TEXT NOT NULL,
    grade INTEGER,
    time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    undoes INTEGER REFERENCES judgments,
    query_text TEXT NOT NULL,
    document_text TEXT NOT NULL
) STRICT;
CREATE VIEW IF NOT EXISTS current AS
    SELECT max(number) AS number, query, document, judge, grade, time, query_text, document_text FROM judgments
    WHERE undoes IS NULL AND number NOT IN (SELECT undoes FROM judgments WHERE undoes IS NOT NULL)
    GROUP BY query, document, judge, query_text, document_text;
COMMIT;
"""
COUNTED = """
CREATE TEMP VIEW counted AS SELECT * FROM current WHERE counts(query, document, query_text, document_text)
"""  # `counts` is set by Judgments
MODEL = "model: "  # prefix of language-model judges' names

Grades = dict[str, dict[str, int | None]]  # query -> document -> grade of one judge; None: skipped


class Judgment(NamedTuple):
    """A judge's grade of a document for a query."""

    query: str
    document: str
    judge: str
    grade: int
    texts: str = ""  # digest of the judged texts


class NotSaved(CaiError):
    """A judgment that could not be written, and does not count."""


class Judgments:
    """A database of judgments, created if missing when a `rubric`, the meaning of each grade, is passed.

    All grades count until `limit_to` is called. Several processes can use a database on a local file system. Raises
    CaiError for a file that is no such database or is of another version, and leaves it unchanged.
    """

    def __init__(self, path: Path, rubric: Sequence[str] | None = None):
        self.path = path
        if rubric is None and not path.is_file():
            raise CaiError(f"no file {path}: `cai-pyserini judge serve` makes it")
        try:
            self._db = sqlite3.connect(path, timeout=30, autocommit=True, check_same_thread=False)
            if rubric is not None and not self._db.execute("SELECT 1 FROM sqlite_schema").fetchone():
                with alone_in(path.parent):
                    self._db.executescript(SCHEMA)
            self._db.execute("SELECT undoes, judgments.query_text FROM judgments, current USING (number) LIMIT 1")
            if rubric is not None:
                self._db.execute(
                    "INSERT INTO rubric SELECT key, value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM rubric)",
                    [json.dumps(rubric)],
                )
            rows = self._db.execute("SELECT meaning FROM rubric ORDER BY grade")
            self.rubric: list[str] = [meaning for (meaning,) in rows]
        except sqlite3.Error as error:
            raise CaiError(f"{path} cannot be used as a database of judgments: {error}") from None
        self.texts: Callable[[str, str], tuple[str, str]] = lambda query, document: ("", "")
        self._db.create_function("counts", 4, lambda *row: True)
        self._db.execute(COUNTED)

    def limit_to(self, topics: Mapping[str, str], stored: Callable[[str], Stored | None]) -> None:
        """Count only grades of queries and documents whose texts have not changed since."""
        queries = {id: _digest(text) for id, text in topics.items()}

        @cache
        def document_digest(id: str) -> str:
            document = stored(id)
            return _digest(document.contents) if document else ""

        def counts(query: str, document: str, query_text: str, document_text: str) -> bool:
            return queries.get(query) == query_text and document_digest(document) == document_text

        self.texts = lambda query, document: (queries.get(query, ""), document_digest(document))
        self._db.create_function("counts", 4, counts)

    def add(self, query: str, document: str, judge: str, grade: int | None) -> None:
        """Record a grade of the current texts, None for a skip, unless it is the current grade. Raises NotSaved."""
        row = query, document, judge, grade
        self._write(
            "INSERT INTO judgments (query, document, judge, grade, query_text, document_text) "
            "SELECT ?, ?, ?, ?, ?, ? WHERE NOT EXISTS "
            "(SELECT 1 FROM counted WHERE query = ? AND document = ? AND judge = ? AND grade IS ?)",
            [*row, *self.texts(query, document), *row],
        )

    def undo(self, judge: str) -> tuple[str, str] | None:
        """Undo the last judgment of a judge that counts, and return its query and document; None if there is none.
        Raises NotSaved."""
        return self._write(
            "INSERT INTO judgments (query, document, judge, undoes, query_text, document_text) "
            "SELECT query, document, judge, number, query_text, document_text FROM counted "
            "WHERE judge = ? ORDER BY number DESC LIMIT 1 RETURNING query, document",
            [judge],
        )

    def _write(self, sql: str, parameters: Sequence[Any]) -> Any:
        """Write a row, wholly or not at all, and return what the statement returns of it."""
        try:
            return self._db.execute(sql, parameters).fetchone()
        except sqlite3.OperationalError as error:
            remedy = "make room, or let this program write there, and judge it again"
            raise NotSaved(f"not saved: {self.path} cannot be written ({error}); {remedy}") from None

    def of(self, judge: str) -> Grades:
        """The grades of a judge, oldest first."""
        grades: Grades = {}
        rows = self._db.execute("SELECT query, document, grade FROM counted WHERE judge = ? ORDER BY number", [judge])
        for query, document, grade in rows:
            grades.setdefault(query, {})[document] = grade
        return grades

    def all(self, judges: Sequence[str] = ()) -> list[Judgment]:
        """The grades of these judges, by default of all, oldest first. Raises CaiError for an unknown judge."""
        known = [judge for (judge,) in self._db.execute("SELECT DISTINCT judge FROM judgments ORDER BY judge")]
        if unknown := next((judge for judge in judges if judge not in known), None):
            hint = did_you_mean(unknown, known) or f"; its judges: {', '.join(known)}"
            raise CaiError(f"there is no judge {unknown!r} in the database{hint}")
        rows = self._db.execute(
            "SELECT query, document, judge, grade, query_text || document_text FROM counted "
            "WHERE grade IS NOT NULL ORDER BY number"
        )
        return [found for row in rows if (found := Judgment(*row)).judge in (judges or known)]

    def counts(self) -> Counter[str]:
        """The number of grades of each query."""
        rows = self._db.execute("SELECT query, count(*) FROM counted WHERE grade IS NOT NULL GROUP BY query")
        return Counter(dict(rows.fetchall()))

    def outdated(self, judge: str = "") -> set[tuple[str, str, str]]:
        """Query, document and judge of grades that do not count and have no successor that does; by default, of all
        judges."""
        rows = self._db.execute(
            "SELECT query, document, judge FROM current WHERE ? IN (judge, '') GROUP BY query, document, judge "
            "HAVING max(grade) NOT NULL AND NOT max(counts(query, document, query_text, document_text))",
            [judge],
        )
        return {*rows}

    def left_out(self) -> str | None:
        """A message with the number of grades that do not count; None if all do."""
        if count := len(self.outdated()):
            return f"{count:,} grades do not count: query or document had another text, or is gone"
        return None

    def documents(self) -> set[str]:
        """All documents ever judged."""
        return {document for (document,) in self._db.execute("SELECT DISTINCT document FROM judgments")}

    def judges(self) -> list[str]:
        """The people who have judged."""
        rows = self._db.execute("SELECT DISTINCT judge FROM judgments ORDER BY judge")
        return [judge for (judge,) in rows if not judge.startswith(MODEL)]


def _digest(text: str) -> str:
    """A digest of a text that ignores differences in white space."""
    return blake2b(" ".join(text.split()).encode(), digest_size=16).hexdigest()


def qrels_of(judged: Iterable[Judgment]) -> Qrels:
    """Merge the grades of each query and document into that of the majority, of equally frequent ones the lowest.
    Grades of language models count only where no person has judged."""
    grades: dict[tuple[str, str], list[int]] = {}
    by_models: dict[tuple[str, str], list[int]] = {}
    for query, document, judge, grade, _ in judged:
        of_kind = by_models if judge.startswith(MODEL) else grades
        of_kind.setdefault((query, document), []).append(grade)
    qrels: Qrels = {}
    for (query, document), several in (by_models | grades).items():
        qrels.setdefault(query, {})[document] = min(multimode(several))
    return qrels


def write_qrels(qrels: Qrels, path: Path) -> None:
    """Write qrels: in BEIR's format as .tsv, in TREC's as .txt or .qrels. Raises CaiError for another suffix, and for a
    file that this command has not made, such as the qrels of the collection."""
    is_beir = path.suffix == ".tsv"
    if not is_beir and path.suffix not in (".txt", ".qrels"):
        raise CaiError(f"{path}: its name should end with .txt or .qrels for TREC's format, or .tsv for BEIR's")
    text = "query-id\tcorpus-id\tscore\n" if is_beir else ""
    for query, grades in qrels.items():
        for document, grade in grades.items():
            text += f"{query}\t{document}\t{grade}\n" if is_beir else f"{query} 0 {document} {grade}\n"

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    artifact.make(path, artifact.recipe("judge export", {"qrels": artifact.digest(text)}), write, folder=False)
