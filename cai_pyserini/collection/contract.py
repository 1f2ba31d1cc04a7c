"""What every collection offers, and the checks that every record passes on its way through."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Set
from typing import NamedTuple

from cai_pyserini.collection.ids import Ids
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.identity import digest, recipe
from cai_pyserini.core.jsonl import Start
from cai_pyserini.core.terminal import progress

logger = logging.getLogger(__name__)

Qrels = dict[str, dict[str, int]]  # query id -> document id -> relevance grade


class Document(NamedTuple):
    """A document: its id, and its text, the chosen fields joined by a space."""

    id: str
    contents: str


class Record(NamedTuple):
    """A document or a query as a reader finds it."""

    where: str  # file:line, for messages
    id: str
    title: str
    text: str


class Judgment(NamedTuple):
    """A line of qrels."""

    where: str
    query: str
    document: str
    grade: int


class Collection(ABC):
    """Documents, topics and qrels. Reading it checks it; a broken record raises CaiError with its place.

    `fields` are the fields of a document that are searched, joined by a space. `strict` refuses what is otherwise left
    out with a warning: judgments of unknown documents, and queries without text.
    """

    def __init__(self, name: str, fields: Iterable[str] = ("title", "text"), strict: bool = False):
        self.name = name
        self.fields = tuple(fields)
        self.strict = strict
        self._warned: set[str] = set()
        self._missing: dict[str, Set[str]] = {}  # split -> judged documents that the collection lacks

    def documents(self) -> Iterator[Document]:
        """The documents in the collection's order, streamed. Ids are unique and have no white space."""
        return (Document(record.id, self.contents_of(record)) for record in self.records())

    def records(self) -> Iterator[Record]:
        """As `documents`, with title and text apart."""
        seen = Ids()
        empty = count = 0
        first_empty = ""
        for record in self._documents():
            count += 1
            if seen.add(record.id):
                self._require_first(record)
            if not self.contents_of(record).strip():
                empty += 1
                first_empty = first_empty or record.where
            yield record
        if not count:
            raise CaiError(f"collection {self.name} has no documents ({self.place})")
        if empty:
            message = f"{empty} of {count} documents are empty (the first: {first_empty}) and cannot be found"
            self._warn("empty documents", message)

    def starts(self, places: Iterable[str]) -> dict[str, Start]:
        """Where to start reading for each of these places (Record.where); empty if that is only the beginning."""
        return {}

    def documents_from(self, start: Start | None) -> Iterator[Record]:
        """The documents from `start` on, or all, without the checks of `records`."""
        return self._documents()

    def contents_of(self, record: Record) -> str:
        """What is searched of a record: the chosen fields, joined by a space."""
        return " ".join(getattr(record, field) for field in self.fields)

    def contents(self, ids: Set[str], source: str) -> dict[str, str]:
        """The contents of these documents by id. Raises CaiError for an id, named by `source`, that is unknown."""
        documents = progress(self.documents(), self.size, "texts")
        contents = {document.id: document.contents for document in documents if document.id in ids}
        if unknown := sorted(ids - contents.keys()):
            raise CaiError(f"{source}: document {unknown[0]!r} is not in collection {self.name}")
        return contents

    def has_queries(self, split: str) -> bool:
        """Whether there are queries."""
        return True

    def has_qrels(self, split: str) -> bool:
        """Whether there are qrels."""
        return True

    def topics(self, split: str) -> dict[str, str]:
        """The queries with text that `split` judges, or all if there are no qrels: id -> text, in order."""
        grades = self._grades(split)
        texts = self._texts(split, grades)
        return self._with_text(texts, self._known(split, grades) or texts)

    def qrels(self, split: str) -> Qrels:
        """Relevance grades of the split's judged queries, also of those without text, for known documents."""
        grades = self._grades(split)
        if not grades:
            raise CaiError(f"collection {self.name} has no qrels ({self.place})")
        return self._known(split, grades)

    def streamed(self, split: str) -> tuple[Iterator[Record], Iterator[Judgment]]:
        """The queries and judgments of a split, unchecked, where there are too many for `topics` and `qrels`."""
        return self._queries(split), self._qrels(split)

    def missing(self, split: str) -> Set[str]:
        """The judged documents that the collection lacks, for which it is read once per split."""
        if split not in self._missing:
            unseen = _documents_in(self._grades(split))
            for document in progress(self.documents(), self.size, "judged documents"):
                unseen.discard(document.id)
                if not unseen:
                    break
            self.set_missing(split, unseen)
        return self._missing[split]

    def set_missing(self, split: str, missing: Set[str]) -> None:
        """Set which judged documents the collection lacks, so that `missing` need not read it. Warns of them; raises
        CaiError if the collection is strict, or lacks all of them."""
        if not missing:
            self._missing[split] = missing
            return
        grades = self._grades(split)
        first = next(judgment for judgment in self._qrels(split) if judgment.document in missing)
        lacking = (
            f"{first.where}: document {first.document!r}, judged for query {first.query!r}, is not in the collection "
            f"({len(missing):,} such documents)"
        )
        if self.strict:
            raise CaiError(f"{lacking}; remove such judgments or add the documents")
        if missing >= _documents_in(grades):
            raise CaiError(f"{lacking}, and neither is any other of the qrels: their ids have to be those of documents")
        self._missing[split] = missing
        known = self._known(split, grades)
        left_out = f"{_judgments_in(grades) - _judgments_in(known):,} of {_judgments_in(grades):,} judgments"
        if len(known) < len(grades):
            left_out += f" and {len(grades) - len(known):,} of {len(grades):,} queries, which have no others,"
        self._warn(f"missing {split}", f"{lacking}: {left_out} are left out")

    def check(self, split: str) -> dict[str, int]:
        """Read everything once and raise CaiError for the first broken record. Returns the counts that are not 0."""
        grades = self._grades(split)
        texts = self._texts(split, grades) if self.has_queries(split) else {}
        count = 0
        unseen = _documents_in(grades)
        for document in progress(self.documents(), self.size, "check"):
            count += 1
            unseen.discard(document.id)
        self.set_missing(split, unseen)
        known = self._known(split, grades)
        queries = known or texts
        if self.has_queries(split):
            self._with_text(texts, queries)
        counts = {
            "documents": count,
            "queries": len(queries),
            "judgments": _judgments_in(known),
            "empty_queries": sum(not texts[query] for query in queries),
            "left_out_queries": len(grades) - len(known),
            "left_out_judgments": _judgments_in(grades) - _judgments_in(known),
        }
        return {name: count for name, count in counts.items() if count}

    def fingerprint(self, component: str) -> str:
        """A digest of the contents of `documents`, `queries` or a split's qrels."""
        contents = {"contents": self._fingerprint(component)}
        return digest(recipe("collection", contents, component=component, fields=self.fields))

    @property
    def size(self) -> int | None:
        """The number of documents if it is known without reading them, for progress bars."""
        return None

    def _grades(self, split: str) -> Qrels:
        """All judgments of a split; empty only if there are no qrels."""
        grades: Qrels = {}
        if not self.has_qrels(split):
            return grades
        for where, query, document, grade in self._qrels(split):
            if grades.setdefault(query, {}).setdefault(document, grade) != grade:
                raise CaiError(f"{where}: document {document!r} was judged differently for query {query!r} above")
        if not grades:
            raise CaiError(f"collection {self.name} has no judgments for split {split!r} ({self.place})")
        return grades

    def _known(self, split: str, grades: Qrels) -> Qrels:
        """The judgments of documents that the collection has."""
        if not grades or not (missing := self.missing(split)):
            return grades
        known = {
            query: {document: grade for document, grade in judged.items() if document not in missing}
            for query, judged in grades.items()
        }
        return {query: judged for query, judged in known.items() if judged}

    def _texts(self, split: str, grades: Qrels) -> dict[str, str]:
        """The texts, which can be empty, of the judged queries, or of all queries if there are no grades."""
        if not self.has_queries(split):
            raise CaiError(f"collection {self.name} has no queries ({self.place})")
        texts: dict[str, str] = {}
        empty = []
        for record in self._queries(split):
            if record.id in texts:
                raise CaiError(f"{record.where}: query id {record.id!r} occurs twice; ids must be unique")
            if not grades or record.id in grades:
                texts[record.id] = " ".join(record.text.split())  # topics files keep a query in one line
                empty += [] if texts[record.id] else [record]
        if unknown := next((id for id in grades if id not in texts), None):
            where = next(judgment.where for judgment in self._qrels(split) if judgment.query == unknown)
            raise CaiError(f"{where}: query {unknown!r} is in the qrels but not among the queries")
        if empty:
            lacking = f"{empty[0].where}: query {empty[0].id!r} has no text ({len(empty):,} such queries)"
            if self.strict:
                raise CaiError(f"{lacking}; remove such queries and their qrels")
            self._warn(f"empty queries {split}", f"{lacking}: they are not searched for, and count as 0")
        return texts

    def _with_text(self, texts: dict[str, str], ids: Container[str]) -> dict[str, str]:
        """The queries with these ids that have text. Raises CaiError if none has."""
        topics = {id: text for id, text in texts.items() if text and id in ids}
        if not topics:
            raise CaiError(f"collection {self.name} has no queries with text ({self.place})")
        return topics

    def _warn(self, kind: str, message: str) -> None:
        """Log a warning, only one of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", message)

    def _require_first(self, record: Record) -> None:
        """Raise CaiError unless `record` is the first with its id: two ids can, very rarely, have the same hash."""
        first = next(other for other in self._documents() if other.id == record.id)
        if first.where != record.where:
            raise CaiError(f"{record.where}: document id {record.id!r} occurs twice (first: {first.where})")

    @property
    @abstractmethod
    def place(self) -> str: ...

    @abstractmethod
    def _documents(self) -> Iterator[Record]: ...

    @abstractmethod
    def _queries(self, split: str) -> Iterator[Record]: ...

    @abstractmethod
    def _qrels(self, split: str) -> Iterator[Judgment]: ...

    @abstractmethod
    def _fingerprint(self, component: str) -> object: ...


def checked_id(value: object, where: str) -> str:
    """`value`, a string or an integer, as an id. Raises CaiError if TREC runs or vectors on disk cannot hold it."""
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise CaiError(f"{where}: the id {value!r} is not a string or an integer")
    id = "" if value is None else str(value)
    if id.split() != [id]:
        raise CaiError(f"{where}: the id {value!r} is empty or has white space, which TREC runs cannot hold")
    if "\0" in id:
        raise CaiError(f"{where}: the id {value!r} has a NUL character, which vectors on disk cannot hold; remove it")
    return id


def _documents_in(qrels: Qrels) -> set[str]:
    return {document for judged in qrels.values() for document in judged}


def _judgments_in(qrels: Qrels) -> int:
    return sum(map(len, qrels.values()))
