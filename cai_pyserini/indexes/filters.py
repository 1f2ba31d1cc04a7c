"""Filters by metadata and words, such as `year>=2020 AND (journal:"BMJ" OR NOT contents:"mouse model")`.

    filter     = all {"OR" all}
    all        = one {"AND" one}
    one        = "NOT" one | "(" filter ")" | comparison
    comparison = field ("<" | "<=" | ">" | ">=") value | field ("=" | ":") (value | "(" [value {"," value}] ")")
    value      = a word, or any text in double quotes; in both, a backslash escapes the character after it

A field is one of the index's, and values have its type. Strings and lists are compared as a whole, for equality only,
but in values without quotes, `*` stands for any characters, and `?` for one: `path:manuals/*.pdf`.
`journal:(BMJ, Lancet)` matches either value, `journal:()` nothing. A document without a value matches no comparison.

The field `contents` is the text. In quotes, a value is a phrase: exactly these words in this order. Without, it matches
texts with the same stems, after BM25's analyzer.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from typing import Any, Literal, NamedTuple

import regex

from cai_pyserini.collections.values import plain
from cai_pyserini.core.errors import CaiError, require_utf8
from cai_pyserini.core.metadata import NAME, STRINGS, Kind, bounds
from cai_pyserini.core.text import UNSPACED_SCRIPTS, normalized
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.writer import PREFIX

CONTENTS = "contents"  # the field for words
DEPTH = 100  # at most so many nested parentheses and NOT
TOKEN = re.compile(
    r'\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<sign>[<>]=?|[=:(),])|(?P<word>(?:\\.|[^\s"<>=:(),])+))', re.DOTALL
)
ORDERS = ("<", "<=", ">", ">=")
LIKE = "like"  # of a dict: a pattern
# In scripts without spaces, quotes can follow a letter, and a letter them.
OPERATOR = regex.compile(
    rf"(?:(?<!\S)(?P<minus>-)?|(?<=[{UNSPACED_SCRIPTS}]))"
    r'(?:"(?P<phrase>[^"\w]*\w[^"]*)"|(?<=-)(?P<word>[^\W\d](?:[^\s"]*\w)?))'
    rf"(?![\w--[{UNSPACED_SCRIPTS}]])",
    regex.V1,
)


class BadFilter(CaiError):
    """An invalid filter, sort field or facet."""


class Range(NamedTuple):
    """Numbers or dates from `first` to `last`, inclusive."""

    field: str
    first: float
    last: float


class AnyOf(NamedTuple):
    """Strings or lists with one of these values, or texts with one of these phrases."""

    field: str
    values: tuple[str, ...]


class Like(NamedTuple):
    """Strings or lists with a value that a pattern with `*` and `?` matches, or texts with the stems of these words."""

    field: str
    pattern: str  # a backslash escapes the character after it


class Combined(NamedTuple):
    """Documents that pass all (AND), any (OR) or none (NOT) of these filters."""

    operator: Literal["AND", "OR", "NOT"]
    filters: tuple["Filter", ...]


class Words(NamedTuple):
    """Words that follow each other, as they are, or else their stems; in any passage of the document, or else in the
    passage itself."""

    text: str
    are_exact: bool
    in_any_passage: bool


type Filters = str | Mapping[str, Any] | Iterable["Filters"] | None  # several must all match
type WordsQuery = Callable[[Words], Any]  # a Lucene query for the documents or passages that have them
type Filter = Range | AnyOf | Like | Combined


class _Token(NamedTuple):
    text: str
    kind: str | None  # quoted, sign or word; None at the end
    position: int  # from 1


def parse_filter(text: str, kinds: Mapping[str, Kind]) -> Filter:
    """Parse a filter for metadata of these types. Raises BadFilter with the position of the error."""
    require_utf8(text, "the filter")
    return _Parser(text, kinds).parse()


def filter_text(filter: "Filters") -> tuple[str, ...]:
    """Filters, which must all match, as texts. Raises BadFilter for what is none, and for an unknown comparison."""
    if filter is None or isinstance(filter, str):
        return () if filter is None else (filter,)
    if isinstance(filter, Mapping):
        return tuple(_compared(str(name), value) for name, value in filter.items())
    if not isinstance(filter, Iterable):
        raise BadFilter(f"filter: a {type(filter).__name__}: give a text, a list of texts or a dict")
    return tuple(text for each in filter for text in filter_text(each))


def _compared(name: str, value: Any) -> str:
    """A filter for a field with a value, one of several values, or all of {comparison: value}."""
    if not NAME.fullmatch(name) and name != CONTENTS:
        raise BadFilter(f"filter: {name!r} is no name of a field")
    if isinstance(value, Mapping):
        if wrong := next((sign for sign in value if sign not in (*ORDERS, "=", LIKE)), None):
            raise BadFilter(f"filter: {name} has {wrong!r}; comparisons are {' '.join(ORDERS)} = {LIKE}")
        pairs = ((sign, _escaped(each) if sign == LIKE else _quoted(name, each)) for sign, each in value.items())
        return " AND ".join(f"{name}{'=' if sign == LIKE else sign}{each}" for sign, each in pairs)
    value = plain(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return f"{name}=({', '.join(_quoted(name, each) for each in value)})"
    return f"{name}={_quoted(name, value)}"


def _quoted(name: str, value: Any) -> str:
    value = plain(value)
    if value is None or (isinstance(value, Iterable) and not isinstance(value, str)):
        raise BadFilter(f"filter: {name} is compared with {value!r}: give a text, a number or a date")
    text = str(int(value)) if isinstance(value, bool) else value.isoformat() if isinstance(value, date) else str(value)
    return quoted(text)


def quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _escaped(pattern: Any) -> str:
    """A pattern without quotes: all is escaped that would end it."""
    if not isinstance(pattern, str) or not pattern:
        raise BadFilter(f"filter: {LIKE} takes a text with * and ?, not {pattern!r}")
    return re.sub(r'(\\[*?\\])|([\\\s"<>=:(),])', lambda found: found[1] or f"\\{found[2]}", pattern)


def without_operators(query: str, filter: str | None = None) -> tuple[str, tuple[str, ...] | None]:
    """Split a query into its text and filters: `filter` and those of its operators. A "quoted phrase" must occur as
    such; a -word or -"phrase" must not occur. Raises BadFilter if no text is left."""
    filters = [filter] if filter else []

    def extract(match: regex.Match[str]) -> str:
        words = quoted(match["phrase"]) if match["phrase"] else _escaped(match["word"])
        filters.append(f"{'NOT ' if match['minus'] else ''}{CONTENTS}:{words}")
        return " " if match["minus"] else match["phrase"]

    text = OPERATOR.sub(extract, normalized(query))
    if query.strip() and not text.strip():
        raise BadFilter("query: it only excludes words; add words to search for")
    return text, tuple(filters) or None


def relaxed(query: str) -> dict[str, str]:
    """What operators add to a query -> the query without: "quotes", the words after a minus, and "" for both."""
    excluded = [match[0] for match in OPERATOR.finditer(query) if match["minus"]]
    return {
        "quotes": OPERATOR.sub(lambda match: match[0] if match["minus"] else match["phrase"], query),
        " ".join(excluded): OPERATOR.sub(lambda match: "" if match["minus"] else match[0], query).strip(),
        "": OPERATOR.sub(lambda match: "" if match["minus"] else match["phrase"], query).strip(),
    }


def require_field(name: str, kinds: Mapping[str, Kind], where: str) -> Kind:
    """The type of a field. Raises BadFilter for an unknown field."""
    if name not in kinds:
        known = ", ".join(f"{field} ({kind})" for field, kind in kinds.items()) or "none"
        raise BadFilter(f"{where}: no field {name[:50]!r}; those of this index: {known}")
    return kinds[name]


class _Parser:
    """A recursive descent parser, one method per rule of the grammar."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]):
        self._kinds, self._depth = kinds, 0
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def parse(self) -> Filter:
        parsed = self._any()
        return parsed if self._next.kind is None else self._fail("AND, OR or the end")

    def _any(self) -> Filter:
        return self._combine("OR", self._all)

    def _all(self) -> Filter:
        return self._combine("AND", self._one)

    def _combine(self, operator: Literal["AND", "OR"], rule: Callable[[], Filter]) -> Filter:
        filters = [rule()]
        while self._is(operator):
            self._take()
            filters.append(rule())
        return Combined(operator, tuple(filters)) if filters[1:] else filters[0]

    def _one(self) -> Filter:
        if not (self._is("NOT") or self._is("(")):
            return self._comparison()
        self._depth += 1
        if self._depth > DEPTH:
            self._fail(f"at most {DEPTH} parentheses and NOT inside each other")
        if self._take().text == "(":
            parsed = self._any()
            self._expect(")")
        else:
            parsed = Combined("NOT", (self._one(),))
        self._depth -= 1
        return parsed

    def _comparison(self) -> Filter:
        name = self._take("word", "a field")
        kind = "string" if name.text == CONTENTS else require_field(name.text, self._kinds, _where(name))
        sign = self._take("sign", "one of < <= > >= = :")
        if sign.text in ORDERS and kind in STRINGS:
            raise BadFilter(f"{_where(sign)}: {name.text} is a {kind}, which takes = or :, not {sign.text}")
        if sign.text not in (*ORDERS, "=", ":"):
            self._fail("one of < <= > >= = :", sign)
        values = [self._value()] if sign.text in ORDERS or not self._is("(") else self._values()
        filters: list[Filter] = []
        if kind in STRINGS:
            filters += [Like(name.text, normalized(value.text)) for value in values if _is_pattern(name.text, value)]
            whole = [normalized(_unquoted(value)) for value in values if not _is_pattern(name.text, value)]
            filters += [AnyOf(name.text, tuple(whole))] if whole or not filters else []
        else:
            filters += [_range(name.text, kind, sign.text, value) for value in values]
        return filters[0] if len(filters) == 1 else Combined("OR", tuple(filters))

    def _values(self) -> list[_Token]:
        self._take()
        values = [] if self._is(")") else [self._value()]
        while values and self._is(","):
            self._take()
            values.append(self._value())
        self._expect(")")
        return values

    def _value(self) -> _Token:
        return self._take("quoted" if self._next.kind == "quoted" else "word", "a value, in quotes if it has spaces")

    def _is(self, text: str) -> bool:
        return self._next.kind != "quoted" and self._next.text.upper() == text

    def _expect(self, text: str) -> None:
        if not self._is(text):
            self._fail(text)
        self._take()

    def _take(self, kind: str | None = None, expected: str = "") -> _Token:
        token = self._next
        if kind and token.kind != kind:
            self._fail(expected)
        self._next = next(self._tokens, token)
        return token

    def _fail(self, expected: str, token: _Token | None = None) -> Any:
        token = token or self._next
        raise BadFilter(f"{_where(token)}: expected {expected}, not {token.text[:50] or 'the end'}")


