"""What decides, without labels, whether adapted weights replace the old ones, and how far.

The judges are pseudo queries that were held out of the training. With a dense encoder, the ten best documents of the
mixture count as relevant, the first most (grades 10 to 1); without one, only the source of the query does (grade 10).
A candidate is judged by the nDCG@10 of what is served of it: SPLADE's joint score with BM25, alpha * BM25 + SPLADE with
IDF; a dense encoder's own score. The best candidate wins; the old weights are one of them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import diags_array

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import BEST, TINY, Products
from cai_pyserini.models.splade import Splade

GRADES = np.arange(10, 0, -1)
DISCOUNTS = 1 / np.log2(np.arange(2, 12))
POOL = 20  # the best documents of every system for every judge: what is ranked


@dataclass(frozen=True)
class Choice:
    """The judges of an adaptation."""

    material: Material

    @cached_property
    def queries(self) -> np.ndarray:
        """The numbers of the pseudo queries that judge."""
        return self.material.held_out

    @property
    def judge(self) -> str:
        """What the judges agree with."""
        return "the mixture" if self.material.dense else "their sources"

    @cached_property
    def documents(self) -> np.ndarray:
        """The numbers of the documents that are ranked."""
        return np.unique(self.material.mixture.best[:, self.queries, :POOL])

    @cached_property
    def _relevant(self) -> np.ndarray:
        """The relevant documents of each judge, best first (queries, at most 10)."""
        if self.material.dense:
            return self.material.mixture.best[-1, self.queries, : len(GRADES)]
        return np.array([[self.material.pseudo_queries[number].document] for number in self.queries])

    @cached_property
    def _bm25(self) -> np.ndarray:
        return self.material.mixture.systems[0].scores(self.queries, self.documents)

    def ndcg(self, scores: np.ndarray) -> float:
        """The mean nDCG@10 of scores (queries, documents)."""
        ranked = self.documents[np.argsort(-scores, axis=1, kind="stable")[:, : len(GRADES)]]
        count = self._relevant.shape[1]
        grades = ((ranked[:, :, None] == self._relevant[:, None, :]) * GRADES[:count]).sum(2)
        ideal = (GRADES[:count] * DISCOUNTS[:count]).sum()
        return float(((grades * DISCOUNTS[: ranked.shape[1]]).sum(1) / ideal).mean())

    def joint(self, splade: np.ndarray) -> float:
        """The nDCG@10 of SPLADE's scores (queries, documents) and BM25's, balanced as in a joint index."""
        depth = min(BEST, splade.shape[1])
        spreads = [np.partition(scores, -depth, axis=1)[:, -depth:].std(1).mean() for scores in (self._bm25, splade)]
        return self.ndcg(splade + self._bm25 * (spreads[1] / max(float(spreads[0]), TINY)))

    def dense(self, products: Products) -> float:
        """The nDCG@10 of dense vectors of all pseudo queries and documents."""
        return self.ndcg(products.scores(self.queries, self.documents))

    def splade(self, model: Splade, idf: np.ndarray) -> float:
        """The nDCG@10 of a SPLADE model, its documents weighted with `idf` (vocabulary,), jointly with BM25."""
        material, config = self.material, self.material.splade
        texts = [material.pseudo_queries[number].text for number in self.queries]
        documents = model.encode([material.contents[number] for number in self.documents], config.max_document_length)
        weighted = documents @ diags_array(idf)
        return self.joint((model.encode(texts, config.max_query_length) @ weighted.T).toarray())
