"""Pseudo-relevance feedback: queries moved towards the best documents of a first search (Rocchio 1971).

    q' = (1 - weight) * q + weight * |q| * mean of d / |d|   over the raw vectors d of a query's best documents

The original query dominates, and scores keep their size, so that SPLADE keeps its share in a joint score. The largest
entries of the sum remain, so that the second search does not cost many times the first.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import Hits
from cai_pyserini.vectors.rows import largest, lengths
from cai_pyserini.vectors.shards import Vectors


@dataclass(frozen=True)
class Feedback:
    """Feedback from the raw vectors in a folder."""

    vectors: Path
    documents: int = 10  # best documents per query
    weight: float = 0.25  # of their mean
    terms: int = 64  # of the new query; more if the original has more

    @property
    def identity(self) -> dict[str, Any]:
        """What the new queries depend on, apart from the first search."""
        return {
            "vectors": Vectors(self.vectors).manifest.digest,
            "settings": [self.documents, self.weight, self.terms],
        }

    def suits(self, index: artifact.Manifest) -> bool:
        """Whether an index has impacts, and the vectors are sparse and of the same checkpoint."""
        vectors = Vectors(self.vectors)
        same = index.stats.get("checkpoint") == vectors.encoder["checkpoint"]
        return index.stats["kind"] == "impact" and vectors.kind == "splade" and same

    def expand(self, queries: csr_matrix, found: list[Hits]) -> csr_matrix:
        """New raw queries (queries, vocabulary); `found` has the hits of each query, best first.

        A query without hits stays as it is. Raises CaiError for a document that has no vector.
        """
        hits = [[id for id, _ in of_query[: self.documents]] for of_query in found]
        if not any(hits):
            return queries
        rows, documents = self._vectors({id for ids in hits for id in ids})
        pairs = [(number, rows[id], 1 / len(ids)) for number, ids in enumerate(hits) for id in ids]
        row, column, share = np.array(pairs).reshape(-1, 3).T
        mean = csr_matrix((share, (row.astype(int), column.astype(int))), shape=(queries.shape[0], len(rows)))
        weights = self.weight * np.array([bool(ids) for ids in hits])
        moved = diags_array(1 - weights) @ queries
        moved += diags_array(weights * lengths(queries)) @ mean @ _normalized(documents)
        return largest(moved.tocsr(), np.maximum(np.diff(queries.indptr), self.terms))

    def _vectors(self, ids: set[str]) -> tuple[dict[str, int], csr_matrix]:
        """The row of each of these documents, and their raw vectors."""
        rows: dict[str, int] = {}
        parts = []
        for shard in Vectors(self.vectors):
            if wanted := [row for row, id in enumerate(shard.ids) if id in ids]:
                rows |= {shard.ids[row]: len(rows) + place for place, row in enumerate(wanted)}
                parts.append(shard.vectors[wanted])
        if missing := ids - rows.keys():
            raise CaiError(f"{self.vectors} has no vector of document {min(missing)!r}: give those of the index")
        return rows, vstack(parts, format="csr")


def _normalized(matrix: csr_matrix) -> csr_matrix:
    return diags_array(1 / np.maximum(lengths(matrix), 1e-9)) @ matrix
