"""Read documents, queries and judgments from JSONL, Parquet, CSV and TSV, and TREC topics, each record with its place.

CSV fields can be quoted, and then contain line breaks. TSV fields cannot: each line is a record, and quotation marks
are part of the text. Both have a header line with column names, except that a TSV file of two columns may start
directly with a record, id and text, like Pyserini's topics.

TREC topics are elements `top` or `topic` in XML, or in older files that do not close fields. Their fields are columns
with lower-case names; the id can also be `num` or `number`, and the text `title`, `query`, or the whole topic if it has
no fields.
"""

import csv
import html
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import ColumnNames
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import require_content, require_file
from cai_pyserini.core.packages import require_modules

NAMES = {  # field -> column names
    "id": ("_id", "id", "docid", "docno", "doc_id"),
    "title": ("title",),
    "text": ("text", "contents"),
}
QRELS_NAMES = {
    "query": ("query-id", "query_id", "qid", "query"),
    "document": ("corpus-id", "corpus_id", "doc_id", "docid", "docno", "document", "document_id"),
    "grade": ("score", "relevance", "rel", "label", "grade"),
}
METADATA = "metadata"
TOPIC = re.compile(r"<(top|topic)\b([^>]*)>(.*?)(?=<(?:top|topic)\b|</(?:top|topic)s?\b|\Z)", re.DOTALL | re.IGNORECASE)
ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
FIELD = re.compile(r"<([\w-]+)\b[^>]*>(?:(.*?)</\1\s*>|([^<]*))", re.DOTALL)
COMMENT_OR_CDATA = re.compile(r"<!--.*?-->|<!\[CDATA\[|\]\]>", re.DOTALL)
LABEL = re.compile(r"\s*(?:Number|Topic|Description|Narrative)\s*:", re.IGNORECASE)  # some start older fields
BATCH = 1024  # Parquet rows in memory

Values = dict[str, Any]  # raw id, text, perhaps title, and `metadata` if requested
Rows = Iterator[tuple[str, list[str]]]

csv.field_size_limit(1 << 30)  # characters; documents can be longer than the default, 128 K


class Columns:
    """The column names of fields: the default `names`, or a `mapping`, which is under `key` in a collection's YAML
    file. `metadata` has the names of metadata fields, which are keys of a record or of its object `metadata`."""

    def __init__(
        self,
        mapping: ColumnNames | None = None,
        key: str = "columns",
        metadata: Iterable[str] = (),
        names: Mapping[str, tuple[str, ...]] = NAMES,
    ):
        self.mapping = dict(mapping or {})
        self._metadata = list(metadata)
        self._key = key
        self._names: dict[str, tuple[str, ...]] = {**names, **{field: (name,) for field, name in self.mapping.items()}}

    def find(self, names: Collection[str], where: str) -> dict[str, str]:
        """The column of each field among `names`. Raises CaiError if one is missing, except an unmapped title."""
        fields = {}
        for field, known in self._names.items():
            if name := next((name for name in known if name in names), None):
                fields[field] = name
            elif field != "title" or field in self.mapping:
                yaml = f", or map it in the collection's YAML: `{self._key}: {{{field}: NAME}}`" if self._key else ""
                expected, columns = " or ".join(map(repr, known)), ", ".join(map(repr, names))[:200]
                raise CaiError(f"{where}: no {expected} among {columns}; rename the column{yaml}")
        return fields

    def find_in_header(self, names: Sequence[str], where: str) -> dict[str, str]:
        """As `find`, but also raises CaiError for duplicate columns, and for a missing metadata column."""
        fields = self.find(names, where)
        if twice := next((name for name in (*fields.values(), *self._metadata) if names.count(name) > 1), None):
            raise CaiError(f"{where}: two columns have the name {twice!r}; rename one")
        if METADATA not in names and (missing := next((name for name in self._metadata if name not in names), None)):
            raise CaiError(f"{where}: no column {missing!r}, which the collection names under `metadata`")
        return fields

    def metadata_columns(self, names: Collection[str]) -> list[str]:
        """The metadata columns among `names`."""
        return [name for name in (METADATA, *self._metadata) if self._metadata and name in names]

    def values(self, row: Mapping[str, Any], fields: Mapping[str, str]) -> Values:
        """The values of a record; `fields` has the columns by field. The object `metadata` can be a JSON string. An
        invalid one becomes the value of every metadata field without a column, so that checks reject it."""
        values = {field: row[name] for field, name in fields.items()}
        if self._metadata:
            metadata = parse_object(row.get(METADATA))
            invalid = {METADATA: row[METADATA]} if metadata is None else None
            values[METADATA] = {name: (metadata or {}).get(name, row.get(name, invalid)) for name in self._metadata}
        return values

    def is_header(self, row: Sequence[str]) -> bool:
        """Whether the first row of a TSV file is a header; if all names are unknown, its first may end with `id`."""
        known = self.mapping or any(name in known for name in row for known in self._names.values())
        return bool(known) or len(row) != 2 or row[0].lower().endswith("id")


