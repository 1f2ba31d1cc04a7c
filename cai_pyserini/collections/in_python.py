"""Documents, topics, judgments and rankings as Python programs have them: dicts, lists, generators, and tables.

A table is a DataFrame of pandas or polars, or anything else in Arrow's format. Errors name the caller's record.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from cai_pyserini.collections.contract import Qrels, Record, checked_grade, metadata_left_out, typed
from cai_pyserini.collections.records import METADATA, NAMES, QRELS_NAMES, Columns, parse_object
from cai_pyserini.collections.values import SeenIds, checked_id, plain
from cai_pyserini.core.errors import CaiError, did_you_mean, require_utf8
from cai_pyserini.core.metadata import LARGEST_INTEGER, NAME, Kind, Metadata, Value, checked, days
from cai_pyserini.core.packages import lazy

if TYPE_CHECKING:
    import pandas as pd

type Text = str | Mapping[str, Any] | tuple[Any, Any]  # of a document: its text, its fields, or its id and one of these
type Documents = Iterable[Text] | Mapping[Any, Text] | pd.DataFrame
type Queries = Iterable[Any] | Mapping[Any, str] | pd.DataFrame
type Judged = Mapping[Any, Any] | pd.DataFrame | Iterable[Any]  # by query and document: grades, or scores

TOPIC_NAMES = {"id": (*QRELS_NAMES["query"][:3], "_id", "id"), "text": ("text", "query", "title")}
DAY = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:.*)?", re.ASCII)  # a string that is taken for a date
KINDS: Mapping[frozenset[str], Kind] = {  # of the values of a field -> the field's
    frozenset({"integer", "number"}): "number",
    frozenset({"date", "day"}): "date",
    frozenset({"string", "date", "day", "integer"}): "string",
    frozenset({"list"}): "list",
}
logger = logging.getLogger(__name__)


def rows(data: Any, what: str) -> Iterator[Any]:
    """The rows of a table as dicts, a series with labels as (label, value) pairs, or the items of anything else, named
    tuples as dicts. Raises CaiError for what has neither, and for a dict with the name of a text, which is one record
    and not several by id."""
    if _is_pandas(data, "Series") and _has_labels(data.index):
        return iter(data.items())
    if isinstance(data, Mapping):
        texts = (TOPIC_NAMES if what == "queries" else NAMES)["text"]
        if name := next((name for name in texts if isinstance(data.get(name), str)), None):
            raise CaiError(f"{what}: a dict with {name!r} is one record: give it in a list, or (id, text) pairs")
        return iter(data.items())
    if _is_pandas(data, "DataFrame"):
        data = _with_index(data)
        names = [*map(str, data.columns)]
        return (dict(zip(names, row, strict=True)) for row in zip(*(data[name].array for name in data), strict=True))
    if is_arrow(data):
        return (row for batch in lazy("pyarrow").table(data).to_batches() for row in batch.to_pylist())
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise CaiError(f"{what}: a {type(data).__name__}, but neither texts nor dicts nor a table")
    return (item._asdict() if hasattr(item, "_asdict") else plain(item) for item in data)


def _is_pandas(data: Any, kind: str) -> bool:
    """Whether data is a DataFrame or a Series of pandas, which only a program that has one has imported."""
    return any((each.__module__.partition(".")[0], each.__name__) == ("pandas", kind) for each in type(data).__mro__)


def _has_labels(index: "pd.Index") -> bool:
    """Whether an index names its rows: by strings, or by integers that are not their numbers."""
    import pandas as pd
    from pandas.api.types import is_integer_dtype, is_numeric_dtype

    by_integers = is_integer_dtype(index) and index.is_unique and not index.equals(pd.RangeIndex(len(index)))
    return by_integers or not is_numeric_dtype(index)


def _with_index(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table with its index as columns, labels without a name as `id`. Raises CaiError for columns named alike."""
    if table.index.names == [None] and _has_labels(table.index) and not {*NAMES["id"]} & {*table.columns}:
        table = table.rename_axis("id")
    if table.index.names != [None] and table.index.name not in table.columns:
        table = table.reset_index(allow_duplicates=True)
    if not table.columns.is_unique:
        raise CaiError(f"two of the columns {', '.join(map(str, table.columns))} have the same name: rename one")
    return table


