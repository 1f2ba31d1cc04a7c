"""Documents, queries and judgments in files: JSONL, Parquet, CSV and TSV, each with its place; and TREC's topics.

Fields of CSV can be quoted, and then have line breaks. Those of TSV cannot: a line is a record, and a quotation mark is
part of the text. Both have a header line with the names of the columns, except a TSV of two columns, which may begin
with a record, id and text, as Pyserini's topics do.

TREC's topics are elements `top` or `topic`, of XML or of older files that close no field. Their fields are columns,
lower-case; the id is also `num` or `number`, the text also `title` or `query`, or all of a topic without fields.
"""

import csv
import html
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import ColumnNames
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import require_content, require_file

NAMES = {"id": ("_id", "id", "docid"), "title": ("title",), "text": ("text", "contents")}  # what fields are called
JUDGMENT = {  # the same of judgments
    "query": ("query-id", "query_id", "qid", "query"),
    "document": ("corpus-id", "corpus_id", "doc_id", "docid", "docno", "document"),
    "grade": ("score", "relevance", "rel", "label", "grade"),
}
METADATA = "metadata"
TOPIC = re.compile(r"<(top|topic)\b([^>]*)>(.*?)(?=<(?:top|topic)\b|</(?:top|topic)s?\b|\Z)", re.DOTALL | re.IGNORECASE)
ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
FIELD = re.compile(r"<([\w-]+)\b[^>]*>(?:(.*?)</\1\s*>|([^<]*))", re.DOTALL)
UNREAD = re.compile(r"<!--.*?-->|<!\[CDATA\[|\]\]>", re.DOTALL)  # of XML
LABEL = re.compile(r"\s*(?:Number|Topic|Description|Narrative)\s*:", re.IGNORECASE)  # at the start of older fields
BATCH = 1024  # rows of Parquet in memory

Values = dict[str, Any]  # id, text and perhaps title, as the file has them, and `metadata` where it is asked for
Rows = Iterator[tuple[str, list[str]]]

csv.field_size_limit(1 << 30)  # characters; documents can be longer than the default, 128 K


class Columns:
    """What the fields are called in a file: NAMES, or those under `key` in a collection's YAML file.

    Those of `metadata` have their own names, in a record or in its object `metadata`.
    """

    def __init__(
        self,
        given: ColumnNames | None = None,
        key: str = "columns",
        metadata: Iterable[str] = (),
        names: Mapping[str, tuple[str, ...]] = NAMES,
    ):
        self.given = dict(given or {})
        self._metadata = list(metadata)
        self._key = key
        self._names: dict[str, tuple[str, ...]] = {**names, **{field: (name,) for field, name in self.given.items()}}

    def find(self, names: Collection[str], where: str) -> dict[str, str]:
        """The name of each field among `names`. Raises CaiError if one is missing, except a title that is not given."""
        found = {}
        for field, known in self._names.items():
            if name := next((name for name in known if name in names), None):
                found[field] = name
            elif field != "title" or field in self.given:
                in_yaml = f", or in a YAML file of the collection: `{self._key}: {{{field}: NAME}}`" * bool(self._key)
                raise CaiError(
                    f"{where}: no {' or '.join(map(repr, known))} among {', '.join(map(repr, names))[:200]}; name it "
                    f"so{in_yaml}"
                )
        return found

    def find_in_header(self, names: Sequence[str], where: str) -> dict[str, str]:
        """As `find`; raises CaiError if two columns have the same name, or one of metadata is missing."""
        found = self.find(names, where)
        if twice := next((name for name in (*found.values(), *self._metadata) if names.count(name) > 1), None):
            raise CaiError(f"{where}: two columns have the name {twice!r}; rename one")
        if METADATA not in names and (missing := next((name for name in self._metadata if name not in names), None)):
            raise CaiError(f"{where}: no column {missing!r}, which the collection names under `metadata`")
        return found

    def of_metadata(self, names: Collection[str]) -> list[str]:
        """The columns of metadata among `names`."""
        return [name for name in (METADATA, *self._metadata) if self._metadata and name in names]

    def values(self, row: Mapping[str, Any], found: Mapping[str, str]) -> Values:
        """The values of a record; `found` are the names of its fields. The object `metadata` can be a string of JSON;
        where it is no object, it stands for every value that it should have, so that each is found to be wrong."""
        values = {field: row[name] for field, name in found.items()}
        if self._metadata:
            inside = _object(row.get(METADATA))
            other = {METADATA: row[METADATA]} if inside is None else None
            values[METADATA] = {name: (inside or {}).get(name, row.get(name, other)) for name in self._metadata}
        return values

    def is_header(self, row: Sequence[str]) -> bool:
        """Whether the first row of a TSV is a header, which may begin with a name that ends with `id`."""
        known = self.given or any(name in known for name in row for known in self._names.values())
        return bool(known) or len(row) != 2 or row[0].lower().endswith("id")


