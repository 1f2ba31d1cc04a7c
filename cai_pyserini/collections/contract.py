"""The interface of collections, and the checks of every record that is read."""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from cai_pyserini.collections.languages import LANGUAGE, label_of, language_of, languages_of
from cai_pyserini.collections.passages import WORDS, passages
from cai_pyserini.collections.values import SeenIds, plain, whole_number
from cai_pyserini.core.config import ENGLISH, PASSAGE, Language, document_of, languages_in
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.identity import digest, recipe
from cai_pyserini.core.metadata import Inexact, Kind, Metadata, checked
from cai_pyserini.core.terminal import progress
from cai_pyserini.core.text import normalized

logger = logging.getLogger(__name__)

Qrels = dict[str, dict[str, int]]  # query id -> document id -> relevance grade

PAGES, PAGE = "pages", "page"  # metadata: pages of a document, with form feeds between them; where a passage begins
FOLDER = "folder"  # metadata: the folders that a file is in, from the outermost on, with slashes between them
OF_PYTHON = ".documents.jsonl"  # ending of a file of documents that a Python program gave, whose errors name these
MAX_GRADE = 10_000  # trec_eval's memory and time grow with the largest grade


class Document(NamedTuple):
    """The id of a document, and its searched fields, joined by a space."""

    id: str
    contents: str


class Record(NamedTuple):
    """A document or query with its place in a file."""

    where: str  # file:line, for messages
    id: str
    title: str
    text: str
    metadata: Mapping[str, Any] = {}  # of type Metadata after the check
    start: int = 0  # of a passage: where it begins in the text of its document, in characters
    passages: int = 0  # of its document; of a whole document 0
    names: str = ""  # words that BM25 finds it by, beside those of its text; of passages, only the first has them
    language: str = ""  # in a collection of several languages


class Judgment(NamedTuple):
    """A line of qrels."""

    where: str
    query: str
    document: str
    grade: int


