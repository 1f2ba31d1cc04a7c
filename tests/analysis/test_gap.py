"""Weighted Jaccard similarity by hand, and tables of word counts."""

import gzip
import json
from pathlib import Path

import pytest

from cai_pyserini.analysis.gap import PUBLISHED, frequencies, jaccard
from cai_pyserini.cli import CaiError
from cai_pyserini.config import names
from tests.conftest import Command


@pytest.mark.parametrize(
    "a, b, similarity",
    [
        ({"x": 1, "y": 1}, {"y": 2, "z": 2}, 0.5 / 1.5),
        ({"x": 3, "y": 1}, {"x": 1, "y": 1, "z": 2}, (0.25 + 0.25) / (0.75 + 0.25 + 0.5)),
        ({"x": 3, "y": 1}, {"x": 300, "y": 100}, 1),
        ({"x": 1}, {"y": 1}, 0),
    ],
)
def test_jaccard_worked_examples(a: dict[str, int], b: dict[str, int], similarity: float) -> None:
    assert jaccard(a, b) == jaccard(b, a) == pytest.approx(similarity)


def test_words_of_a_collection(tiny: Path) -> None:
    counts = frequencies(str(tiny))
    assert counts["insulin"] == 3  # the title's among them
    assert counts["körpergröße"] == counts["größe"] == counts["2"] == counts["½"] == 1
    assert counts["marathon"] == 1 and "runner." not in counts
    assert counts["is"] == 2


def test_words_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A b-c, a_b.\n\nÄ A\n")
    assert frequencies(str(tmp_path / "a.txt")) == {"a": 2, "b": 1, "c": 1, "a_b": 1, "ä": 1}


@pytest.mark.parametrize("line", ["word", "word\t", "word\t1.5", "word\t-1", "word 3"])
def test_a_line_that_is_no_count(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.tsv").write_text(f"the\t9\n{line}\n")
    with pytest.raises(CaiError, match=r"a\.tsv:2: expected a word, a tab and its count"):
        frequencies(str(tmp_path / "a.tsv"))


@pytest.mark.parametrize("name", ["a.txt", "a.tsv"])
def test_without_words(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("…\n" if name == "a.txt" else "")
    with pytest.raises(CaiError, match="has no words"):
        frequencies(str(tmp_path / name))


def test_published_collections_are_known() -> None:
    assert set(PUBLISHED) <= set(names("index_configs"))
    assert len(PUBLISHED) == 15


def test_saved_tables_stand_for_their_collections(tiny: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "msmarco.txt").write_text("Insulin lowers blood glucose.\n")
    (tmp_path / "scifact.txt").write_text("insulin lowers blood pressure, INSULIN\n")
    collections = ["msmarco.txt", "scifact.txt", tiny]
    done = command("cai_pyserini.analysis.gap", *collections, "--output", "a", "--save-frequencies", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Three words are shared, each 1/4 of msmarco; of scifact "insulin" is 2/5, the others 1/5: J = 0.65 / (2 - 0.65)
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "a/msmarco.tsv: 4 words, 4 of them different",
        "a/scifact.tsv: 5 words, 4 of them different",
    ]
    assert lines[3:6] == [
        "collection  collection      J  Iida & Okazaki 2022",
        "--------------------------------------------------",
        "msmarco        scifact  0.481                0.273",
    ]
    data = json.loads((tmp_path / "a" / "gap.json").read_text())
    assert data["collections"]["scifact"] == {"words": 5, "different": 4}
    assert data["pairs"][0] == {
        "collections": ["msmarco", "scifact"],
        "similarity": pytest.approx(0.65 / 1.35),
        "published": 0.273,
    }
    assert (tmp_path / "a" / "scifact.tsv").read_text() == "insulin\t2\nlowers\t1\nblood\t1\npressure\t1\n"
    assert (tmp_path / "a" / "gap.png").stat().st_size > 5000

    packed = gzip.compress((tmp_path / "a" / "tiny.tsv").read_bytes())
    (tmp_path / "tiny.tsv.gz").write_bytes(packed)
    tables = ["a/msmarco.tsv", "a/scifact.tsv", "tiny.tsv.gz"]
    again = command("cai_pyserini.analysis.gap", *tables, "--output", "b", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "b" / "gap.json").read_text()) == data


def test_one_collection_is_only_counted(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.txt").write_text("one word\n")
    done = command("cai_pyserini.analysis.gap", "a.txt", "--output", "out", cwd=tmp_path)
    assert done.returncode == 1 and "one collection has nothing to be compared with" in done.stderr
    done = command("cai_pyserini.analysis.gap", "a.txt", "--output", "out", "--save-frequencies", cwd=tmp_path)
    assert done.stdout == "out/a.tsv: 2 words, 2 of them different\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.tsv"]


def test_names_differ(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.txt").write_text("one word\n")
    (tmp_path / "a.jsonl").write_text('{"text": "another word"}\n')
    done = command("cai_pyserini.analysis.gap", "a.txt", "a.jsonl", "--output", "out", cwd=tmp_path)
    assert done.stderr == "error: a.jsonl: another collection is named a, too; rename one of them\n"