def _tokens(text: str) -> Iterator[_Token]:
    end = 0
    while text[end:].strip():
        if not (match := TOKEN.match(text, end)):
            raise BadFilter(f"{_where(_Token('', None, text.index('"', end) + 1))}: the quotation mark is not closed")
        end, kind = match.end(), match.lastgroup or ""
        yield _Token(match[kind], kind, match.start(kind) + 1)
    yield _Token("", None, len(text) + 1)


def _where(token: _Token) -> str:
    return f"filter, character {token.position}"


def _unquoted(token: _Token) -> str:
    return unescaped(token.text[1:-1] if token.kind == "quoted" else token.text)


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _is_pattern(field: str, value: _Token) -> bool:
    """Whether a value stands for others: of the text, all words of its stem."""
    return value.kind == "word" and (field == CONTENTS or bool(re.search(r"[*?]", re.sub(r"\\.", "", value.text))))


def _range(field: str, kind: Kind, sign: str, value: _Token) -> Range:
    try:
        first, last = bounds(_unquoted(value), kind)
    except ValueError as error:
        raise BadFilter(f"{_where(value)}: {field} should be compared with {error}, not {value.text[:50]}") from None
    ranges = {
        "<": (-math.inf, math.nextafter(first, -math.inf)),
        "<=": (-math.inf, last),
        ">": (math.nextafter(last, math.inf), math.inf),
        ">=": (first, math.inf),
    }
    return Range(field, *ranges.get(sign, (first, last)))


def operands(filter: str, operator: Literal["AND", "OR"]) -> list[str]:
    """The filters that this operator combines outside parentheses, or the filter itself."""
    parts, depth, before = [""], 0, ""
    for match in TOKEN.finditer(filter):
        text, is_word = match[0].strip(), match.lastgroup == "word"
        depth += (text == "(") - (text == ")")
        if is_word and text.upper() == operator and not depth and before not in ("=", ":", *ORDERS):
            parts.append("")
        else:
            parts[-1] += match[0]
        before = text
    return [part.strip() for part in parts if part.strip()]


def field_of(filter: Filter) -> str | None:
    """The field of a filter that compares only one, without NOT."""
    if not isinstance(filter, Combined):
        return filter.field
    fields = {field_of(each) for each in filter.filters}
    return fields.pop() if len(fields) == 1 and filter.operator != "NOT" else None


def span_of(filter: Filter) -> tuple[Any, Any] | None:
    """The smallest and the largest value that pass a filter of one field; None unless all between them pass."""
    if isinstance(filter, AnyOf):
        return (filter.values[0],) * 2 if len(filter.values) == 1 else None
    if isinstance(filter, Range):
        return filter.first, filter.last
    if isinstance(filter, Like):
        return None
    spans = [span_of(each) for each in filter.filters]
    if filter.operator != "AND" or not all(spans):
        return None
    return max(span[0] for span in spans if span), min(span[1] for span in spans if span)


def has_phrase(filter: Filter) -> bool:
    """Whether documents that pass a filter have to have a phrase."""
    if isinstance(filter, Combined):
        return filter.operator == "AND" and any(map(has_phrase, filter.filters))
    return isinstance(filter, AnyOf) and filter.field == CONTENTS


def lucene_query(filter: Filter, kinds: Mapping[str, Kind], words_query: WordsQuery, is_negated: bool = False) -> Any:
    """A Lucene query for the documents of an index that pass a filter, which is part of a NOT if `is_negated`.

    `words_query` makes a Lucene query for documents with words. Raises BadFilter for fields that the index lacks, and
    for too complex a pattern.
    """
    java = jvm.java_class
    if not isinstance(filter, Combined) and filter.field != CONTENTS:
        require_field(filter.field, kinds, "filter")
    if isinstance(filter, Range):
        double = java("org.apache.lucene.document.DoubleField")
        return double.newRangeQuery(PREFIX + filter.field, filter.first, filter.last)
    if isinstance(filter, Like):
        is_text = filter.field == CONTENTS
        return words_query(Words(unescaped(filter.pattern), False, is_negated)) if is_text else _pattern_query(filter)
    if isinstance(filter, AnyOf) and filter.field != CONTENTS:
        return any_term_query(PREFIX + filter.field, filter.values)
    if isinstance(filter, AnyOf):
        return boolean_query(SHOULD=[words_query(Words(value, True, is_negated)) for value in filter.values])
    queries = [
        lucene_query(each, kinds, words_query, is_negated != (filter.operator == "NOT")) for each in filter.filters
    ]
    if filter.operator == "NOT":
        return boolean_query(FILTER=[java("org.apache.lucene.search.MatchAllDocsQuery")()], MUST_NOT=queries)
    return boolean_query(FILTER=queries) if filter.operator == "AND" else boolean_query(SHOULD=queries)


def _pattern_query(filter: Like) -> Any:
    """A Lucene query for strings that match a pattern."""
    term = jvm.java_class("org.apache.lucene.index.Term")(PREFIX + filter.field, filter.pattern)
    try:
        return jvm.java_class("org.apache.lucene.search.WildcardQuery")(term)
    except jvm.start().JavaException:  # Lucene limits the states of automata
        raise BadFilter(f"filter: {filter.pattern[:50]} has too many * and ?") from None


def any_term_query(field: str, values: Iterable[str]) -> Any:
    """A Lucene query for the documents that have one of these terms in a field."""
    java = jvm.java_class
    terms = _terms().invokeWithArguments(java("java.util.Collections").singletonList(json.dumps([*values])))
    return java("org.apache.lucene.search.TermInSetQuery")(field, jvm.start().cast("java.util.Collection", terms))


@cache
def _terms() -> Any:
    return batch.terms(jvm.java_class(batch.MAPPER)())


def boolean_query(**queries: Sequence[Any]) -> Any:
    """A Lucene query of queries by how they occur: MUST, FILTER, SHOULD or MUST_NOT. They are made before, because
    pyjnius binds `add` to one object at a time."""
    occur = jvm.java_class("org.apache.lucene.search.BooleanClause$Occur")
    clauses = jvm.java_class("org.apache.lucene.search.BooleanQuery$Builder")()
    for occurs, several in queries.items():
        for query in several:
            clauses.add(query, getattr(occur, occurs))
    return clauses.build()
