"""Near-duplicate texts.

Two texts are copies if nine in ten words are common to both, counting repetitions and ignoring order, case and
punctuation. All passages of a document have the same source.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

COMMON = 0.9  # minimum fraction of the longer text's words that copies share
PUNCTUATION = ".,;:!?()[]{}\"'"


def plain(word: str) -> str:
    """A word without case and punctuation."""
    return word.strip(PUNCTUATION).casefold()


class Copies:
    """Finds the copies of a text by its rarest words, because a copy contains at least one of them."""

    def __init__(self, texts: Sequence[str]):
        counted = [Counter(word for word in map(plain, text.split()) if word) for text in texts]
        columns = {word: column for column, word in enumerate(dict.fromkeys(chain.from_iterable(counted)))}
        indices = [columns[word] for words in counted for word in words]
        data = np.array([count for words in counted for count in words.values()], np.int64)
        indptr = np.cumsum([0, *map(len, counted)])
        self._counts = csr_matrix((data, indices, indptr), shape=(len(counted), len(columns)))
        self._postings = self._counts.tocsc()  # the texts that contain a word
        self._lengths = np.asarray(self._counts.sum(1)).ravel()

    def of(self, number: int) -> np.ndarray:
        """The numbers of a text and its copies, in order."""
        own, postings, length = self._counts[number], self._postings, self._lengths[number]
        order = np.argsort(np.diff(postings.indptr)[own.indices], kind="stable")  # rarest first
        remaining = length - np.cumsum(own.data[order])  # words of the text besides the rarest ones
        rarest = own.indices[order[: 1 + np.count_nonzero(remaining >= COMMON * length)]]
        texts = [postings.indices[postings.indptr[word] : postings.indptr[word + 1]] for word in rarest]
        candidates = np.unique(np.concatenate([[number], *texts]).astype(np.int64))
        counts = self._counts[candidates]
        own_counts = np.zeros(counts.shape[1], np.int64)
        own_counts[own.indices] = own.data
        rows = np.repeat(np.arange(len(candidates)), np.diff(counts.indptr))
        common = np.bincount(rows, np.minimum(counts.data, own_counts[counts.indices]), len(candidates))
        return candidates[common >= COMMON * np.maximum(self._lengths[candidates], length)]
