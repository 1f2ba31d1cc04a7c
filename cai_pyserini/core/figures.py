"""Figures with matplotlib, as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from cai_pyserini.core.files import atomic_write


def save(figure: Figure, path: Path) -> None:
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def plot_lines(path: Path, x: str, y: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    made = Figure(figsize=(6, 4), layout="constrained")  # inches
    axes = made.add_subplot(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    for label, points in lines.items():
        axes.plot(*points, marker=".", label=label)
    if len(lines) > 1:
        axes.legend()
    save(made, path)
