"""Weighted Jaccard similarity by hand, and tables of word counts."""

import gzip
import json
from pathlib import Path

import pytest

from cai_pyserini.analysis.overlap import count_words, jaccard, read_table
from cai_pyserini.cli.analyse import main
from cai_pyserini.core.errors import CaiError


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "a, b, similarity",
    [
        ({"x": 1, "y": 1}, {"y": 2, "z": 2}, 0.5 / 1.5),
        ({"x": 3, "y": 1}, {"x": 1, "y": 1, "z": 2}, (0.25 + 0.25) / (0.75 + 0.25 + 0.5)),
        ({"x": 1}, {"y": 1}, 0),
    ],
)
def test_jaccard_worked_examples(a: dict[str, int], b: dict[str, int], similarity: float) -> None:
    assert jaccard(a, b) == jaccard(b, a) == pytest.approx(similarity)


def test_words_of_a_collection(tiny: Path) -> None:
    counts = count_words(str(tiny))
    assert counts["insulin"] == 3  # title included
    assert counts["körpergröße"] == counts["größe"] == counts["2"] == counts["½"] == 1
    assert counts["marathon"] == 1 and "runner." not in counts
    assert counts["is"] == 2
    Path("a.txt").write_text("A b-c, a_b.\n\nÄ A\n")
    assert count_words("a.txt") == {"a": 2, "b": 1, "c": 1, "a_b": 1, "ä": 1}


@pytest.mark.parametrize("line", ["word", "word\t1.5", "word\t-1"])
def test_a_line_without_a_count_is_refused(line: str) -> None:
    Path("a.tsv").write_text(f"the\t9\n{line}\n")
    with pytest.raises(CaiError, match=r"a\.tsv:2: expected a word, a tab and its count"):
        read_table(Path("a.tsv"))


@pytest.mark.parametrize("name, text", [("a.txt", "…\n"), ("a.tsv", "")])
def test_a_collection_without_words_is_refused(name: str, text: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(CaiError, match=f"{name} has no words"):
        main(["overlap", name, "--output", "out", "--save-frequencies"])
    assert not Path("out").exists()


def test_saved_tables_replace_their_collections(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("msmarco.txt").write_text("Insulin lowers blood glucose.\n")
    Path("scifact.txt").write_text("insulin lowers blood pressure, INSULIN\n")
    main(["overlap", "msmarco.txt", "scifact.txt", str(tiny), "--output", "a", "--save-frequencies"])
    # Three words are shared, each 1/4 of msmarco; "insulin" is 2/5 of scifact, the others 1/5: J = 0.65 / (2 - 0.65)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["msmarco: 4 words, 4 of them distinct", "scifact: 5 words, 4 of them distinct"]
    assert lines[4:7] == [
        "collection  collection      J  Iida & Okazaki 2022",
        "--------------------------------------------------",
        "msmarco        scifact  0.481                0.273",
    ]
    assert lines[-1] == "a: overlap.json, overlap.png, msmarco.tsv, scifact.tsv, tiny.tsv"
    data = json.loads(Path("a/overlap.json").read_text())
    assert data["collections"]["scifact"] == {"words": 5, "distinct": 4}
    assert data["pairs"][0] == {
        "collections": ["msmarco", "scifact"],
        "similarity": pytest.approx(0.65 / 1.35),
        "published": 0.273,
    }
    assert Path("a/scifact.tsv").read_text() == "insulin\t2\nlowers\t1\nblood\t1\npressure\t1\n"
    assert Path("a/overlap.png").read_bytes().startswith(b"\x89PNG")

    Path("tiny.tsv.gz").write_bytes(gzip.compress(Path("a/tiny.tsv").read_bytes()))
    main(["overlap", "a/msmarco.tsv", "a/scifact.tsv", "tiny.tsv.gz", "--output", "b"])
    assert json.loads(Path("b/overlap.json").read_text()) == data


def test_one_collection_is_only_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.txt").write_text("one word\n")
    with pytest.raises(CaiError, match="one collection has nothing to be compared with"):
        main(["overlap", "a.txt", "--output", "out"])
    main(["overlap", "a.txt", "--output", "out", "--save-frequencies"])
    assert capsys.readouterr().out == "a: 2 words, 2 of them distinct\n\nout: overlap.json, a.tsv\n"
    assert json.loads(Path("out/overlap.json").read_text())["pairs"] == []


def test_collections_of_the_same_name_are_refused() -> None:
    Path("a.txt").write_text("one word\n")
    Path("a.jsonl").write_text('{"text": "another word"}\n')
    with pytest.raises(CaiError, match=r"a\.jsonl: another collection is named a, too; rename one of them"):
        main(["overlap", "a.txt", "a.jsonl", "--output", "out"])
