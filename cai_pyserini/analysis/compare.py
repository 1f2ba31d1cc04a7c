"""Do runs differ by more than chance, and on which queries do two of them differ most?"""

from textwrap import shorten

from cai_pyserini.analysis.settings import CompareSettings, Report
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.tables import render
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.significance import TIE

TEXT_WIDTH = 80


def compare(settings: CompareSettings) -> Report:
    """The differences between runs and, of two, the differences by query."""
    config = load_index_config(settings.collection)
    collection, split = open_collection(config), settings.split or config.split
    compared = Compared.of_runs(collection, split, settings.trec, [settings.measure])
    first, *others = compared.systems
    text, data = compared.render(settings.format, f"{config.name}, split {split}"), compared.data()
    if len(others) == 1:
        topics, changes = collection.topics(split), compared.changes(others[0])
        a, b = (compared.per_query[name][settings.measure] for name in (first, *others))
        gains = [query for query, change in changes.items() if change > TIE]
        losses = [query for query, change in reversed(changes.items()) if change < -TIE]
        rows = [["queries that changed most", "first", "second", "difference"]]
        rows += [
            [
                f"{query}: {shorten(topics.get(query, ''), TEXT_WIDTH, placeholder='…')}",
                f"{a[query]:.4f}",
                f"{b[query]:.4f}",
                f"{changes[query]:+.4f}",
            ]
            for query in gains[: settings.top] + losses[: settings.top]
        ]
        text = f"{text}\n\n{render(rows, settings.format)}"
        data["changes"] = [
            {"query": query, "text": topics.get(query, ""), "first": a[query], "second": b[query], "difference": change}
            for query, change in changes.items()
        ]
    return Report("compare", text, data)
