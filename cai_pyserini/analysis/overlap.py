"""Vocabulary overlap: how similar are the words of collections? (Iida & Okazaki 2022, Appendix E)

Weighted Jaccard similarity of word frequencies:

    J(A, B) = Σ_t min(A_t, B_t) / Σ_t max(A_t, B_t)

A_t is the relative frequency of word t in A. A word is a maximal sequence of letters, digits and underscores (the
regular expression \\w+) in the lower-cased contents, stop words included. The paper, which follows Thakur et al. 2021,
does not define "word", so its values may differ.
"""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from cai_pyserini.analysis.settings import OverlapSettings, Report
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.trainer.corpus import texts

WORD = re.compile(r"\w+")


def overlap(settings: OverlapSettings) -> Report:
    """The similarity of every pair of collections. Raises CaiError for a collection without words."""
    counts: dict[str, Counter[str]] = {}
    for spec in settings.collections:
        counts[spec] = count_words(spec)
        if not counts[spec].total():
            raise CaiError(f"{spec} has no words")
    similarities = {(a, b): jaccard(counts[a], counts[b]) for a, b in combinations(counts, 2)}
    lines = [f"{name}: {c.total():,} words, {len(c):,} of them distinct" for name, c in counts.items()]
    rows = [
        ["collection", "collection", "similarity"],
        *([*pair, f"{value:.3f}"] for pair, value in similarities.items()),
    ]
    data = {
        "collections": {name: {"words": c.total(), "distinct": len(c)} for name, c in counts.items()},
        "pairs": [{"collections": pair, "similarity": value} for pair, value in similarities.items()],
    }
    return Report("overlap", "\n".join([*lines, "", aligned(rows)]), data)


def count_words(corpus: str) -> Counter[str]:
    """The word counts of a collection or file. Raises CaiError if it is missing, broken or without text."""
    counts: Counter[str] = Counter()
    for text in progress(texts([corpus]), None, corpus, "texts"):
        counts.update(WORD.findall(text.lower()))
    return counts


def jaccard(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """J(A, B) from word counts, which must not be empty."""
    total_a, total_b = sum(a.values()), sum(b.values())
    shared = sum(min(a[word] / total_a, b[word] / total_b) for word in a.keys() & b.keys())
    return shared / (2 - shared)  # min(x, y) + max(x, y) = x + y, and the frequencies of each collection sum to 1