def is_arrow(data: Any) -> bool:
    """Whether data is a table in Arrow's format, but none of pandas: of polars, pyarrow, DuckDB, …"""
    return hasattr(data, "__arrow_c_stream__") and hasattr(data, "columns") and not _is_pandas(data, "DataFrame")


def is_table(data: Any) -> bool:
    return _is_pandas(data, "DataFrame") or is_arrow(data)


def documents(data: Any, first: int | None = 0) -> Iterator[Record]:
    """The documents of texts, dicts, (id, text) pairs, {id: text or dict}, or rows of a table; those without an id get
    numbers from `first`. Raises CaiError for what is no document, for one without text or, if `first` is None, without
    an id, and for ids that are missing, differ or occur twice."""
    seen, number = SeenIds(), -1
    for number, item in enumerate(rows(data, "documents")):
        where = f"document {item[0]!r}" if isinstance(data, Mapping) else f"document {number}, counted from 0"
        document = _document(item, where, None if first is None else str(first + number))
        if seen.add(document.id):
            raise CaiError(f"{document.where}: the id {document.id!r} occurs twice")
        yield document
    if number < 0:
        raise CaiError("there are no documents")


def _document(item: Any, where: str, default: str | None) -> Record:
    ids: dict[str, Any] = {}
    if isinstance(item, tuple) and len(item) == 2:
        ids["key"], item = item
    if isinstance(item, str):
        item = {"text": item}
    elif not isinstance(item, Mapping):
        raise CaiError(f"{where} is a {type(item).__name__}: give a text or a dict")
    fields = {str(name): value for name, value in item.items()}
    ids |= {name: fields.pop(name) for name in NAMES["id"] if name in fields}
    id = _one_id(ids, where) if ids or default is None else default
    if ids and "key" not in ids:
        where = f"{where} (id {id!r})"
    name = next((name for name in NAMES["text"] if name in fields), None)
    if name is None:
        raise CaiError(f"{where}: no `text`, but only {', '.join([*ids, *fields]) or 'nothing'}")
    text, title = plain(fields.pop(name)), plain(fields.pop("title", None))
    title = "" if title is None else title
    for label, value in (("text", text), ("title", title)):
        if not isinstance(value, str):
            raise CaiError(f"{where}: the {label} is {value!r}: give a string, '' for an empty one")
    if (nested := parse_object(plain(fields.get(METADATA)))) is not None:
        fields.pop(METADATA, None)
        fields |= {str(name): value for name, value in nested.items()}
    return Record(where, id, title, text, fields)


def _one_id(ids: Mapping[str, Any], where: str) -> str:
    found = {name: checked_id(value, where) for name, value in ids.items() if plain(value) is not None}
    if not found:
        raise CaiError(f"{where}: the id is missing")
    if len({*found.values()}) > 1:
        raise CaiError(f"{where} has different ids: {', '.join(f'{name} {id!r}' for name, id in found.items())}")
    return next(iter(found.values()))


