"""Reports, names of runs, and texts cut at word boundaries."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cai_pyserini.analysis.output import Report, cut, labels, split_text
from cai_pyserini.core.errors import CaiError


def test_a_report_writes_its_data_and_files(tmp_path: Path) -> None:
    report = Report("x", "", {"ä": 1}, {"x.png": Figure(), "x.tsv": "a\tb\n"})
    assert report.write(tmp_path / "new") == ["x.json", "x.png", "x.tsv"]
    assert json.loads((tmp_path / "new" / "x.json").read_text()) == {"ä": 1}
    assert (tmp_path / "new" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "new" / "x.tsv").read_text() == "a\tb\n"


@pytest.mark.parametrize(
    "paths, names",
    [
        (["runs/hpo/tiny"], ["tiny"]),
        (["runs/hpo/tiny", "runs/scifact/tiny"], ["hpo/tiny", "scifact/tiny"]),
        (["hpo/runs/bm25.trec", "hpo/runs/splade-idf.trec"], ["bm25", "splade-idf"]),
        (["base/runs/splade.trec", "adapted/runs/splade.trec"], ["base/splade", "adapted/splade"]),
        (["a.trec", "more/../more/a"], ["a", "more/a"]),
    ],
)
def test_labels_tell_paths_apart(paths: list[str], names: list[str]) -> None:
    assert labels([Path(path) for path in paths]) == names


def test_a_path_given_twice_is_refused() -> None:
    with pytest.raises(CaiError, match="a is given twice"):
        labels([Path("a.trec"), Path("b.trec"), Path("more/../a.trec")])


@pytest.mark.parametrize(
    "text, width, parts",
    [
        ("a short text", 12, ("a short text", "")),
        ("a short text", 11, ("a short", " text")),
        ("unbreakable", 4, ("unbr", "eakable")),
    ],
)
def test_texts_are_split_at_white_space(text: str, width: int, parts: tuple[str, str]) -> None:
    assert split_text(text, width) == parts


def test_cut_texts_are_one_line_within_the_width() -> None:
    assert cut("two\n lines", 9) == "two lines"
    assert cut("two\n lines", 8) == "two…"
    assert cut("unbreakable", 5) == "unbr…"
