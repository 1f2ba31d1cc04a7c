"""What Python programs give: it is there as they mean it, or an error names their record."""

import logging
import math
import re
from collections import namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from cai_pyserini.collections import in_python
from cai_pyserini.collections.contract import Record
from cai_pyserini.collections.in_python import MetadataTypes
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Kind

NAN = float("nan")
ROWS = [{"id": "1", "title": "A", "text": "a cat"}, {"id": "2", "title": "", "text": "a dog"}]
Doc = namedtuple("Doc", "doc_id title text")  # as ir_datasets has it


def read(data: Any) -> list[tuple[str, str, str]]:
    return [(each.id, each.title, each.text) for each in in_python.documents(data)]


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        (row for row in ROWS),
        {"1": ROWS[0], 2: {"text": "a dog"}},
        {np.int64(1): {"title": "A", "text": "a cat"}, 2.0: "a dog"},
        [("1", {"title": "A", "text": "a cat"}), (2, "a dog")],
        [{"docno": 1, "title": "A", "contents": "a cat"}, {"_id": "2", "doc_id": 2.0, "text": "a dog", "title": NAN}],
        [Doc("1", "A", "a cat"), Doc(2, None, "a dog")],
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).set_index("id"),
        pd.DataFrame(ROWS).set_index("id", drop=False),
        pd.DataFrame(ROWS, index=["x", "y"]),
        pd.DataFrame({"title": ["A", None], "text": ["a cat", "a dog"]}, index=["1", "2"]),
        pd.DataFrame({"title": ["", "A", None], "text": ["", "a cat", "a dog"]})[1:],
        pd.DataFrame(ROWS).set_index(["id", "title"]),
        pd.Series(ROWS, index=[1, 2]),
        pa.array(ROWS),
        pd.DataFrame(ROWS).astype({"id": float}),
        pa.table(pd.DataFrame(ROWS)),
    ],
)
def test_documents_are_those_of_the_caller(data: Any) -> None:
    """The faults: ids "1.0", or of the row; keys or columns in place of texts; unknown names of ids."""
    assert read(data) == [("1", "A", "a cat"), ("2", "", "a dog")]


