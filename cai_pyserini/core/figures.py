"""Figures with matplotlib, as PNG files and SVG."""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cai_pyserini.core.files import atomic_write


def figure(x: str, y: str, title: str = "", size: tuple[float, float] = (6, 4)) -> tuple[Figure, Axes]:
    """An empty figure with these axis labels; `size` is in inches."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def svg(figure: Figure) -> str:
    """A figure as SVG with a transparent background; equal figures give equal text."""
    text = StringIO()
    with rc_context({"svg.hashsalt": "cai_pyserini", "svg.fonttype": "none"}):  # ids are not random, letters not paths
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def plot_differences(differences: Sequence[float], y: str, positive: str, negative: str) -> Figure:
    """Differences by query as bars in descending order. The legend has the mean, and the labels `positive` and
    `negative` of the bars."""
    fig, axes = figure("queries, in order of the difference", y)
    rounded, counts = np.unique(-np.round(differences, 3), return_counts=True)  # equal ones are one bar: a small file
    heights, edges = -rounded, [0, *np.cumsum(counts)]
    axes.stairs(heights.clip(min=0), edges, fill=True, color="tab:green", label=positive)
    axes.stairs(heights.clip(max=0), edges, fill=True, color="tab:red", label=negative)
    mean = float(np.mean(differences))
    axes.axhline(mean, color="black", linewidth=1, linestyle="--", label=f"mean {mean:+.4f}")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    fig.legend(loc="outside lower left", frameon=False)
    return fig


def plot_lines(path: Path, x: str, panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]) -> None:
    """Plot lines by label, in a panel for each quantity y; with a logarithmic axis if it varies by a factor of 100."""
    lines_figure = Figure(figsize=(6, 1.6 + 2.4 * len(panels)), layout="constrained")
    rows = lines_figure.subplots(len(panels), sharex=True, squeeze=False).flat
    for axes, (y, lines) in zip(rows, panels.items(), strict=True):
        axes.set(xlabel=x if y == [*panels][-1] else "", ylabel=y)
        axes.grid(alpha=0.3)
        for label, points in lines.items():
            axes.plot(*points, marker=".", label=label)
        values = [value for points in lines.values() for value in points[1]]
        if 0 < 100 * min(values) < max(values):
            axes.set_yscale("log")
        if len(lines) > 1:
            axes.legend()
    save(lines_figure, path)