class MetadataTypes:
    """The types of metadata, `declared` or, without them, inferred from the values; then booleans are numbers, 0 or 1,
    and strings in ISO 8601, if all are, dates. `strict` refuses values of another type than the declared one."""

    def __init__(self, declared: Mapping[str, Any] | None, strict: bool = False):
        if declared is not None and not isinstance(declared, Mapping):
            raise CaiError(f"metadata is a {type(declared).__name__}: give types by name, as {{'year': 'number'}}")
        for name, kind in (declared or {}).items():
            if kind not in get_args(Kind):
                raise CaiError(f"metadata {name!r} should be one of {', '.join(get_args(Kind))}, not {kind!r}")
        self._declared: Mapping[str, Kind] | None = declared
        self._strict = strict
        self._seen: dict[str, set[str]] = {}  # name -> types of its values
        self._wrong: list[str] = []

    def values(self, document: Record) -> Metadata:
        """The values of a document to store. Raises CaiError for one that is refused."""
        raw = {name: _python(value) for name, value in document.metadata.items()}
        if self._declared is None:
            kinds = {name: _inferred(name, value) for name, value in raw.items()}
        else:
            values = typed(raw, self._declared, document.where, self._wrong, self._strict)
            kinds = {name: (self._declared[name] if name in values else None, values.get(name)) for name in raw}
        for name, (kind, _) in kinds.items():
            self._seen.setdefault(name, set()).update([kind] if kind else [])
        return {name: value for name, (_, value) in kinds.items() if value is not None}

    def found(self) -> dict[str, Kind]:
        """The types of the fields, after all documents. Warns of values that are left out, and of fields with values of
        several types. Raises CaiError for a declared field that no document has."""
        self.warn()
        if self._declared is not None:
            if lacking := next((name for name in self._declared if not self._seen.get(name)), None):
                hint = "; declare another type" if lacking in self._seen else did_you_mean(lacking, self._seen)
                raise CaiError(f"no document has metadata {lacking!r}{hint or '; correct its name'}")
            return dict(self._declared)
        of_values = {name: _kind_of(kinds) for name, kinds in self._seen.items() if kinds}
        if others := [
            f"{name} ({' and '.join(sorted(self._seen[name]))})" for name, kind in of_values.items() if not kind
        ]:
            logger.warning("metadata left out: %s; `metadata` declares types", ", ".join(others))
        return {name: kind for name, kind in of_values.items() if kind}

    @property
    def undeclared(self) -> list[str]:
        """The names of fields that documents have and that are not declared."""
        return [] if self._declared is None else [name for name in self._seen if name not in self._declared]

    def warn(self) -> None:
        """Warn of values with another type than the declared one."""
        if self._wrong:
            logger.warning("%s", metadata_left_out(self._wrong))


def _kind_of(kinds: Set[str]) -> Kind | None:
    return next((kind for several, kind in KINDS.items() if kinds <= several), None)


def _python(value: Any) -> Any:
    """A value as JSON has it, a date as such."""
    value = plain(value)
    if isinstance(value, bool | Decimal):
        return float(value) if isinstance(value, Decimal) else int(value)
    return [*map(plain, value)] if isinstance(value, list | tuple | set | frozenset) else value


def _inferred(name: str, value: Any) -> tuple[str | None, Value | None]:
    """The type of a value, a key of KINDS or what it is instead, and the value to store; None for no value."""
    if value is None or (isinstance(value, str | list) and not value) or (isinstance(value, str) and value.isspace()):
        return None, None
    if not NAME.fullmatch(name):
        return "a name that filters cannot have", None
    if isinstance(value, int):
        return ("integer", value) if abs(value) < LARGEST_INTEGER else ("string", str(value))
    if isinstance(value, float):
        return ("number", value) if np.isfinite(value) else ("infinite numbers", None)
    if isinstance(value, date):
        return "date", checked(value, "date")
    kind: Literal["list", "string"] = "list" if isinstance(value, list) else "string"
    try:
        found = checked(value, kind)
    except ValueError:
        return ("long texts" if isinstance(value, str) else f"values of type {type(value).__name__}"), None
    if isinstance(value, str) and DAY.fullmatch(value.strip()):
        try:
            days(value.strip())
        except ValueError:
            return "string", found
        return "day", found
    return kind, found


def lines(items: Iterable[Record], types: MetadataTypes) -> Iterator[tuple[str, str]]:
    """Documents as JSON, a line each, by id. Raises CaiError for text that UTF-8 cannot encode."""
    for document in items:
        record = {"_id": document.id, "title": document.title, "text": document.text}
        line = json.dumps(record | {METADATA: types.values(document)}, ensure_ascii=False) + "\n"
        require_utf8(line, document.where)
        yield document.id, line


def topics(queries: Any) -> dict[str, str]:
    """Queries by id, of {id: text}, texts, whose ids are their numbers from 0, (id, text) pairs, or rows of a table.
    Raises CaiError for what is no query, and for an id that is missing or occurs twice."""
    found: dict[str, str] = {}
    for number, item in enumerate(rows([queries] if isinstance(queries, str) else queries, "queries")):
        where = f"query {number}, counted from 0"
        if isinstance(item, Mapping):
            columns = Columns(key="", names=TOPIC_NAMES).find([*map(str, item)], where)
            item = item[columns["id"]], item[columns["text"]]
        raw, text = item if isinstance(item, tuple) and len(item) == 2 else (number, item)
        id = checked_id(raw, where)
        if not isinstance(text, str):
            raise CaiError(f"{where} (id {id!r}) is a {type(text).__name__}: give a text")
        if id in found:
            raise CaiError(f"query {id!r} occurs twice")
        found[id] = text
    return found


