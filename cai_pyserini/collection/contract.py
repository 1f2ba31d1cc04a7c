"""What every collection offers, and the checks that every record passes on its way through."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from cai_pyserini.collection.ids import Ids
from cai_pyserini.core.artifact import digest
from cai_pyserini.core.errors import CaiError
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

    `fields` are the fields of a document that are searched, in order, joined by a space.
    """

    def __init__(self, name: str, fields: Iterable[str] = ("title", "text")):
        self.name = name
        self.fields = tuple(fields)
        self._warned = False

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
        if empty and not self._warned:
            self._warned = True
            logger.warning(
                "%d of %d documents are empty (the first: %s) and cannot be found", empty, count, first_empty
            )

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

    def topics(self, split: str) -> dict[str, str]:
        """The queries that `split` judges: id -> text, in the collection's order."""
        judged = self.qrels(split)
        topics: dict[str, str] = {}
        for record in self._queries(split):
            if record.id in topics:
                raise CaiError(f"{record.where}: query id {record.id!r} occurs twice; ids must be unique")
            if record.id not in judged:
                continue
            if not record.text.strip():
                raise CaiError(f"{record.where}: query {record.id!r} has no text; remove it and its qrels")
            topics[record.id] = " ".join(record.text.split())  # topics files keep a query in one line
        if unknown := next((id for id in judged if id not in topics), None):
            where = next(judgment.where for judgment in self._qrels(split) if judgment.query == unknown)
            raise CaiError(f"{where}: query {unknown!r} is in the qrels but not among the queries")
        return topics

    def qrels(self, split: str) -> Qrels:
        """Relevance grades of the split's judged queries."""
        qrels: Qrels = {}
        for where, query, document, grade in self._qrels(split):
            if qrels.setdefault(query, {}).setdefault(document, grade) != grade:
                raise CaiError(f"{where}: document {document!r} was judged differently for query {query!r} above")
        if not qrels:
            raise CaiError(f"collection {self.name} has no judgments for split {split!r} ({self.place})")
        return qrels

    def check(self, split: str) -> dict[str, int]:
        """Read everything once and raise CaiError for the first broken record. Returns counts."""
        topics, qrels = self.topics(split), self.qrels(split)
        missing = {document for judgments in qrels.values() for document in judgments}
        count = 0
        for document in progress(self.documents(), self.size, "check"):
            count += 1
            missing.discard(document.id)
        if missing:
            judgment = next(j for j in self._qrels(split) if j.document in missing)
            raise CaiError(
                f"{judgment.where}: document {judgment.document!r}, judged for query {judgment.query!r}, is not in the "
                f"collection ({len(missing)} such documents); remove such judgments or add the documents"
            )
        return {"documents": count, "queries": len(topics), "judgments": sum(map(len, qrels.values()))}

    def fingerprint(self, component: str) -> str:
        """A digest of the contents of `documents`, `queries` or a split's qrels."""
        return digest({"component": component, "contents": self._fingerprint(component), "fields": self.fields})

    @property
    def size(self) -> int | None:
        """The number of documents if it is known without reading them, for progress bars."""
        return None

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
    """`value` as an id. Raises CaiError where it is empty or has white space, which TREC runs cannot hold."""
    id = str(value) if isinstance(value, str | int) else ""
    if not id or id.split() != [id]:
        raise CaiError(f"{where}: the id {value!r} is empty or has white space, which TREC runs cannot hold")
    return id
