"""Reports, names of runs, and texts cut at word boundaries."""

from pathlib import Path

import pytest

from cai_pyserini.analysis.output import cut, labels
from cai_pyserini.core.errors import CaiError


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
def test_labels_distinguish_paths(paths: list[str], names: list[str]) -> None:
    assert labels([Path(path) for path in paths]) == names


def test_a_path_given_twice_is_refused() -> None:
    with pytest.raises(CaiError, match="a is given twice"):
        labels([Path("a.trec"), Path("b.trec"), Path("more/../a.trec")])


def test_texts_are_cut_to_one_line_at_white_space() -> None:
    assert cut("a short text", 12) == "a short text" and cut("a short text", 11) == "a short…"
    assert cut("two\n lines", 9) == "two lines"
    assert cut("two\n lines", 8) == "two…"
    assert cut("unbreakable", 5) == "unbr…"
