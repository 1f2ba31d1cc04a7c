"""Translated words: how often a document would have the words of another language if it were translated.

IBM Model 1 (Brown et al. 1993) estimates from pairs of texts the probability that a word translates to another, in both
directions. A word f is a translation of a word e to the degree

    t(e, f) = sqrt(p(f | e) p(e | f))    if at least 0.01, or else 0

and has the count and the document frequency that are expected (probabilistic structured queries, Darwish & Oard 2003):

    tf(f, d) = sum over e of t(e, f) tf(e, d),    df(f) = sum over e of t(e, f) df(e)
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

FILE = "translations.npz"  # in the folder of the words stage
ITERATIONS = 6
MIN_DEGREE = 0.01
Pair = tuple[Sequence[str], Sequence[str]]  # the words of a text, and of its translation


def translations(pairs: Iterable[Pair], columns: dict[str, int], words: int) -> csr_matrix:
    """t(e, f), float32 (words, columns), of the words f of texts for words e of their translations. The first `words`
    columns are words e; words f that have none get one. Pairs whose translations have no word e are left out."""
    known = [(text, own) for text, own in pairs if text and any(columns.get(word, words) < words for word in own)]
    texts, foreign = _numbered([text for text, _ in known])
    translated, own = _numbered([translation for _, translation in known])
    shape = len(own), len(foreign)
    product = _model1(translated, texts, shape).multiply(_model1(texts, translated, shape[::-1]).T)
    degrees = csr_matrix(product).sqrt().tocoo()
    rows = np.array([columns.get(word, words) for word in own], np.int64)[degrees.row]
    kept = (degrees.data >= MIN_DEGREE) & (rows < words)
    names = [foreign[number] for number in degrees.col[kept].tolist()]
    indices = np.array([columns.setdefault(name, len(columns)) for name in names], np.int64)
    return csr_matrix((degrees.data[kept].astype(np.float32), (rows[kept], indices)), (words, len(columns)))


def _numbered(texts: Iterable[Sequence[str]]) -> tuple[list[list[int]], list[str]]:
    """The different words of each text as numbers, and all words by their numbers."""
    numbers: dict[str, int] = {}
    found = [[numbers.setdefault(word, len(numbers)) for word in dict.fromkeys(text)] for text in texts]
    return found, [*numbers]


def _model1(given: list[list[int]], texts: list[list[int]], shape: tuple[int, int]) -> csr_matrix:
    """p(f | e), (words e, words f), for pairs of texts with words e and f. A word f can also translate none, NULL."""
    null = shape[0]
    lengths, givens = np.array([*map(len, texts)], np.int64), np.array([len(e) + 1 for e in given], np.int64)
    all_given = np.fromiter(chain.from_iterable([*e, null] for e in given), np.int64)
    # A cell for each word f of a text and each word e that it may translate; a group is the cells of one f.
    sizes = np.repeat(givens, lengths)
    group = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.repeat(np.cumsum(givens) - givens, lengths) - (np.cumsum(sizes) - sizes)
    e = all_given[np.arange(len(group)) + np.repeat(starts, sizes)]
    f = np.fromiter(chain.from_iterable(texts), np.int64)[group]
    keys, cells = np.unique(e * shape[1] + f, return_inverse=True)
    e, probabilities = keys // max(shape[1], 1), np.ones(len(keys))
    for _ in range(ITERATIONS):
        shares = probabilities[cells]
        shares /= np.bincount(group, shares)[group]
        expected = np.bincount(cells, shares, len(keys))
        probabilities = expected / np.bincount(e, expected)[e]
    known = e < null
    return csr_matrix((probabilities[known], (e[known], keys[known] % max(shape[1], 1))), shape)
