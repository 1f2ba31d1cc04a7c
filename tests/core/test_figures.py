"""Figures are written as PNG files, whole or not at all."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cai_pyserini.core import figures


def test_lines_are_drawn_with_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    figures.plot_lines(
        tmp_path / "a.png", "step", "loss", {"train": ([1, 2], [3.0, 1.0]), "test": ([1, 2], [4.0, 2.0])}
    )
    (axes,) = drawn[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    assert [(line.get_label(), list(line.get_ydata())) for line in axes.lines] == [
        ("train", [3.0, 1.0]),
        ("test", [4.0, 2.0]),
    ]
    legend = axes.get_legend()
    assert legend and [text.get_text() for text in legend.get_texts()] == ["train", "test"]


def test_a_figure_is_a_png(tmp_path: Path) -> None:
    figures.plot_lines(tmp_path / "sub" / "a.png", "step", "loss", {"train": ([1, 2], [3.0, 1.0])})
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["a.png"]
    assert (tmp_path / "sub" / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