def qrels(data: Judged) -> Qrels:
    """Judgments of {query: {document: grade}}, of a table, or of rows such as ir_measures' qrels. Raises CaiError for
    ids or grades that are missing or none, and for a document that is judged differently for a query."""
    columns = _columns(data, "qrels", {**QRELS_NAMES, "grade": ("relevance", *QRELS_NAMES["grade"])})
    found: Qrels = {checked_id(id, "qrels"): {} for id in data} if isinstance(data, Mapping) else {}
    for query, document, value in zip(*columns, strict=True):
        where = f"qrels: query {query!r}, document {document!r}"
        grade = checked_grade(value, where)
        if found.setdefault(query, {}).setdefault(document, grade) != grade:
            raise CaiError(f"{where} is judged differently above")
    return found


def ranking(data: Judged) -> tuple[list[str], list[str], np.ndarray]:
    """The query ids, the document ids and the scores of the hits of {query: {document: score}}, {query: hits}, a table,
    or rows such as ir_measures' scored documents. Raises CaiError for ids that are missing or none, for a score that is
    no finite number, and for a document that is listed twice for a query."""
    queries, documents, values = _columns(data, "a ranking", {**QRELS_NAMES, "grade": ("score",)})
    scores, seen = np.array([*map(_score, values)], np.float64), set[tuple[str, str]]()
    for query, document, value, finite in zip(queries, documents, values, np.isfinite(scores), strict=True):
        if not finite or (query, document) in seen:
            problem = "is listed twice" if finite else "has a score that is no finite number"
            raise CaiError(f"a ranking: document {document!r} for query {query!r} {problem}: {value}")
        seen.add((query, document))
    return queries, documents, scores


def _score(value: Any) -> float:
    try:
        return np.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return np.nan


def _columns(data: Any, what: str, names: Mapping[str, tuple[str, ...]]) -> Sequence[list[Any]]:
    """Query, document and value of each row, with checked ids."""
    columns = Columns(key="", names=names)
    if is_table(data):
        table = lazy("pyarrow").table(data).to_pydict() if is_arrow(data) else _with_index(data)
        found = columns.find([*map(str, table)], what)
        raw = [[*table[found[name]]] for name in QRELS_NAMES]
    else:
        triples = [*(_by_query(data, what) if isinstance(data, Mapping) else _triples(data, what, columns))]
        raw = [[triple[place] for triple in triples] for place in range(3)]
    return _checked_ids(raw[0], what), _checked_ids(raw[1], what), raw[2]


def _checked_ids(ids: Iterable[Any], what: str) -> list[str]:
    known: set[str] = set()
    checked: list[str] = []
    for row, id in enumerate(ids):
        if type(id) is not str or id not in known:
            id = checked_id(id, f"{what}, row {row}, counted from 0")
            known.add(id)
        checked.append(id)
    return checked


def _by_query(data: Mapping[Any, Any], what: str) -> Iterator[tuple[Any, Any, Any]]:
    for query, hits in data.items():
        if not isinstance(hits, Mapping | list | tuple):
            raise CaiError(f"{what}: query {query!r} has a {type(hits).__name__}: give a dict of documents")
        for hit in hits.items() if isinstance(hits, Mapping) else hits:
            if isinstance(hit, tuple) and len(hit) == 2:
                yield (query, *hit)
            elif hasattr(hit, "id") and hasattr(hit, "score"):
                yield query, hit.id, hit.score
            else:
                raise CaiError(f"{what}: query {query!r} has a {type(hit).__name__}: give a hit, or document and score")


def _triples(data: Iterable[Any], what: str, columns: Columns) -> Iterator[tuple[Any, Any, Any]]:
    for number, row in enumerate(rows(data, what)):
        where = f"{what}, row {number}, counted from 0"
        if isinstance(row, Mapping):
            found = columns.find([*map(str, row)], where)
            yield row[found["query"]], row[found["document"]], row[found["grade"]]
        elif isinstance(row, tuple | list) and len(row) == 3:
            yield tuple(row)
        else:
            raise CaiError(f"{where} is a {type(row).__name__}: give query, document and value")
