"""Vocabulary overlap: how similar are the words of collections? (Iida & Okazaki 2022, Appendix E)

Weighted Jaccard similarity of word frequencies:

    J(A, B) = Σ_t min(A_t, B_t) / Σ_t max(A_t, B_t)

A_t is the relative frequency of word t in A. A word is a maximal sequence of letters, digits and underscores (the
regular expression \\w+) in the lower-cased contents, stop words included. The paper, which follows Thakur et al. 2021,
does not define "word", so its values may differ.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from cai_pyserini.analysis.output import Report
from cai_pyserini.analysis.settings import OverlapSettings
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import figure
from cai_pyserini.core.jsonl import read_lines
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.trainer.texts import texts

WORD = re.compile(r"\w+")
TABLE = (".tsv", ".tsv.gz")
MSMARCO = "msmarco"
PUBLISHED = {  # J(MS MARCO, collection), Iida & Okazaki 2022, Appendix E
    "nq": 0.523,
    "robust04": 0.475,
    "webis-touche2020": 0.410,
    "fiqa": 0.407,
    "quora": 0.395,
    "arguana": 0.385,
    "climate-fever": 0.384,
    "fever": 0.384,
    "hotpotqa": 0.342,
    "dbpedia-entity": 0.334,
    "scidocs": 0.327,
    "bioasq": 0.317,
    "trec-covid": 0.315,
    "nfcorpus": 0.285,
    "scifact": 0.273,
}


def overlap(settings: OverlapSettings) -> Report:
    """The similarity of every pair of collections, with the paper's value where it has one.

    Raises CaiError for a single collection unless its frequencies are saved, and for two of the same name.
    """
    if len(settings.collections) < 2 and not settings.save_frequencies:
        raise CaiError("one collection has nothing to be compared with: add another, or --save-frequencies")
    counts = _count_all(settings.collections)
    similarities = {(a, b): jaccard(counts[a], counts[b]) for a, b in combinations(counts, 2)}
    published = {(a, b): PUBLISHED.get(b if a == MSMARCO else a) for a, b in similarities if MSMARCO in (a, b)}
    lines = [f"{name}: {c.total():,} words, {len(c):,} of them distinct" for name, c in counts.items()]
    files: dict[str, Figure | str] = {}
    if similarities:
        rows = [["collection", "collection", "J", "Iida & Okazaki 2022"]]
        for pair, similarity in similarities.items():
            rows.append([*pair, f"{similarity:.3f}", f"{value:.3f}" if (value := published.get(pair)) else ""])
        lines += ["", aligned(rows if any(published.values()) else [row[:-1] for row in rows])]
        files["overlap.png"] = plot(list(counts), similarities)
    if settings.save_frequencies:
        for name, c in counts.items():
            files[f"{name}.tsv"] = "".join(f"{word}\t{count}\n" for word, count in c.most_common())
    data = {
        "collections": {name: {"words": c.total(), "distinct": len(c)} for name, c in counts.items()},
        "pairs": [
            {"collections": pair, "similarity": similarity, "published": published.get(pair)}
            for pair, similarity in similarities.items()
        ],
    }
    return Report("overlap", "\n".join(lines), data, files)


def _count_all(collections: Sequence[str]) -> dict[str, Counter[str]]:
    """The word counts of each collection, by its short name."""
    counts: dict[str, Counter[str]] = {}
    for spec in collections:
        path = Path(os.path.realpath(spec))
        name = path.name if path.is_dir() else path.name.partition(".")[0]
        if name in counts:
            raise CaiError(f"{spec}: another collection is named {name}, too; rename one of them")
        counts[name] = read_table(Path(spec)) if spec.endswith(TABLE) else count_words(spec)
        if not counts[name].total():
            raise CaiError(f"{spec} has no words")
    return counts


def count_words(corpus: str) -> Counter[str]:
    """The word counts of a collection or file. Raises CaiError if it is missing, broken or without text."""
    counts: Counter[str] = Counter()
    for text in progress(texts([corpus]), None, corpus, "texts"):
        counts.update(WORD.findall(text.lower()))
    return counts


def read_table(path: Path) -> Counter[str]:
    """The word counts of a saved table. Raises CaiError for a line that is not a word, a tab and its count."""
    counts: Counter[str] = Counter()
    for where, line in read_lines(path):
        word, _, count = line.rstrip("\r\n").partition("\t")
        if not count.isdecimal():
            raise CaiError(f"{where}: expected a word, a tab and its count, as --save-frequencies writes them")
        counts[word] += int(count)
    return counts


def jaccard(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """J(A, B) from word counts, which must not be empty."""
    total_a, total_b = sum(a.values()), sum(b.values())
    shared = sum(min(a[word] / total_a, b[word] / total_b) for word in a.keys() & b.keys())
    return shared / (2 - shared)  # min(x, y) + max(x, y) = x + y, and the frequencies of each collection sum to 1


def plot(names: Sequence[str], similarities: Mapping[tuple[str, str], float]) -> Figure:
    """A heatmap of all pairs."""
    size = 2 + 0.8 * len(names)
    fig, axes = figure("", "", "Weighted Jaccard similarity of words", (size + 0.5, size))
    matrix = np.eye(len(names))
    for pair, similarity in similarities.items():
        for i, j in permutations([names.index(name) for name in pair]):
            matrix[i, j] = similarity
            axes.text(i, j, f"{similarity:.3f}", ha="center", va="center")
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, alpha=0.7)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    return fig
