"""Search dense indexes with Faiss."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DenseMethod
from cai_pyserini.core.packages import lazy
from cai_pyserini.indexes.dense_index import faiss_threads
from cai_pyserini.indexes.filters import Filter
from cai_pyserini.indexes.searcher import Scored, Searcher
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.queries import Query

if TYPE_CHECKING:
    import faiss
else:
    faiss = lazy("faiss")

BATCH = 512  # queries at a time


class FaissSearcher(Searcher):
    """An open dense index, memory-mapped, so that the operating system can evict and share its pages."""

    engine = "Faiss"
    cuts_ties = True

    def __init__(self, index: Path):
        super().__init__(index)
        folder = self.name
        method_of(folder)
        self._index = faiss.read_index(str(folder / "index"), faiss.IO_FLAG_MMAP_IFC)
        self._rows: dict[Searcher, np.ndarray] = {}  # row of each document of a filtering index; -1: no vector
        self._search_rows = self._index.search
        self._ids = np.array((folder / "docid").read_text(encoding="utf-8").splitlines(), object)
        for count in (self._index.ntotal, len(self._ids)):
            artifact.require_count(folder, count, self.documents)

    @property
    def ids(self) -> Sequence[str]:
        return list(self._ids)

    def filtered(self, filter: Filter, filter_index: Searcher | None = None) -> Self:
        """Searches graphs exactly, and clusters too, up to the compression of their vectors."""
        if filter_index is None:
            return super().filtered(filter)  # raises BadFilter
        if filter_index not in self._rows:
            row_of = {id: row for row, id in enumerate(self._ids)}
            self._rows[filter_index] = np.array([row_of.get(id, -1) for id in filter_index.ids])
        rows = self._rows[filter_index][filter_index.matching(filter)]
        allowed = np.zeros(len(self._ids), bool)
        allowed[rows[rows >= 0]] = True
        view = copy(self)
        view._search_rows = _search_among(self._index, np.packbits(allowed, bitorder="little"))
        return view

    def search_all(self, queries: Sequence[Query], hits: int, threads: int = 1) -> list[Ranking]:
        rankings: list[Ranking] = []
        for batch in batched(queries, BATCH):
            vectors = np.array(batch, np.float32)
            with faiss_threads(threads):
                scores, rows = self._search_rows(vectors, min(hits, len(self._ids)))
            rows[~vectors.any(axis=1)] = -1  # a zero query, as of unknown words, has no hits
            rankings += map(self._ranking, rows, scores)
        return rankings

    def search_many(self, queries: Mapping[str, Query], hits: int, threads: int) -> Iterator[dict[str, Ranking]]:
        # searched in the given order, because a score's last bits depend on its batch
        rankings = dict(zip(queries, self.search_all([*queries.values()], hits, threads), strict=True))
        for ids in batched(sorted(queries), BATCH):
            yield {id: rankings[id] for id in ids}

    def _ranking(self, rows: np.ndarray, scores: np.ndarray) -> Ranking:
        found = rows >= 0  # -1: no more hits
        ids, scores = self._ids[rows[found]], scores[found]
        order = np.lexsort([ids.astype(str), -scores])  # ties as in Lucene
        return Ranking(ids[order], scores[order])

    def explain(self, query: Query, ids: Sequence[str]) -> dict[str, Scored]:
        assert isinstance(query, np.ndarray)
        requested = set(ids)
        rows = {id: row for row, id in enumerate(self._ids) if id in requested}
        return {id: Scored(float(self._index.reconstruct(row) @ query), []) for id, row in rows.items()}


def method_of(index: Path) -> DenseMethod:
    """The method of a dense index. Raises CaiError for an unknown one."""
    method = artifact.require(index, "index").recipe["settings"].get("method", "flat")
    if method not in get_args(DenseMethod):
        raise CaiError(
            f"{index} was made by method {method!r}, which this version cannot search: index again by one of "
            + ", ".join(get_args(DenseMethod))
        )
    return method


def _search_among(index: Any, allowed: np.ndarray) -> Any:
    """A search of an index limited to the vectors whose bits are set, uint8 (vectors / 8,)."""
    parameters: Any = faiss  # its type stubs do not know the keywords of these classes
    selector = parameters.IDSelectorBitmap(allowed)
    among = parameters.SearchParameters(sel=selector)
    if isinstance(index, faiss.IndexHNSW):
        return partial(faiss.downcast_index(index.storage).search, params=among)
    if isinstance(index, faiss.IndexRefine):
        clusters: Any = faiss.downcast_index(index.base_index)
        among = parameters.SearchParametersIVF(sel=selector, nprobe=clusters.nlist)
        among = parameters.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=among)
    return partial(index.search, params=among)
