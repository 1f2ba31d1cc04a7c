"""Runs in memory: the hits of many queries, as numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from cai_pyserini.core.packages import lazy

if TYPE_CHECKING:
    import pandas as pd


class Numbers[Id: (str, bytes)](dict[Id, int]):
    """The numbers of ids, in the order in which they are first asked for."""

    def __missing__(self, id: Id) -> int:
        number = self[id] = len(self)
        return number

    def of(self, ids: Sequence[Id] | np.ndarray) -> np.ndarray:
        return np.fromiter(map(self.__getitem__, ids), np.int64, len(ids))

    def sorted(self, numbers: np.ndarray) -> tuple[list[Id], np.ndarray]:
        """The ids in order, and the places in this order of the ids with these numbers."""
        ids = sorted(self)
        places = np.empty(len(ids), np.int64)
        places[self.of(ids)] = np.arange(len(ids))
        return ids, places[numbers]


@dataclass(frozen=True, eq=False)
class Rankings:
    """The hits of many queries: the places of their `queries` and `documents`, int64 (hits,), among the `query_ids` and
    `doc_ids`, which are sorted, and their `scores`, float64 (hits,)."""

    query_ids: Sequence[str]
    doc_ids: Sequence[str]
    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, queries: Sequence[str], documents: Sequence[str], scores: np.ndarray) -> Self:
        """From the ids and the scores of hits."""
        (query_ids, query), (doc_ids, document) = (
            (numbers := Numbers[str]()).sorted(numbers.of(ids)) for ids in (queries, documents)
        )
        return cls(query_ids, doc_ids, query, document, scores)

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return zip(*self.columns, self.scores.tolist(), strict=True)

    def __getitem__(self, hits: np.ndarray) -> Self:
        """The hits at places, or those of a mask."""
        return replace(self, queries=self.queries[hits], documents=self.documents[hits], scores=self.scores[hits])

    @cached_property
    def columns(self) -> tuple[list[str], list[str]]:
        """The query id and the document id of each hit."""
        query_ids, doc_ids = self.query_ids, self.doc_ids
        return [query_ids[place] for place in self.queries.tolist()], [
            doc_ids[place] for place in self.documents.tolist()
        ]

    @cached_property
    def ranks(self) -> np.ndarray:
        """The rank of every hit, from 1."""
        first = np.diff(self.queries, prepend=-1) != 0
        return np.arange(len(self)) - last_true(first) + 1

    def with_scores(self, scores: np.ndarray) -> Self:
        return replace(self, scores=scores)

    def sorted_by(self, *keys: np.ndarray) -> Self:
        """Sorted by query, then by `keys`, the last of which is the primary one, as for np.lexsort."""
        keys = (*keys, self.queries)
        return self if _is_sorted(keys) else self[np.lexsort(keys)]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row per hit: `query_id`, `doc_id`, `score` and `rank`. Raises CaiError without pandas."""
        pandas = lazy("pandas")
        ids = {
            name: pandas.Series(ids, dtype=object)
            for name, ids in zip(("query_id", "doc_id"), self.columns, strict=True)
        }
        frame: pd.DataFrame = pandas.DataFrame({**ids, "score": self.scores, "rank": self.ranks})
        return frame


def best_hits(scores: np.ndarray, hits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The queries, documents and scores of the best hits, at most `hits` per query, of scores (queries, documents),
    -inf for documents that are not retrieved."""
    depth = min(hits, scores.shape[1])
    best = np.sort(np.argpartition(-scores, depth - 1, axis=1)[:, :depth], axis=1)
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, axis=1)
    top: np.ndarray = np.take_along_axis(scores, best, axis=1)
    is_hit = top > -np.inf
    return np.nonzero(is_hit)[0], best[is_hit], top[is_hit].astype(np.float64)


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    """Whether np.lexsort of these keys would keep the order."""
    undecided = np.ones(max(len(keys[0]) - 1, 0), bool)  # adjacent rows with equal keys so far
    for key in reversed(keys):
        if (undecided & (key[1:] < key[:-1])).any():
            return False
        undecided &= key[1:] == key[:-1]
    return True


def last_true(flags: np.ndarray) -> np.ndarray:
    """For every position, the last position up to it whose flag is true; 0 if there is none."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags)), 0))