class Collection(ABC):
    """Documents, topics and qrels, normalized (core.text) and checked while they are read; a broken record raises
    CaiError with its place.

    The searched text of a document is its `fields`, joined by a space; `metadata` has the types of the fields that
    searches can filter by. A `strict` collection raises CaiError for records that are otherwise skipped with a warning:
    judgments of unknown documents, queries without text, and metadata of another type.
    """

    def __init__(self, name: str, place: str, fields: Iterable[str] = ("title", "text"), strict: bool = False):
        self.name = name
        self.place = place  # for messages
        self.fields = tuple(fields)
        self.strict = strict
        self.language: Language = ENGLISH
        self.glossary: Path | None = None  # see collections.glossary
        self._metadata: dict[str, Kind] = {}
        self._passages: tuple[int, int] | None = None  # length and overlap, in words
        self._warned: set[str] = set()
        self._missing: dict[str, Set[str]] = {}  # split -> judged documents that the collection lacks

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of the metadata by name; with the language of documents in several."""
        own: dict[str, Kind] = {LANGUAGE: "string"} if len(languages_in(self.language)) > 1 else {}
        return own | self._metadata

    @property
    def has_passages(self) -> bool:
        return self._passages is not None

    def in_passages(self, words: int, overlap: int) -> Self:
        """This collection with its documents cut into passages of about `words` words (collections.passages), each
        after the document's title, with the ids `document#0`, `document#1`, … Topics and qrels are unchanged, because a
        run of passages is folded to documents, each with the score of its best passage (MaxP, Dai & Callan 2019)."""
        split = copy(self)
        split._passages = (words, overlap)
        return split

    def documents(self) -> Iterator[Document]:
        """Stream the documents in the collection's order. Ids are unique and have no white space."""
        return (Document(record.id, self.contents_of(record)) for record in self.records())

    def records(self, whole: bool = False) -> Iterator[Record]:
        """Stream the documents, or `whole` documents instead of passages, with separate title, text and metadata."""
        read = self._normalized_documents if whole else self._units
        seen = SeenIds()
        count = 0
        empty: list[str] = []
        wrong: list[str] = []
        lacking = set(self.metadata) - ({PAGE} if whole else set())
        for record in read():
            count += 1
            if seen.add(record.id):  # very rarely, the hash of another id
                first = next(other for other in read() if other.id == record.id)
                if first.where != record.where:
                    raise CaiError(f"{record.where}: document id {record.id!r} occurs twice (first: {first.where})")
            if not self.contents_of(record).strip():
                empty.append(record.where)
            if self.metadata:
                record = record._replace(
                    metadata=typed(record.metadata, self.metadata, record.where, wrong, self.strict)
                )
                lacking -= record.metadata.keys()
            yield record
        if not count:
            raise CaiError(f"collection {self.name} has no documents ({self.place})")
        if empty:
            message = f"{len(empty)} of {count} documents are empty (the first: {empty[0]}) and cannot be found"
            self._warn_once("empty documents", message)
        if wrong:
            self._warn_once("metadata", metadata_left_out(wrong))
        if lacking and not self.place.endswith(OF_PYTHON):  # whose last document with a field can be deleted
            raise CaiError(f"collection {self.name}: no document has metadata {min(lacking)!r}; correct its name")

    def _normalized_documents(self) -> Iterator[Record]:
        documents, languages = map(_normalized, self._documents()), languages_in(self.language)
        if len(languages) == 1:
            return documents
        return (self._in_its_language(document, languages) for document in documents)

    def _in_its_language(self, document: Record, languages: list[str]) -> Record:
        """A document with its language, which is its metadata too if they have none."""
        is_missing = self.metadata.get(LANGUAGE) == "string" and not document.metadata.get(LANGUAGE)
        metadata = {**document.metadata, LANGUAGE: label_of(document, languages)} if is_missing else document.metadata
        return document._replace(language=language_of(document, languages), metadata=metadata)

    def _units(self) -> Iterator[Record]:
        """The documents or passages, without the checks of `records`."""
        if self._passages is None:
            yield from self._normalized_documents()
            return
        for document in self._normalized_documents():
            metadata = document.metadata
            pages = metadata.get(PAGES)
            is_paged = self.metadata.get(PAGE) == "number" and isinstance(pages, int) and pages > 0
            found = passages(document.text, *self._passages, document.language or self.language, is_paged)
            for number, (start, end, page) in enumerate(found):
                yield document._replace(
                    id=f"{document.id}{PASSAGE}{number}",
                    text=document.text[start:end],
                    metadata={**metadata, PAGE: page} if is_paged else metadata,
                    start=start,
                    passages=len(found),
                    names="" if number else document.names,
                )

    def document_of(self, id: str) -> str:
        """The id of the document that has this id or contains the passage with this id."""
        return document_of(id) if self._passages else id

    def contents_of(self, record: Record) -> str:
        """The searched text of a record: its chosen fields, joined by a space."""
        return " ".join(getattr(record, field) for field in self.fields)

    def beginning(self, count: int) -> list[str]:
        """The texts of the first `count` whole documents, unchecked."""
        return [self.contents_of(record) for record in islice(self._normalized_documents(), count)]

    def languages(self) -> list[str]:
        """The languages of the documents, unchecked, most frequent first."""
        return languages_of(self._normalized_documents())

    def contents(self, ids: Set[str], source: str) -> dict[str, str]:
        """The texts of these whole documents by id. Raises CaiError for an unknown id, with `source` as its place."""
        contents = {record.id: self.contents_of(record) for record in self._whole_records("texts") if record.id in ids}
        if unknown := sorted(ids - contents.keys()):
            raise CaiError(
                f"{source}: document {unknown[0]!r} is not in collection {self.name}, whose ids are such as "
                f"{next(self.records(whole=True)).id!r} ({len(unknown):,} such documents)"
            )
        return contents

    def has_queries(self, split: str) -> bool:
        return True

    def has_qrels(self, split: str) -> bool:
        return True

    def topics(self, split: str) -> dict[str, str]:
        """The texts by id, in order, of the queries that `split` judges, or of all without qrels, if they have text."""
        grades = self._grades(split)
        texts = self._texts(split, grades)
        return self._with_text(texts, self._known(split, grades) or texts)

    def qrels(self, split: str) -> Qrels:
        """Relevance grades of known documents for the split's judged queries, including queries without text."""
        grades = self._grades(split)
        if not grades:
            raise CaiError(f"collection {self.name} has no qrels ({self.place})")
        return self._known(split, grades)

    def streamed(self, split: str) -> tuple[Iterator[Record], Iterator[Judgment]]:
        """The queries and judgments of a split, unchecked, if there are too many for `topics` and `qrels`."""
        return map(_normalized, self._queries(split)), self._qrels(split)

    def missing(self, split: str) -> Set[str]:
        """The judged documents that the collection lacks; reads the collection once per split."""
        if split not in self._missing:
            self.unknown_documents(split, frozenset())
        return self._missing[split]

    def unknown_documents(self, split: str, ids: Set[str]) -> Set[str]:
        """The ids among these that no document has. Reads the documents, and also sets `missing` of `split`."""
        judged = _documents_in(self._grades(split))
        unseen = judged | ids
        for document in self._whole_records("look for documents"):
            unseen.discard(document.id)
            if not unseen:
                break
        self.set_missing(split, judged & unseen)
        return ids & unseen

    def set_missing(self, split: str, missing: Set[str]) -> None:
        """Set the judged documents that the collection lacks, so that `missing` need not read it. Warns of them; raises
        CaiError if the collection is strict, or lacks all judged documents."""
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
            raise CaiError(f"{lacking}, and neither is any other judged document: qrels must have ids of documents")
        self._missing[split] = missing
        known = self._known(split, grades)
        left_out = f"{_judgments_in(grades) - _judgments_in(known):,} of {_judgments_in(grades):,} judgments"
        if len(known) < len(grades):
            left_out += f" and {len(grades) - len(known):,} of {len(grades):,} queries, which have no other judgments,"
        self._warn_once(f"missing {split}", f"{lacking}: {left_out} are left out")

    def check(self, split: str) -> dict[str, int]:
        """Read everything once, and return the counts that are not 0. Raises CaiError for the first broken record."""
        grades = self._grades(split)
        texts = self._texts(split, grades) if self.has_queries(split) else {}
        count = 0
        unseen = _documents_in(grades)
        for document in self._whole_records("check"):
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
        if self._passages:
            counts["passages"] = sum(1 for _ in progress(self._units(), None, "passages", "passages"))
        return {name: count for name, count in counts.items() if count}

    def fingerprint(self, component: str) -> str:
        """A digest of `documents`, `queries` or a split's qrels. If documents have metadata, their digest covers only
        ids, titles, texts and languages, so that they are not encoded again when the metadata changes."""

        are_documents, settings = component == "documents", {"component": component, "fields": self.fields}
        of_texts = are_documents and (self.metadata or len(languages_in(self.language)) > 1)
        contents = self._texts_digest if of_texts else self._fingerprint(component)
        whole = self._identity(contents, **settings)
        if not are_documents or self._passages is None:
            return whole
        pieces = [self.language] if self.language in WORDS else []
        return self._identity([whole, *self._passages, "sentences", *pieces], **settings)

    @property
    def metadata_fingerprint(self) -> str | None:
        """A digest of everything that determines the metadata; None if the collection has none."""
        return self._identity(self._fingerprint("documents"), metadata=self.metadata) if self.metadata else None

    def _identity(self, contents: object, **settings: object) -> str:
        """A digest of contents, of settings that shape what is read of them, and of the code that reads them."""
        reader = type(self).__module__.rpartition(".")[2]
        return digest(recipe("collection", {"contents": contents}, reader, **settings))

    @property
    def documents_digest(self) -> list[str | None]:
        """Digests of the document files and, if there is metadata, of the texts alone. See identity.same_documents."""
        return [digest(self._fingerprint("documents")), self._texts_digest if self.metadata else None]

    @cached_property
    def _texts_digest(self) -> str:
        sha256 = hashlib.sha256()
        for record in progress(self._normalized_documents(), self.whole_size, "fingerprint"):
            language = [record.language] if record.language else []
            sha256.update(json.dumps([record.id, record.title, record.text, *language]).encode())
        return sha256.hexdigest()

    @property
    def size(self) -> int | None:
        """The number of documents or passages for progress bars; None if it requires reading them."""
        return None if self._passages else self.whole_size

    def _whole_records(self, task: str) -> Iterable[Record]:
        """The whole documents, with a progress bar."""
        return progress(self.records(whole=True), self.whole_size, task)

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
        """The texts, some perhaps empty, of the judged queries, or of all queries if there are no grades."""
        if not self.has_queries(split):
            raise CaiError(f"collection {self.name} has no queries ({self.place})")
        texts: dict[str, str] = {}
        empty = []
        for record in map(_normalized, self._queries(split)):
            if record.id in texts:
                raise CaiError(f"{record.where}: query id {record.id!r} occurs twice; ids must be unique")
            if not grades or record.id in grades:
                texts[record.id] = " ".join(record.text.split())  # topics files need a query on one line
                if not texts[record.id]:
                    empty.append(record)
        if unknown := next((id for id in grades if id not in texts), None):
            where = next(judgment.where for judgment in self._qrels(split) if judgment.query == unknown)
            remedy = "add it to them, or remove its judgments"
            raise CaiError(f"{where}: query {unknown!r} is in the qrels but not among the queries: {remedy}")
        if empty:
            lacking = f"{empty[0].where}: query {empty[0].id!r} has no text ({len(empty):,} such queries)"
            if self.strict:
                raise CaiError(f"{lacking}; remove such queries and their qrels")
            self._warn_once(f"empty queries {split}", f"{lacking}: they are not searched for, and count as 0")
        return texts

    def _with_text(self, texts: dict[str, str], ids: Container[str]) -> dict[str, str]:
        """The queries with these ids and with text. Raises CaiError if there is none."""
        topics = {id: text for id, text in texts.items() if text and id in ids}
        if not topics:
            raise CaiError(f"collection {self.name} has no queries with text ({self.place})")
        return topics

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", message)

    @property
    @abstractmethod
    def whole_size(self) -> int | None:
        """The number of whole documents; None if it requires reading them."""

    @abstractmethod
    def _documents(self) -> Iterator[Record]: ...

    @abstractmethod
    def _queries(self, split: str) -> Iterator[Record]: ...

    @abstractmethod
    def _qrels(self, split: str) -> Iterator[Judgment]: ...

    @abstractmethod
    def _fingerprint(self, component: str) -> object: ...


