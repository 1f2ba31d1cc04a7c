"""Metadata of documents: where it is found, what is skipped or refused, and what depends on it."""

import json
import logging
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Kind, Metadata

KINDS: dict[str, Kind] = {"year": "number", "journal": "string", "published": "date", "authors": "list"}
WHOLE: Metadata = {"year": 2020, "journal": "BMJ", "published": "2020-05", "authors": ["Doe, J.", "Roe"]}


def write_documents(folder: Path, *documents: dict[str, Any]) -> Path:
    lines = [json.dumps({"_id": f"d{n}", "text": "text"} | document) + "\n" for n, document in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    return folder


def read_metadata(collection: BeirFolder) -> list[Metadata]:
    return [dict(record.metadata) for record in collection.records()]


def test_values_are_found_in_jsonl_csv_and_parquet(tmp_path: Path) -> None:
    as_strings = WHOLE | {"year": "2020", "authors": "Doe, J.; Roe;"}
    (tmp_path / "jsonl").mkdir()
    write_documents(tmp_path / "jsonl", {"metadata": WHOLE}, WHOLE, as_strings, {"metadata": {"year": 2.5}, "year": 7})
    expected = [WHOLE, WHOLE, WHOLE, {"year": 2.5}]
    assert read_metadata(BeirFolder(tmp_path / "jsonl", "x", metadata=KINDS)) == expected

    names = ["id", "text", *KINDS]
    rows = [",".join(names), 'd0,text,2020,BMJ,2020-05,"Doe, J.;Roe"', "d1,text,,,,"]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    assert read_metadata(BeirFolder(tmp_path / "x.csv", "x", metadata=KINDS)) == [WHOLE, {}]

    row, collection = {"id": "d0", "text": "text", **WHOLE, "published": date(2020, 5, 1)}, tmp_path / "x.parquet"
    parquet.write_table(pa.Table.from_pylist([row | {"year": 2020.0}]), collection)
    assert read_metadata(BeirFolder(collection, "x", metadata=KINDS)) == [WHOLE | {"published": "2020-05-01"}]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("year", "n.d.", "a number"),
        ("year", True, "a number"),
        ("year", 10**400, "a number"),
        ("journal", 7.5, "a string"),
        ("journal", "é" * 20_000, "a string of at most 32,766 bytes"),
        ("published", "May 2020", "a date in ISO 8601, such as 2020-05-17"),
        ("published", "2020-02-30", "a date in ISO 8601, such as 2020-05-17"),
        ("authors", {"name": "Doe"}, "a list of strings"),
        ("authors", ["Doe", None], "a string"),
    ],
)
def test_values_of_another_type_are_skipped_or_refused(
    name: str, value: object, expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_documents(tmp_path, {"metadata": WHOLE}, {"metadata": {name: value}})
    with caplog.at_level(logging.WARNING):
        assert read_metadata(BeirFolder(folder, "x", metadata=KINDS)) == [WHOLE, {}]
    message = f"corpus.jsonl:2: metadata {name!r} should be {expected}, not {str(value)[:100]!r}"
    assert message in caplog.text and "1 values of metadata are left out" in caplog.text
    with pytest.raises(CaiError, match=r"corpus\.jsonl:2: metadata"):
        BeirFolder(folder, "x", metadata=KINDS, strict=True).check("test")


def test_an_object_can_be_a_string_of_json_or_a_map(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "jsonl").mkdir()
    write_documents(tmp_path / "jsonl", {"metadata": json.dumps(WHOLE)}, {"metadata": "", **WHOLE}, {"metadata": None})
    assert read_metadata(BeirFolder(tmp_path / "jsonl", "x", metadata=KINDS)) == [WHOLE, WHOLE, {}]
    kinds: dict[str, Kind] = {"year": "number", "journal": "string"}
    expected = {name: WHOLE[name] for name in kinds}
    rows = [{"id": "d0", "text": "text", "metadata": json.dumps(expected)}, {"id": "d1", "text": "text"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "strings.parquet")
    kind = pa.map_(pa.string(), pa.string())
    column = pa.array([[("year", "2020"), ("journal", "BMJ")], None], kind)
    table = pa.table({"id": ["d0", "d1"], "text": ["", "text"], "metadata": column})
    parquet.write_table(table, tmp_path / "m.parquet")
    for name in ("strings.parquet", "m.parquet"):
        assert read_metadata(BeirFolder(tmp_path / name, "x", metadata=kinds)) == [expected, {}]
    assert "metadata" not in caplog.text


@pytest.mark.parametrize("wrong", ['{"year": 2020', "[2020]", [2020]])
def test_an_invalid_metadata_object_is_reported(
    wrong: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_documents(tmp_path, {"metadata": WHOLE}, {"metadata": wrong, "year": 7})
    assert read_metadata(BeirFolder(folder, "x", metadata=KINDS)) == [WHOLE, {"year": 7}]
    assert "corpus.jsonl:2: metadata 'journal' should be a string, not " in caplog.text
    assert "3 values of metadata are left out" in caplog.text
    with pytest.raises(CaiError, match=r"corpus\.jsonl:2: metadata"):
        read_metadata(BeirFolder(folder, "x", metadata=KINDS, strict=True))


BIG = 2**53 + 1


@pytest.mark.parametrize("value", [-BIG, f"{BIG}.0", 10**20 + 1])
def test_a_number_that_would_be_rounded_is_refused(value: object, tmp_path: Path) -> None:
    folder = write_documents(tmp_path, {"year": 2**53 - 1}, {"year": value})
    message = r"corpus\.jsonl:2: metadata 'year' should be a number that 64 bits hold exactly \(declare it `string`"
    with pytest.raises(CaiError, match=message):
        read_metadata(BeirFolder(folder, "x", metadata={"year": "number"}))


def test_integers_declared_as_strings_keep_their_digits(tmp_path: Path) -> None:
    kinds: dict[str, Kind] = {"tweet": "string", "cites": "list"}
    document = {"id": "d0", "text": "text", "tweet": BIG, "cites": [BIG, 7]}
    parquet.write_table(pa.Table.from_pylist([document]), tmp_path / "x.parquet")
    for folder in (tmp_path / "x.parquet", write_documents(tmp_path, document)):
        assert read_metadata(BeirFolder(folder, "x", metadata=kinds)) == [{"tweet": str(BIG), "cites": [str(BIG), "7"]}]


def test_a_field_that_no_document_has_is_refused(tmp_path: Path) -> None:
    folder = write_documents(tmp_path, {"metadata": {"year": 2020}})
    with pytest.raises(CaiError, match="collection x: no document has metadata 'yaer'; correct its name"):
        read_metadata(BeirFolder(folder, "x", metadata={"year": "number", "yaer": "number"}))
    (tmp_path / "x.csv").write_text("id,text,year\nd0,text,2020\n")
    with pytest.raises(CaiError, match="no column 'yaer', which the collection names under `metadata`"):
        read_metadata(BeirFolder(tmp_path / "x.csv", "x", metadata={"yaer": "number"}))


def test_metadata_fields_are_declared_in_yaml(tmp_path: Path) -> None:
    write_documents(tmp_path, WHOLE)
    config = tmp_path / "x.yaml"
    config.write_text(f"source: .\npassages: 1\nmetadata: {json.dumps(KINDS)}\n")
    assert [dict(record.metadata) for record in load_collection(str(config)).records()] == [WHOLE]
    for wrong, message in (
        ("{year: integer}", r"metadata\.year: 'integer' should be 'string', 'number', 'date' or 'list'"),
        ("{not: string}", "metadata: 'not' is reserved or not a name"),
        ("{contents: string}", "metadata: 'contents' is reserved or not a name"),
        ("{a b: string}", "metadata: 'a b' is reserved or not a name"),
    ):
        config.write_text(f"source: .\nmetadata: {wrong}\n")
        with pytest.raises(CaiError, match=message):
            load_collection(str(config))
    config.write_text("source: hpo\nmetadata: {year: number}\n")
    with pytest.raises(CaiError, match="metadata applies to files only, but its source is hpo"):
        load_collection(str(config))


def test_changed_metadata_changes_the_index_but_not_the_vectors(tmp_path: Path) -> None:
    """Otherwise a corrected year would encode all documents again, or not be indexed."""

    def fingerprints(text: str, year: int, kind: Kind = "number") -> tuple[str, str | None]:
        collection = BeirFolder(write_documents(tmp_path, {"text": text, "year": year}), "x", metadata={"year": kind})
        return collection.fingerprint("documents"), collection.metadata_fingerprint

    first, other_year, other_text = fingerprints("one", 2020), fingerprints("one", 2021), fingerprints("two", 2020)
    other_kind = fingerprints("one", 2020, "date")
    assert first[0] == other_year[0] == other_kind[0] != other_text[0]
    assert len({first[1], other_year[1], other_kind[1]}) == 3
    assert BeirFolder(tmp_path, "x").metadata_fingerprint is None
