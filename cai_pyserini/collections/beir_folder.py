"""Collections in files: a folder in BEIR's layout, a folder of Pyserini's JSONL, or one file of documents."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cai_pyserini.collections.contract import OF_PYTHON, Collection, Judgment, Record, checked_grade
from cai_pyserini.collections.records import QRELS_NAMES, SUFFIXES, TREC, Columns, count_records, kind, read_records
from cai_pyserini.collections.values import checked_id
from cai_pyserini.core import jsonl
from cai_pyserini.core.artifact import file_digest, require_if_ours
from cai_pyserini.core.config import ColumnNames
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Kind

LINES = (".tsv", ".tsv.gz", ".txt", ".txt.gz", ".qrels", ".qrels.gz")  # qrels with columns by position
TABLES = tuple(suffix for suffix in SUFFIXES if suffix not in LINES)  # qrels with named columns
QRELS, QUERIES = (*LINES, *TABLES), (*SUFFIXES, *TREC)
SHARDS = (".jsonl", ".jsonl.gz", ".parquet")  # document files in a folder without corpus.*
NOT_DOCUMENTS = re.compile(r"quer|topic|qrel", re.IGNORECASE)  # file names that do not suggest documents
REMEDY = (
    "a folder in BEIR's layout has corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv; docs/how-to/collections.md has "
    "other forms"
)
logger = logging.getLogger(__name__)


class BeirFolder(Collection):
    """A folder with corpus.*, queries.* and qrels/SPLIT.*, a folder of documents in *.jsonl, or a file of documents.
    Queries and qrels may be missing. `columns` and `query_columns` name the columns of id, title and text if they are
    not in records.NAMES. Metadata values are columns of the documents, or keys of their object `metadata`."""

    def __init__(
        self,
        path: Path,
        name: str,
        fields: Iterable[str] = ("title", "text"),
        *,
        columns: ColumnNames | None = None,
        query_columns: ColumnNames | None = None,
        strict: bool = False,
        metadata: Mapping[str, Kind] | None = None,
    ):
        super().__init__(name, str(path), fields, strict)
        if not path.exists():
            raise CaiError(f"no collection file or folder {path}")
        require_if_ours(path)
        if path.is_file() and not path.name.endswith(SUFFIXES):
            raise CaiError(f"{path}: its name should end with one of {', '.join(SUFFIXES)}")
        self.path = path
        self._metadata = dict(metadata or {})
        self._columns = {
            "documents": Columns(columns, metadata=self._metadata),
            "queries": Columns(query_columns, "query_columns"),
        }

    @cached_property
    def whole_size(self) -> int | None:
        counts = [count_records(path) for path in self._files("documents")]
        return None if None in counts else sum(filter(None, counts))

    def has_queries(self, split: str) -> bool:
        return any(self.path.glob("queries.*")) or self.has_qrels(split)

    def has_qrels(self, split: str) -> bool:
        return any(self.path.glob("qrels.*")) or any(self.path.glob("qrels/[!.]*"))

    def _documents(self) -> Iterator[Record]:
        return self._records("documents")

    def _queries(self, split: str) -> Iterator[Record]:
        return self._records("queries")

    def _records(self, component: str) -> Iterator[Record]:
        for path in self._files(component):
            for number, (where, values) in enumerate(read_records(path, self._columns[component])):
                if path.name.endswith(OF_PYTHON):
                    where = f"document {number}, counted from 0"
                title, text = ("" if value is None else value for value in (values.get("title"), values["text"]))
                if not isinstance(title, str) or not isinstance(text, str):
                    raise CaiError(f"{where}: title and text must be strings")
                yield Record(where, checked_id(values["id"], where), title, text, values.get("metadata", {}))

    def _qrels(self, split: str) -> Iterator[Judgment]:
        return read_judgments(self._qrels_file(split))

    def _fingerprint(self, component: str) -> object:
        if component in self._columns:
            if component == "queries" and not self.has_queries(component):
                return None
            files = [(kind(path), file_digest(path)) for path in self._files(component)]
            return [self._columns[component].mapping, *files]
        if not self.has_qrels(component):
            return None
        path = self._qrels_file(component)
        return [kind(path), file_digest(path)] if path.name.endswith(TABLES) else file_digest(path)

    def _files(self, component: str) -> Sequence[Path]:
        """The document files, or the query file."""
        if component == "documents":
            return self._document_files
        if found := _find_files(self.path, "queries", QUERIES):
            return found
        others = [path for path in self.path.glob("[!.]*") if re.search("quer|topic", path.name, re.IGNORECASE)]
        raise CaiError(f"no file {self.path / 'queries'}.jsonl{_misnamed(others, 'queries', QUERIES)}: {REMEDY}")

    @cached_property
    def _document_files(self) -> Sequence[Path]:
        """The document files. Logs the role of every file. Raises CaiError if a file may or may not have documents: a
        second corpus*; or, without corpus.*, one that is not among SHARDS, or is named like queries or qrels."""
        if self.path.is_file():
            return [self.path]
        paths = sorted(path for path in self.path.glob("[!.]*") if path.name != "manifest.json")
        records = [path for path in paths if path.name.endswith(SUFFIXES) and not path.name.startswith("queries.")]
        if files := _find_files(self.path, "corpus", SUFFIXES):
            unclear = [path for path in records if path not in files and path.name.lower().startswith("corpus")]
        else:
            files = [path for path in records if path.name.endswith(SHARDS)]
            unclear = [path for path in records if path not in files or NOT_DOCUMENTS.search(path.name)]
        if not files:
            raise CaiError(f"no file {self.path / 'corpus'}.jsonl: {REMEDY}")
        if unclear:
            raise CaiError(f"{unclear[0]}: does it have documents? Move it away or merge it with those: {REMEDY}")
        queries = _find_files(self.path, "queries", QUERIES)
        roles = {"documents": files, "queries": queries, "qrels": self._qrels_files}
        roles["not read"] = [path for path in paths if path not in [*files, *queries, self.path / "qrels"]]
        listed = (f"{role}: {_names(paths)}" for role, paths in roles.items() if paths)
        log_once(logging.INFO, f"{self.path}: {'; '.join(listed)}")
        return files

    @property
    def _qrels_files(self) -> Sequence[Path]:
        return [path for path in (self.path / "qrels").glob("[!.]*") if path.name.endswith(QRELS)]

    def _qrels_file(self, split: str) -> Path:
        if found := _find_files(self.path / "qrels", split, QRELS):
            return found[0]
        splits = {next(path.name.removesuffix(s) for s in QRELS if path.name.endswith(s)) for path in self._qrels_files}
        others = [*self.path.glob("qrels.*"), *self.path.glob(f"qrels/{split}.*")]
        known = (", ".join(sorted(splits)) or "none") + _misnamed(others, f"qrels/{split}", QRELS)
        raise CaiError(f"no file {self.path / 'qrels' / split}.tsv; splits of this collection: {known}")


def read_judgments(path: Path) -> Iterator[Judgment]:
    """The judgments of a file in BEIR's or TREC's format, or of a table. Raises CaiError for a broken line."""
    rows: Iterator[tuple[str, Any, Any, Any]] = _lines(path)
    if path.name.endswith(TABLES):
        records = read_records(path, Columns(key="", names=QRELS_NAMES))
        rows = ((where, values["query"], values["document"], values["grade"]) for where, values in records)
    for where, query, document, grade in rows:
        yield Judgment(where, checked_id(query, where), checked_id(document, where), checked_grade(grade, where))


def _lines(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Place, query, document and grade of each line of qrels, in BEIR's or TREC's format."""
    beir = header = None
    for where, line in jsonl.read_lines(path):
        if beir is None:  # the first line
            beir = line.count("\t") == 2
            header = beir and line.split("\t")[2].strip()[:1].isalpha()
        columns = line.rstrip("\r\n").split("\t") if beir else line.split()
        if len(columns) != (3 if beir else 4):
            others = "" if beir else ", or the four of TREC, separated by white space"
            raise CaiError(
                f"{where}: {len(columns)} columns; expected query-id, corpus-id and score, tab-separated{others}"
            )
        if not header:
            yield where, columns[0], columns[-2], columns[-1]
        header = False


def _misnamed(others: Sequence[Path], name: str, suffixes: Iterable[str]) -> str:
    """A hint for messages that a file may be the missing one, under a wrong name."""
    return f" ({others[0]} is not read; its name should be {name} and one of {', '.join(suffixes)})" if others else ""


def _find_files(folder: Path, stem: str, suffixes: Iterable[str]) -> Sequence[Path]:
    """The file with this stem and one of these suffixes, if there is one. Raises CaiError if there are several."""
    found = [path for suffix in suffixes if (path := folder / f"{stem}{suffix}").is_file()]
    if len(found) > 1:
        raise CaiError(f"{found[0]} and {found[1].name}: only one of them can be the right one; move the other away")
    return found


@cache  # once per process
def log_once(level: int, text: str) -> None:
    logger.log(level, "%s", text)


def _names(paths: Iterable[Path]) -> str:
    """The file names, abbreviated if there are more than six."""
    names = sorted(path.name for path in paths)
    return ", ".join(names if len(names) <= 6 else [*names[:4], "…", f"{names[-1]} ({len(names):,} files)"])