def test_tables_of_other_libraries() -> None:
    polars, datasets = pytest.importorskip("polars"), pytest.importorskip("datasets")
    for table in (polars.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)):
        assert read(table) == [("1", "A", "a cat"), ("2", "", "a dog")]
    assert (
        read(polars.Series(["a cat"]))
        == read(pd.Series(["a cat"]))
        == read(np.array(["a cat"]))
        == [("0", "", "a cat")]
    )
    assert read(pd.Series({"x": "a cat"})) == [("x", "", "a cat")]


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "documents: a NoneType, but neither texts nor dicts"),
        ([], "there are no documents"),
        (pd.DataFrame({"text": []}), "there are no documents"),
        (["a", 3], "document 1, counted from 0 is a int: give a text or a dict"),
        ([("a", "b", "c")], "document 0, counted from 0 is a tuple"),
        ({"a": None}, "document 'a' is a NoneType"),
        ({"id": "a", "text": "a"}, "documents: a dict with 'text' is one record: give it in a list"),
        (pd.Series(["a", "b"], index=["x", "x"]), "the id 'x' occurs twice"),
        ([{"id": "a"}], r"document 0, counted from 0 \(id 'a'\): no `text`, but only id"),
        ([{"id": "a", "text": NAN}], r"\(id 'a'\): the text is None: give a string"),
        ([{"text": "a", "title": 0}], "the title is 0: give a string"),
        (pd.DataFrame({"id": [1, 2, NAN], "text": [*"abc"]}), "document 2, counted from 0: the id is missing"),
        ([{"id": pd.NA, "text": "a"}], "document 0, counted from 0: the id is missing"),
        ([{"id": True, "text": "a"}], "the id True is not a string or an integer"),
        ([{"id": np.bool_(True), "text": "a"}], "is not a string or an integer"),
        ([{"id": 1.5, "text": "a"}], "the id 1.5 is not a string or an integer"),
        ([{"id": 2.0**60, "text": "a"}], "is not a string or an integer"),
        ([{"id": "a b", "text": "a"}], "document 0, counted from 0: the id 'a b' is empty or has white space"),
        ([{"id": 1, "text": "a"}, {"id": "1", "text": "b"}], "counted from 0 .*: the id '1' occurs twice"),
        (["a", {"id": "0", "text": "b"}], "the id '0' occurs twice"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "two of the columns text, text have the same name"),
    ],
)  # fmt: skip
def test_what_is_no_document_is_named(data: Any, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        read(data)


def test_characters_that_no_file_can_hold_are_named() -> None:
    with pytest.raises(CaiError, match=r"counted from 0 .* is not UTF-8"):
        [*in_python.lines(in_python.documents(["\ud800"]), MetadataTypes(None))]


@pytest.mark.parametrize(
    "values, kind, stored",
    [
        ([1, np.int32(2), 3.5, NAN, None, pd.NA], "number", [1, 2, 3.5]),
        ([True, np.bool_(False)], "number", [1, 0]),
        ([Decimal("12.50")], "number", [12.5]),
        ([2**60, 2**60 + 1], "string", [str(2**60), str(2**60 + 1)]),
        ([date(2020, 1, 2), datetime(2020, 1, 3, 4, tzinfo=UTC)], "date", ["2020-01-02", "2020-01-03T04:00:00+00:00"]),
        ([pd.Timestamp("2020-01-02"), pd.NaT], "date", ["2020-01-02T00:00:00"]),
        ([np.datetime64("2020-01-02")], "date", ["2020-01-02"]),
        ([np.datetime64("2020-01-02T03", "ns")], "date", ["2020-01-02T03:00:00"]),
        (["2020-01-02", ""], "date", ["2020-01-02"]),
        (["2020-01-02", "soon", 7], "string", ["2020-01-02", "soon", 7]),
        (["2020-13-02"], "string", ["2020-13-02"]),
        ([["a", "b"], ("c",), np.array(["d"]), []], "list", [["a", "b"], ["c"], ["d"]]),
    ],
)  # fmt: skip
def test_metadata_have_types(values: list[Any], kind: Kind, stored: list[Any]) -> None:
    """The faults: metadata that are lost without a word; pd.Timestamp and NumPy's values raise TypeError. What is
    inferred can be declared, and what is stored is read as what it was."""
    for declared in (None, {"x": kind}):
        types = MetadataTypes(declared)
        documents = [{"text": "a", "x": value} for value in values]
        found = [types.values(document) for document in in_python.documents(documents)]
        assert types.found() == {"x": kind}
        assert [value["x"] if declared is None or value["x"] != "7" else 7 for value in found if value] == stored


def test_metadata_that_are_left_out_are_named(caplog: pytest.LogCaptureFixture) -> None:
    given = {"mixed": 1, "vector": [0.5], "two words": 1, "of": {"a": 1}, "long": "x" * 40_000, "inf": math.inf}
    types, rows = MetadataTypes(None), [{"text": "a", "metadata": given | {"ok": 1}}, {"text": "b", "mixed": ["x"]}]
    for document in in_python.documents([*rows, {"text": "c", "_x": None}, {"text": "d", "metadata": {}}]):
        types.values(document)
    with caplog.at_level(logging.WARNING):
        assert types.found() == {"ok": "number"}
    assert all(name in caplog.text for name in given) and not re.search("_x|metadata \\(", caplog.text)
    types = MetadataTypes({"year": "number"})
    types.values(Record("document 'a'", "a", "", "", {"year": "n.d."}))
    with caplog.at_level(logging.WARNING), pytest.raises(CaiError, match="no document has metadata 'year'"):
        types.found()
    assert "document 'a': metadata 'year' should be a number, not 'n.d.'" in caplog.text
    with pytest.raises(CaiError, match="metadata 'year' should be one of string, number, date, list, not 'int'"):
        MetadataTypes({"year": "int"})


def frames(value: str) -> list[Callable[[list[tuple[Any, Any, Any]]], Any]]:
    """Ways to hold triples of query, document and value."""
    columns = ["query_id", "doc_id", value]

    def nested(triples: list[tuple[Any, Any, Any]]) -> Any:
        return {query: {d: v for q, d, v in triples if q == query} for query, _, _ in triples}

    return [
        nested,
        lambda triples: {q: [*by.items()] for q, by in nested(triples).items()},
        lambda triples: pd.DataFrame(triples, columns=columns).set_index(columns[:2]),
        lambda triples: pd.DataFrame(triples, columns=["qid", "docno", value], index=[7] * len(triples)),
        lambda triples: pa.Table.from_pylist([dict(zip(columns, triple, strict=True)) for triple in triples]),
        iter,
        lambda triples: (dict(zip(columns, triple, strict=True)) for triple in triples),
    ]


@pytest.mark.parametrize("hold", frames("relevance"))
def test_grades_are_integers(hold: Any) -> None:
    """The faults: 0.9 is cut to 0; integer ids match nothing; pytrec_eval refuses NumPy's integers."""
    for ids in (("1", "10", "11"), (1, 10, 11), (1.0, 10.0, 11.0), (np.int64(1), np.int32(10), np.int64(11))):
        query, *documents = ids
        for grade in (1, 1.0, np.int64(1)):
            found = in_python.qrels(hold([(query, documents[0], grade), (query, documents[1], 0)]))
            assert found == {"1": {"10": 1, "11": 0}} and {type(value) for value in found["1"].values()} == {int}
    for grade in (0.9, NAN, None):
        with pytest.raises(CaiError, match=r"query 'q', document 'd': the grade .* is not an integer"):
            in_python.qrels(hold([("q", "d", grade)]))
    with pytest.raises(CaiError, match="the id is missing"):
        in_python.qrels(hold([("q", None, 1)]))


@pytest.mark.parametrize("hold", frames("score"))
def test_scores_are_finite(hold: Any) -> None:
    """The fault: a document with the score NaN is first in a ranking."""
    found = in_python.ranking(hold([(1, 10, 2), (1, 11, np.float32(0.5))]))
    assert [*map(list, found)] == [["1", "1"], ["10", "11"], [2.0, 0.5]]
    for score in (NAN, math.inf, -math.inf, None):
        with pytest.raises(CaiError, match="document 'b' for query 'q' has a score that is no finite number"):
            in_python.ranking(hold([("q", "a", 1.0), ("q", "b", score)]))


def test_other_judgments_and_rankings() -> None:
    assert in_python.qrels([ir_measures.Qrel("q", "d", 1)]) == {"q": {"d": 1}}
    assert in_python.qrels({"q": {}, 2: {"d": "1"}}) == {"q": {}, "2": {"d": 1}}
    scored = in_python.ranking([ir_measures.ScoredDoc("q", "d", 1.5)])
    hits = {"q": [SimpleNamespace(id="d", score=1.5)]}
    assert [*map(list, scored)] == [*map(list, in_python.ranking(hits))]
    for data, message in [
        ({"q": {"d": True}}, "the grade True is not an integer"),
        ([("q", "d", 1), ("q", "d", 2)], "query 'q', document 'd' is judged differently above"),
        ({"q": "d"}, "query 'q' has a str: give a dict of documents"),
        ([("q", "d")], "row 0, counted from 0 is a tuple: give query, document and value"),
        (3, "qrels: a int, but neither"),
        (pd.DataFrame({"query_id": [], "relevance": []}), "no 'corpus-id' or"),
    ]:  # fmt: skip
        with pytest.raises(CaiError, match=message):
            in_python.qrels(data)
    for data, message in [
        ([("q", 1, 1), ("q", "1", 2)], "document '1' for query 'q' is listed twice"),
        ({"q": ["d"]}, "query 'q' has a str: give a hit, or document and score"),
        (pd.DataFrame({"qid": ["q"], "docno": [NAN], "score": [1]}), "a ranking, row 0, counted from 0: the id is"),
    ]:  # fmt: skip
        with pytest.raises(CaiError, match=message):
            in_python.ranking(data)


@pytest.mark.parametrize(
    "queries, expected",
    [
        ("a", {"0": "a"}),
        ((text for text in "ab"), {"0": "a", "1": "b"}),
        ({1: "a", 2.0: "b"}, {"1": "a", "2": "b"}),
        ([(1, "a")], {"1": "a"}),
        ([{"_id": 1, "text": "a"}], {"1": "a"}),
        (pd.DataFrame({"qid": [1], "query": ["a"]}), {"1": "a"}),
        (pa.table({"query_id": [1], "text": ["a"]}), {"1": "a"}),
        (pd.Series({"x": "a"}), {"x": "a"}),
        (pd.Series(["a", "b"], index=[0, 0]), {"0": "a", "1": "b"}),
    ],
)
def test_queries_have_ids(queries: Any, expected: dict[str, str]) -> None:
    assert in_python.topics(queries) == expected


@pytest.mark.parametrize(
    "queries, message",
    [
        ({"x": NAN}, r"query 0, counted from 0 \(id 'x'\) is a float: give a text"),
        ([("x", "a"), ("x", "b")], "query 'x' occurs twice"),
        ({"qid": "x", "query": "a"}, "queries: a dict with 'query' is one record"),
        (pd.DataFrame({"qid": [1, NAN], "query": ["a", "b"]}), "query 1, counted from 0: the id is missing"),
        (pd.DataFrame({"text": ["a"]}), "no 'query-id' or .* among 'text'"),
    ],
)
def test_what_is_no_query_is_named(queries: Any, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        in_python.topics(queries)
