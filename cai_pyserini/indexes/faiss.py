"""Search dense indexes with Faiss."""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.packages import lazy
from cai_pyserini.indexes.dense_index import faiss_threads
from cai_pyserini.indexes.filters import Filter
from cai_pyserini.indexes.reader import LuceneIndex
from cai_pyserini.runs.trec import Hits
from cai_pyserini.vectors.queries import Query

if TYPE_CHECKING:
    import faiss
else:
    faiss = lazy("faiss")

BATCH = 512  # queries at a time


class FaissSearcher:
    """An open dense index, memory-mapped, so that the operating system can evict and share its pages."""

    query_scale = 1

    def __init__(self, index: Path):
        self._index = faiss.read_index(str(index / "index"), faiss.IO_FLAG_MMAP_IFC)
        self._rows: dict[LuceneIndex, np.ndarray] = {}  # row of each document of a Lucene index; -1: no vector
        self._search = self._index.search
        self._ids = (index / "docid").read_text(encoding="utf-8").splitlines()
        for count in (self._index.ntotal, len(self._ids)):
            artifact.require_count(index, count, artifact.require(index, "index").stats["documents"])

    def filtered(self, filter: Filter, index: LuceneIndex) -> Self:
        """A view whose searches find only documents that pass a filter in `index`, a Lucene index of the same ones. It
        searches graphs exactly, and clusters too, up to the compression of their vectors."""
        if index not in self._rows:
            row_of = {id: row for row, id in enumerate(self._ids)}
            self._rows[index] = np.array([row_of.get(id, -1) for id in index.ids])
        rows = self._rows[index][index.matching(filter)]
        allowed = np.zeros(len(self._ids), bool)
        allowed[rows[rows >= 0]] = True
        view = copy(self)
        view._search = _search_among(self._index, np.packbits(allowed, bitorder="little"))
        return view

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries, vectors (width,), by query id, in the order of the ids."""
        results: dict[str, list[np.ndarray]] = {}  # rows and scores
        for batch in batched(queries.items(), BATCH):  # in the given order: a score's last bits depend on its batch
            vectors = np.array([vector for _, vector in batch], np.float32)
            with faiss_threads(threads):
                scores, rows = self._search(vectors, min(hits, len(self._ids)))
            rows[~vectors.any(axis=1)] = -1  # a zero query, as of unknown words, has no hits
            results |= {id: best for (id, _), *best in zip(batch, rows, scores, strict=True)}
        for ids in batched(sorted(results), BATCH):
            part: dict[str, Hits] = {}
            for id in ids:
                pairs = zip(*(values.tolist() for values in results[id]), strict=True)
                ranking = [(self._ids[row], score) for row, score in pairs if row >= 0]  # -1: no more hits
                part[id] = sorted(ranking, key=lambda hit: (-hit[1], hit[0]))  # ties as in Lucene
            yield part

    def scores(self, query: np.ndarray, ids: Sequence[str]) -> dict[str, float]:
        """Inner products of a query and documents; documents that the index lacks are left out."""
        requested = set(ids)
        rows = {id: row for row, id in enumerate(self._ids) if id in requested}
        return {id: float(self._index.reconstruct(row) @ query) for id, row in rows.items()}

    def document(self, id: str) -> None:
        """None: a Faiss index stores no documents."""

    def close(self) -> None:
        """Nothing to close: the file is unmapped with the object."""


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
