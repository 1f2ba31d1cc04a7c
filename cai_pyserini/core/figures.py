"""Figures with matplotlib, as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cai_pyserini.core.files import atomic_write


def figure(x: str, y: str, title: str = "", size: tuple[float, float] = (6, 4)) -> tuple[Figure, Axes]:
    """An empty figure with these axis labels; `size` is in inches."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def plot_lines(path: Path, x: str, y: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    lines_figure, axes = figure(x, y)
    for label, points in lines.items():
        axes.plot(*points, marker=".", label=label)
    if len(lines) > 1:
        axes.legend()
    save(lines_figure, path)