def _normalized(record: Record) -> Record:
    return record._replace(title=normalized(record.title), text=normalized(record.text))


def typed(raw: Mapping[str, Any], kinds: Mapping[str, Kind], where: str, wrong: list[str], strict: bool) -> Metadata:
    """The metadata of a document with the declared types; messages for other values are appended to `wrong`. Raises
    CaiError for them if `strict`, and for a number that would be rounded."""
    values = {}
    for name, kind in kinds.items():
        try:
            if (value := checked(raw.get(name), kind)) is not None:
                values[name] = value
        except ValueError as error:
            wrong.append(f"{where}: metadata {name!r} should be {error}, not {str(raw[name])[:100]!r}")
            if strict or isinstance(error, Inexact):
                raise CaiError(wrong[-1]) from None
    return values


def metadata_left_out(wrong: Sequence[str]) -> str:
    """A warning for the messages of `typed`."""
    return f"{wrong[0]}: {len(wrong):,} values of metadata are left out"


def checked_grade(value: object, where: str) -> int:
    """A grade for measures; negative grades, as of spam, become 0, not relevant. Raises CaiError for a value that is
    not an integer, and above MAX_GRADE."""
    if (grade := whole_number(value)) is None:
        raise CaiError(f"{where}: the grade {plain(value)!r} is not an integer")
    if grade > MAX_GRADE:
        raise CaiError(f"{where}: the grade {grade} is too large: grades are at most {MAX_GRADE:,}; scale them down")
    return max(grade, 0)


def _documents_in(qrels: Qrels) -> set[str]:
    return {document for judged in qrels.values() for document in judged}


def _judgments_in(qrels: Qrels) -> int:
    return sum(map(len, qrels.values()))
