"""JSON vectors in the analyzer's format; tests/properties/test_readers.py compares slicing with parsing."""

import json
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors.json_vectors import parse_checked, read_vectors


def vector_line(id: object, vector: Any) -> str:
    return json.dumps({"id": id, "contents": "", "vector": vector}, ensure_ascii=False)


@pytest.fixture
def read(tmp_path: Path):
    """Read lines as a file of JSON vectors, and return the id and tokens of each."""

    def lines(*texts: str) -> list[tuple[str, list[str]]]:
        (tmp_path / "00000.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return [(id, found.split()) for _, _, id, found in read_vectors([tmp_path / "00000.jsonl"])]

    return lines


@pytest.mark.parametrize(
    "line",
    [
        '{"id":"a","contents":"","vector":{"x":2,"y":3}}',
        '{"vector": {"x": 2, "y": 3}, "id": "a"}',
        '{ "id" : "a", "vector" : { "x" : 2 , "y" : 3 } }',
        '{"id": "a", "contents": "its text", "vector": {"x": 2, "y": 3}}',
        '{"id": "a", "contents": "", "vector": {"\\u0078": 2, "y": 3}}',
        '{"id": "a", "contents": "", "vector": {"x": 2, "y": 3}, "more": {"z": 1}}',
        '{"id": "a", "contents": "", "vector": {"x": 2, "y": 3}} ',
        '{"id": "a", "contents": "", "vector": {"x":2, "y":3}}',
        '{"id": "a", "contents": "", "vector": {"x": 2,"y": 3}}',
        '{"id": "a", "contents": "", "vector": {"x":  2,  "y": 3 }}',
    ],
)
def test_json_in_other_formats(read, line: str) -> None:
    assert read(line) == [("a", ["x\x012", "y\x013"])]


def test_terms_can_have_no_break_spaces(read) -> None:
    """Unlike Python, Lucene does not split at them."""
    terms = ["a\u00a0b", "a\u202fb", "a\u2007b", "a\x85b"]
    line = vector_line("a", dict.fromkeys(terms, 2))
    assert parse_checked(line, "here") == ("a", " ".join(f"{term}\x012" for term in terms))


BROKEN = [
    ('{"id": "b", "contents": "", "vector": {"x": 2', "not JSON"),
    ('{"id": "b", "contents": "", "vector": {"x": }}', "not JSON"),
    ('{"id": "b", "contents": "", "vector": {"x"}}', "not JSON"),
    ('{"id": "b", "contents": ""}', 'expected {"id"'),
    ('{"contents": "", "vector": {"x": 2}}', "the id None is not a string"),
    ('{"id": "b", "contents": "", "vector": ["x"]}', 'expected {"id"'),
    ('["b"]', "expected a JSON object"),
    (vector_line("b", {"x": 0}), "the impact of 'x' is 0; it must be an integer from 1 to 2147483647"),
    (vector_line("b", {"x": -3}), "the impact of 'x' is -3"),
    (vector_line("b", {"x": 2.0}), "the impact of 'x' is 2.0"),
    (vector_line("b", {"x": 1e3}), "the impact of 'x' is 1000.0"),
    (vector_line("b", {"x": "2"}), "the impact of 'x' is '2'"),
    (vector_line("b", {"x": True}), "the impact of 'x' is True"),
    (vector_line("b", {"x": None}), "the impact of 'x' is None"),
    (vector_line("b", {"x": {"y": 2}}), "the impact of 'x' is {'y': 2}"),
    (vector_line("b", {"x": 2**31}), "the impact of 'x' is 2147483648"),
    (vector_line("b", {"y": 1, "x": 0}), "the impact of 'x' is 0"),
    (vector_line("b", {"x y": 2}), "the term 'x y' is empty or has white space"),
    (vector_line("b", {"x\u2003y": 2}), r"the term 'x\u2003y' is empty or has white space"),
    (vector_line("b", {"": 2}), "the term '' is empty"),
    (vector_line("b", {"x\x01y": 2}), r"the term 'x\x01y' is empty or has white space"),
    (vector_line("b", {"x" * 32767: 2}), "the term xxxxxxxxxxxxxxxxxxxx… has 32,767 bytes; Lucene takes 32,766"),
    (vector_line("b", {"β" * 16384: 2}), "the term ββββββββββββββββββββ… has 32,768 bytes"),
    (vector_line("b c", {"x": 2}), "the id 'b c' is not a string, is empty or has white space"),
    (vector_line("", {"x": 2}), "the id '' is not a string, is empty or has white space"),
    (vector_line(7, {"x": 2}), "the id 7 is not a string"),
    ('{"id": "b", "contents": "", "vector": {"x": 2, "y": 1, "x": 3}}', "the key 'x' occurs twice in an object"),
    ('{"id": "b", "id": "c", "contents": "", "vector": {"x": 2}}', "the key 'id' occurs twice in an object"),
]


@pytest.mark.parametrize("line, message", BROKEN, ids=lambda value: value[:60])
def test_a_broken_line_is_named(line: str, message: str) -> None:
    with pytest.raises(CaiError) as error:
        parse_checked(line, "file:2")
    assert str(error.value).startswith(f"file:2: {message}")
