"""Weighted Jaccard similarity by hand."""

import json
from pathlib import Path

import pytest

from cai_pyserini.analysis.overlap import count_words, jaccard
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


def test_the_command(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.txt").write_text("Insulin lowers blood glucose.\n")
    Path("two.txt").write_text("insulin lowers blood pressure, INSULIN\n")
    main(["overlap", "one.txt", "two.txt", str(tiny), "--output", "a"])
    # Three words are shared, each 1/4 of one; "insulin" is 2/5 of two, the others 1/5: J = 0.65 / (2 - 0.65)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["one.txt: 4 words, 4 of them distinct", "two.txt: 5 words, 4 of them distinct"]
    assert [line.split() for line in lines[4:7:2]] == [
        ["collection", "collection", "similarity"],
        ["one.txt", "two.txt", "0.481"],
    ]
    data = json.loads(Path("a/overlap.json").read_text())
    assert data["collections"]["two.txt"] == {"words": 5, "distinct": 4} and len(data["pairs"]) == 3
    assert data["pairs"][0] == {"collections": ["one.txt", "two.txt"], "similarity": pytest.approx(0.65 / 1.35)}


def test_a_collection_without_words_is_refused() -> None:
    for name, text in {"a.txt": "one word\n", "b.txt": "…\n"}.items():
        Path(name).write_text(text)
    with pytest.raises(CaiError, match=r"b\.txt has no words"):
        main(["overlap", "a.txt", "b.txt", "--output", "out"])
    assert not Path("out").exists()
