"""What decides, without labels, whether adapted weights replace the old ones, and how far.

The judges are pseudo queries that were held out of the training. A candidate is judged by what is served of it: SPLADE
by its joint score with BM25, alpha * BM25 + SPLADE with IDF; dense vectors by the mixture of all three systems. Its
value is how well that finds the judges' sources, in the mean of two nDCG@10: of the sources as they are, and of their
remainders, as if the documents had other words than the query. The best candidate wins; the old weights are one.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix, diags_array

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import WEIGHTS, Bm25, moments
from cai_pyserini.models.splade import Splade

POOL = 10  # the best documents of every system for every judge: what SPLADE's candidates rank
CUTOFF = 10  # of nDCG


@dataclass(frozen=True)
class Choice:
    """The judges of an adaptation.

    In what follows, documents are (documents, dimensions), and queries and remainders (judges, dimensions); SPLADE's
    documents and remainders are weighted with IDF. Scores are (judges, documents + 1), those of remainders last.
    """

    material: Material

    @cached_property
    def judges(self) -> np.ndarray:
        """The numbers of the pseudo queries that judge."""
        return self.material.held_out

    def best(self, values: dict[float, float]) -> tuple[float, str]:
        """The weight of the candidate with the highest value, and the evidence, for people."""
        tried = ", ".join(f"{weight:.2g}: {value:.3f}" for weight, value in values.items())
        found = f"sources of {len(self.judges)} held-out queries found with and without their words"
        return max(values, key=lambda weight: values[weight]), f"{found}, by weight: {tried}"

    @cached_property
    def documents(self) -> np.ndarray:
        """The numbers of the documents that SPLADE's candidates rank."""
        return np.union1d(self.material.mixture.best[:, self.judges, :POOL], self._sources)

    @cached_property
    def _texts(self) -> list[str]:
        return [self.material.pseudo_queries[number].text for number in self.judges]

    @cached_property
    def _sources(self) -> np.ndarray:
        return self.material.sources[self.judges]

    @cached_property
    def remainders(self) -> list[str]:
        """The sources without the judges' words."""
        return self.material.remainders(self.judges)

    @cached_property
    def _bm25(self) -> np.ndarray:
        """BM25's scores of all documents."""
        contents = self.material.contents
        scores = Bm25([*contents, *self.remainders], self._texts).scores(np.arange(len(self._texts)))
        return np.column_stack([scores[:, : len(contents)], np.diagonal(scores[:, len(contents) :])])

    def splade(self, queries: csr_matrix, documents: csr_matrix, remainders: csr_matrix) -> float:
        """The value of SPLADE vectors of the judges, of `self.documents` and of the remainders."""
        scores, bm25 = _products(queries, documents, remainders), self._bm25[:, [*self.documents, -1]]
        alpha = _moments(scores)[1].mean() / _moments(bm25)[1].mean()
        return _ndcg(alpha * bm25 + scores, np.searchsorted(self.documents, self._sources))

    def model(self, model: Splade, idf: np.ndarray) -> float:
        """The value of a SPLADE model with IDF (vocabulary,)."""
        config, contents = self.material.splade, self.material.contents
        queries = model.encode(self._texts, config.max_query_length)
        documents = model.encode([contents[number] for number in self.documents], config.max_document_length)
        remainders = model.encode(self.remainders, config.max_document_length)
        return self.splade(queries, documents @ diags_array(idf), remainders @ diags_array(idf))

    @cached_property
    def old_splade(self) -> tuple[csr_matrix, csr_matrix, csr_matrix]:
        """The vectors before adaptation, of the judges, of all documents and of the remainders."""
        material, vectors = self.material, self.material.products[0]
        remainders = material.encode(material.encoders[0], self.remainders) @ diags_array(material.idf)
        return vectors.queries[self.judges], vectors.documents, remainders

    @cached_property
    def _others(self) -> np.ndarray:
        """What BM25 and the old SPLADE contribute to the mixture's scores of all documents."""
        return _contribution("bm25", self._bm25) + _contribution("splade", _products(*self.old_splade))

    def dense(self, queries: np.ndarray, documents: np.ndarray, remainders: np.ndarray) -> float:
        """The value of dense vectors of the judges, of all documents and of the remainders."""
        scores = np.column_stack([queries @ documents.T, (queries * remainders).sum(1)])
        return _ndcg(self._others + _contribution("dense", scores), self._sources)


def _products(queries: csr_matrix, documents: csr_matrix, remainders: csr_matrix) -> np.ndarray:
    """SPLADE's scores."""
    of_remainders = np.asarray(queries.multiply(remainders).sum(1))
    return np.column_stack([(queries @ documents.T).toarray(), of_remainders])


def _moments(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moments of the best documents' scores; remainders are no documents."""
    return moments(scores[:, :-1])


def _contribution(system: str, scores: np.ndarray) -> np.ndarray:
    """What a system contributes to the mixture: its scores, standardized and weighted."""
    means, deviations = _moments(scores)
    contribution: np.ndarray = WEIGHTS[system] * (scores - means) / deviations
    return contribution


def _ndcg(scores: np.ndarray, sources: np.ndarray) -> float:
    """The mean nDCG@10 of the documents in the columns `sources`, and of remainders in their place."""
    rows = np.arange(len(scores))
    others = scores[:, :-1].copy()
    others[rows, sources] = -np.inf
    ranks = np.array([(others >= own[:, None]).sum(1) for own in (scores[rows, sources], scores[:, -1])])
    return float(np.where(ranks < CUTOFF, 1 / np.log2(ranks + 2), 0).mean())
