"""The charts of report.html."""

from base64 import b64encode
from html import escape
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from cai_pyserini.core.figures import figure, plot_differences, svg
from cai_pyserini.experiments.experiment import BASELINE, Results
from cai_pyserini.runs.significance import MIN_QUERIES, Values, wins_and_losses


class Chart(NamedTuple):
    """A figure with its heading, what it says in words, and how to read it."""

    title: str
    figure: Figure
    alt: str
    caption: str

    @property
    def image(self) -> str:
        """The figure as an HTML image, in which ids of SVG clash with no others."""
        data = b64encode(svg(self.figure).encode()).decode()
        return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(self.alt)}">'


def charts(results: Results, values: Values) -> list[Chart]:
    """The charts of a run with scores; see report.page."""
    return [scores_chart(results), *_differences_chart(results, values), _cost_chart(results)]


def scores_chart(results: Results) -> Chart:
    """The mean of each system, the best first, with its 95% confidence interval."""
    names = _best_first(results)
    means = [results.systems[name][results.measure] for name in names]
    intervals = [results.intervals.get(name) for name in names]
    ends = [interval or (mean, mean) for interval, mean in zip(intervals, means, strict=True)]
    margins = np.abs(np.array(ends).T - means)
    fig, axes = figure(results.measure, "", size=(7, 0.9 + 0.24 * len(names)))
    axes.barh(names, means, xerr=margins, color="tab:blue", ecolor="black", error_kw={"linewidth": 1, "capsize": 2})
    axes.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, None))
    best, worst = (f"{names[place]} with {means[place]:.4f}" for place in (0, -1))
    alt = f"Bars of {results.measure} for {len(names)} systems, from {best} to {worst}; the table has all values."
    caption = (
        "Lines are 95% confidence intervals of each mean over queries (bootstrap). Two systems with overlapping "
        "intervals can still differ significantly, because they answer the same queries: see p in the table."
    )
    if not any(intervals):
        caption = f"Below {MIN_QUERIES} queries, there are no confidence intervals."
    return Chart(f"{results.measure} by system", fig, alt, caption)


def _best_first(results: Results) -> list[str]:
    return sorted(results.systems, key=lambda name: -results.systems[name][results.measure])


def _differences_chart(results: Results, values: Values) -> list[Chart]:
    """The differences by query between the best system and the baseline; empty without two systems."""
    best = next((name for name in _best_first(results) if name != BASELINE), "")
    if not {best, BASELINE} <= values.keys():
        return []
    differences = [values[best][query] - value for query, value in values[BASELINE].items()]
    better, worse = wins_and_losses(differences)
    labels = f"{best} is better: {better:,}", f"{BASELINE} is better: {worse:,}"
    alt = (
        f"Bars of the difference for each of {len(differences):,} queries, sorted: {best} is better on {better:,}, "
        f"{BASELINE} on {worse:,}; the mean difference is {np.mean(differences):+.4f}."
    )
    caption = "If the mean comes from a few large bars, look at these queries first; evaluate --changes prints them."
    return [
        Chart(
            f"{best} and {BASELINE}, query by query",
            plot_differences(differences, f"difference in {results.measure}", *labels),
            alt,
            caption,
        )
    ]


def _cost_chart(results: Results) -> Chart:
    """The first measure against milliseconds per query, and a line through the systems that no other beats in both."""
    points = {name: (row["ms_per_query"], row[results.measure]) for name, row in results.systems.items()}
    efficient: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not efficient or points[name][1] > points[efficient[-1]][1]:
            efficient.append(name)
    fig, axes = figure("ms per query, encoding and search in batches", results.measure, size=(7, 4.5))
    axes.set_xscale("log")
    axes.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator(), major_formatter="{x:g}")
    axes.plot(*zip(*points.values(), strict=True), ".", color="tab:gray")
    axes.plot(*zip(*(points[name] for name in efficient), strict=True), marker="o", color="tab:blue")
    axes.margins(x=0.25, y=0.1)
    labelled, width = np.array([np.inf, np.inf]), 0.0
    for name in reversed(efficient):  # label the best, and others whose labels do not meet the last one
        place = axes.transAxes.inverted().transform(axes.transData.transform(points[name]))
        if (np.abs(labelled - place) > (width, 0.04)).any():
            axes.annotate(name, points[name], (-4, 4), textcoords="offset points", ha="right", fontsize="small")
            labelled, width = place, 0.012 * len(name)
    shown = ", ".join(f"{name} ({points[name][0]:.2f} ms, {points[name][1]:.4f})" for name in efficient)
    return Chart(
        f"{results.measure} and time",
        fig,
        f"Points of {results.measure} against milliseconds per query for {len(points)} systems; the text below names "
        "the best.",
        f"No system is both faster and better than those on the line: {shown}. Times depend on the machine.",
    )
