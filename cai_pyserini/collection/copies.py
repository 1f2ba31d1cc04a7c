"""Copies: texts that say the same, in which a word here and there may differ.

Two texts are copies if they have nine in ten words in common, counted as often as they occur, whatever their order,
case and punctuation. Passages of one document are of the same source.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import PASSAGE

COMMON = 0.9  # the share of the longer text's words that copies have in common
PUNCTUATION = ".,;:!?()[]{}\"'"


def plain(word: str) -> str:
    """A word without case and punctuation."""
    return word.strip(PUNCTUATION).casefold()


def source(id: str) -> str:
    """The id of the document that a passage `document#number` is of; any other id stays as it is."""
    document, _, number = id.rpartition(PASSAGE)
    return document if document and number.isdecimal() else id


class Copies:
    """Texts, among which those that are copies of one are found by their rarest words: a copy has one of them."""

    def __init__(self, texts: Sequence[str]):
        counted = [Counter(word for word in map(plain, text.split()) if word) for text in texts]
        columns = {word: column for column, word in enumerate(dict.fromkeys(chain.from_iterable(counted)))}
        indices = [columns[word] for words in counted for word in words]
        data = np.array([count for words in counted for count in words.values()], np.int64)
        indptr = np.cumsum([0, *map(len, counted)])
        self._counts = csr_matrix((data, indices, indptr), shape=(len(counted), len(columns)))
        self._having = self._counts.tocsc()  # the texts that have a word
        self._lengths = np.asarray(self._counts.sum(1)).ravel()

    def of(self, number: int) -> np.ndarray:
        """The numbers of a text and its copies, in order."""
        own, having, length = self._counts[number], self._having, self._lengths[number]
        rarest = np.argsort(np.diff(having.indptr)[own.indices], kind="stable")
        left = length - np.cumsum(own.data[rarest])  # words of the text besides the rarest ones
        some = own.indices[rarest[: 1 + np.count_nonzero(left >= COMMON * length)]]
        parts = [having.indices[having.indptr[word] : having.indptr[word + 1]] for word in some]
        found = np.unique(np.concatenate([[number], *parts]).astype(np.int64))
        others = self._counts[found]
        of_own = np.zeros(others.shape[1], np.int64)
        of_own[own.indices] = own.data
        rows = np.repeat(np.arange(len(found)), np.diff(others.indptr))
        common = np.bincount(rows, np.minimum(others.data, of_own[others.indices]), len(found))
        return found[common >= COMMON * np.maximum(self._lengths[found], length)]
