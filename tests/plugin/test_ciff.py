"""CIFF files, read according to the specification (github.com/osirrc/ciff)."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.proto import parse_length_prefixed
from google.protobuf.unknown_fields import UnknownFieldSet

from cai_pyserini.plugin.ciff import write_ciff
from cai_pyserini.plugin.source import Source
from tests.conftest import json_lines
from tests.plugin.conftest import stored_impacts

Message = dict[int, list[Any]]


def message(content: Empty) -> Message:
    """The values of a protobuf message by field: integers, doubles as 64 bits, and bytes."""
    fields: Message = {}
    for field in UnknownFieldSet(content):
        fields.setdefault(field.field_number, []).append(field.data)
    return fields


def messages(path: Path) -> Iterator[Message]:
    with path.open("rb") as file:
        while (content := parse_length_prefixed(Empty, file)) is not None:
            yield message(content)


def read_ciff(path: Path) -> tuple[Message, dict[str, list[tuple[int, int]]], list[Message]]:
    """The header, the postings (document, impact) by term, and the records of documents."""
    parts = messages(path)
    header = next(parts)
    postings: dict[str, list[tuple[int, int]]] = {}
    for _ in range(header[2][0]):
        fields = next(parts)
        term, document = fields[1][0].decode(), 0
        found = postings[term] = []
        for posting in map(message, map(Empty.FromString, fields[4])):
            document += posting.get(1, [0])[0]
            found.append((document, posting[2][0]))
        assert fields[2] == [len(found)] and fields[3] == [sum(impact for _, impact in found)]
    records = list(parts)
    assert len(records) == header[3][0]
    return header, postings, records


@pytest.mark.slow
def test_the_postings_are_those_of_the_documents(
    java: None, impacts: Path, queries: dict[str, str], tmp_path: Path
) -> None:
    source = Source(impacts, queries)
    source.export(tmp_path / "ciff", write_ciff, "ciff")
    header, postings, records = read_ciff(tmp_path / "ciff" / "index.ciff")
    assert list(postings) == sorted(postings, key=str.encode)
    ids = [record[2][0].decode() for record in records]
    vectors: dict[str, dict[str, int]] = {id: {} for id in ids}
    for term, found in postings.items():
        for document, impact in found:
            vectors[ids[document]][term] = impact
    assert vectors == dict(source.documents())
    total = sum(sum(vector.values()) for vector in vectors.values())
    assert [header[field][0] for field in range(1, 7)] == [1, len(postings), 12, len(postings), 12, total]
    assert struct.pack("<Q", header[7][0]) == struct.pack("<d", total / 12)
    assert [record[3][0] for record in records] == [sum(vectors[id].values()) for id in ids]
    assert [record.get(1, [0])[0] for record in records] == list(range(12))
    written = {record["id"]: record["vector"] for record in json_lines(tmp_path / "ciff" / "queries.jsonl")}
    assert written == source.queries and len(written) == len(queries)


def test_numbers_of_every_length(checkpoint: Path, tmp_path: Path) -> None:
    numbers = [1, 127, 128, 300, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_456, 2**31 - 1]
    documents = {f"d{number}": {"fever": number} for number in numbers}
    impacts = stored_impacts(checkpoint, tmp_path / "impacts", [documents])
    Source(impacts).export(tmp_path / "ciff", write_ciff, "ciff")
    header, postings, _ = read_ciff(tmp_path / "ciff" / "index.ciff")
    assert postings == {"fever": list(enumerate(numbers))} and header[6] == [sum(numbers)]


def test_batches_make_the_same_file(impacts_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Source(impacts_by_hand).export(tmp_path / "one", write_ciff, "ciff")
    monkeypatch.setattr("cai_pyserini.plugin.ciff.BATCH", 1)
    Source(impacts_by_hand).export(tmp_path / "two", write_ciff, "ciff")
    assert (tmp_path / "one" / "index.ciff").read_bytes() == (tmp_path / "two" / "index.ciff").read_bytes()
    _, postings, records = read_ciff(tmp_path / "one" / "index.ciff")
    assert postings == {"##s": [(2, 7)], "cold": [(0, 5), (2, 2)], "fever": [(0, 3), (1, 1), (2, 100)], "é": [(4, 300)]}
    assert [record[2] for record in records] == [[b"d1"], [b"d2"], [b"d3"], [b"empty"], [b"d5"]]
    assert not (tmp_path / "one" / "queries.jsonl").exists()