def _object(given: Any) -> dict[str, Any] | None:
    """The object that is given, also as a string of JSON or a map of Parquet; empty for no value, None for another."""
    if isinstance(given, str) and given.strip():
        with suppress(CaiError):
            return jsonl.parse(given, METADATA)
    elif isinstance(given, dict):
        return given
    elif isinstance(given, list) and all(isinstance(pair, tuple) for pair in given):
        return dict(given)
    return {} if given in (None, "") or given != given else None


def read_records(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    """Yield the records of a file, each as (`file:line`, values).

    Raises CaiError for a file of another kind, a broken file or line, and a missing column.
    """
    require_file(path)
    return READERS[kind(path)](path, columns)


def kind(path: Path) -> str:
    """The key of a file's reader, its suffix without .gz. Raises CaiError if there is none."""
    name = path.name if path.name.endswith(".parquet.gz") else path.name.removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix not in READERS:
        raise CaiError(f"{path}: its name should end with one of {', '.join(SUFFIXES + OF_TREC)}")
    return suffix


def count_records(path: Path) -> int | None:
    """The approximate number of records of a file; None if only reading them would tell."""
    if kind(path) == ".parquet":
        with _parquet_errors(path):
            return int(parquet.read_metadata(path).num_rows)
    if path.suffix not in (".jsonl", ".tsv"):
        return None
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _jsonl(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    for where, data in jsonl.read(path):
        yield where, columns.values(data, columns.find(data, where))


def _parquet(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    with _parquet_errors(path), parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        found = columns.find_in_header(names, str(path))
        batches = file.iter_batches(BATCH, columns=list({*found.values(), *columns.of_metadata(names)}))
        for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
            yield f"{path}: row {number}", columns.values(row, found)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        require_content(path)
        raise CaiError(f"{path}: not a Parquet file, or damaged ({str(error).partition('\n')[0]})") from None


def _tsv(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    rows = _rows(path, "TSV", delimiter="\t", quoting=csv.QUOTE_NONE)
    first = next(rows, None)
    if first is None:
        return iter(())
    header = [] if columns.is_header(first[1]) else [(first[0], ["id", "text"])]
    return _table(chain(header, [first], rows), columns)


def _rows(path: Path, name: str, **dialect: Any) -> Rows:
    """The rows that are not blank, each with the line where it begins."""
    rows = csv.reader((text for _, text in jsonl.all_lines(path)), strict=True, **dialect)
    line = 1
    try:
        for row in rows:
            if any(value.strip() for value in row):
                yield f"{path}:{line}", row
            line = rows.line_num + 1
    except csv.Error as error:
        raise CaiError(f"{path}:{line}: not {name} ({error}); correct or remove it") from None


def _table(rows: Rows, columns: Columns) -> Iterator[tuple[str, Values]]:
    """The records of rows whose first one is a header."""
    where, names = next(rows, ("", []))
    if not names:
        return
    found = columns.find_in_header(names, where)
    for where, row in rows:
        if len(row) != len(names):
            raise CaiError(f"{where}: {len(row)} columns, but the header has {len(names)}; correct or remove it")
        yield where, columns.values(dict(zip(names, row, strict=True)), found)


def _topics(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    text = UNREAD.sub(lambda found: "\n" * found[0].count("\n"), "".join(line for _, line in jsonl.all_lines(path)))
    topics = [*TOPIC.finditer(text)]
    if not topics:
        raise CaiError(f"{path}: no <top> or <topic> in it: these are not TREC's topics")
    for topic in topics:
        row = {name.lower(): first or second for name, first, second in ATTRIBUTE.findall(topic[2])}
        for name, closed, open in FIELD.findall(topic[3]):
            row.setdefault(name.lower().rpartition("-")[2], LABEL.sub("", closed or open, count=1))
        row.setdefault("id", row.get("num", row.get("number", "")))
        row.setdefault("text", row.get("title", row.get("query", topic[3] * ("<" not in topic[3]))))
        row = {name: html.unescape(re.sub("<[^>]*>", " ", value)).strip() for name, value in row.items()}
        where = f"{path}:{text.count('\n', 0, topic.start()) + 1}"
        yield where, columns.values(row, columns.find([name for name, value in row.items() if value], where))


READERS: dict[str, Callable[[Path, Columns], Iterator[tuple[str, Values]]]] = {
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".csv": lambda path, columns: _table(_rows(path, "CSV"), columns),
    ".tsv": _tsv,
    **dict.fromkeys((".trec", ".xml", ".txt"), _topics),
}
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
OF_TREC = (".trec", ".trec.gz", ".xml", ".xml.gz", ".txt", ".txt.gz")  # topics