def parse_object(value: Any) -> dict[str, Any] | None:
    """An object from a dict, a JSON string or a Parquet map; empty for a missing value, None for anything else."""
    if isinstance(value, str) and value.strip():
        with suppress(CaiError):
            return jsonl.parse(value, METADATA)
    elif isinstance(value, dict):
        return value
    elif isinstance(value, list) and all(isinstance(pair, tuple) for pair in value):
        return dict(value)
    return {} if value in (None, "") or value != value else None


def read_records(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    """Yield the records of a file as (`file:line`, values). Raises CaiError if one is broken."""
    require_file(path)
    return READERS[kind(path)](path, columns)


def kind(path: Path) -> str:
    """The suffix of a file without .gz, the key of its reader. Raises CaiError if there is no reader."""
    name = path.name if path.name.endswith(".parquet.gz") else path.name.removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix not in READERS:
        raise CaiError(f"{path}: its name should end with one of {', '.join(SUFFIXES + TREC)}")
    return suffix


def count_records(path: Path) -> int | None:
    """The approximate number of records of a file; None if it requires reading them."""
    if kind(path) == ".parquet":
        with _parquet_file(path) as file:
            return int(file.metadata.num_rows)
    if path.suffix not in (".jsonl", ".tsv"):
        return None
    with path.open("rb") as lines:
        return sum(block.count(b"\n") for block in iter(lambda: lines.read(1 << 20), b""))


def _jsonl(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    for where, data in jsonl.read(path):
        yield where, columns.values(data, columns.find(data, where))


def _parquet(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    with _parquet_file(path) as file:
        names = file.schema_arrow.names
        fields = columns.find_in_header(names, str(path))
        batches = file.iter_batches(BATCH, columns=list({*fields.values(), *columns.metadata_columns(names)}))
        for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
            yield f"{path}: row {number}", columns.values(row, fields)


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file. Raises CaiError for a damaged one, also while it is read."""
    require_modules(("pyarrow",), "encode")
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
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
    """The non-blank rows, each with the line where it begins."""
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
    """The records of rows; the first row is a header."""
    where, names = next(rows, ("", []))
    if not names:
        return
    fields = columns.find_in_header(names, where)
    for where, row in rows:
        if len(row) != len(names):
            raise CaiError(f"{where}: {len(row)} columns, but the header has {len(names)}; correct or remove it")
        yield where, columns.values(dict(zip(names, row, strict=True)), fields)


def _topics(path: Path, columns: Columns) -> Iterator[tuple[str, Values]]:
    text = "".join(line for _, line in jsonl.all_lines(path))
    text = COMMENT_OR_CDATA.sub(lambda match: "\n" * match[0].count("\n"), text)  # keeps line numbers
    topics = [*TOPIC.finditer(text)]
    if not topics:
        raise CaiError(f"{path}: no <top> or <topic> in it: these are not TREC's topics")
    for topic in topics:
        row = {name.lower(): first or second for name, first, second in ATTRIBUTE.findall(topic[2])}
        for name, closed, open in FIELD.findall(topic[3]):
            row.setdefault(name.lower().rpartition("-")[2], LABEL.sub("", closed or open, count=1))
        row.setdefault("id", row.get("num", row.get("number", "")))
        row.setdefault("text", row.get("title", row.get("query", "" if "<" in topic[3] else topic[3])))
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
TREC = (".trec", ".trec.gz", ".xml", ".xml.gz", ".txt", ".txt.gz")  # suffixes of topics
