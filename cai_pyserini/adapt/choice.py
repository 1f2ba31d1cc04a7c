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
    """The judges of an adaptation. In what follows, documents are (documents, dimensions), and queries and remainders
    (judges, dimensions); SPLADE's documents and remainders are weighted with IDF."""

    material: Material

    @cached_property
    def judges(self) -> np.ndarray:
        """The numbers of the pseudo queries that judge."""
        return self.material.held_out

    def evidence(self, values: dict[float, float]) -> str:
        """The values of candidates by their weight, for people."""
        tried = ", ".join(f"{weight:.2g}: {value:.3f}" for weight, value in values.items())
        return f"sources of {len(self.judges)} held-out queries found with and without their words, by weight: {tried}"

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
    def _remainders(self) -> list[str]:
        return self.material.remainders(self.judges)

    @cached_property
    def _bm25(self) -> tuple[np.ndarray, np.ndarray]:
        """BM25's scores of all documents (judges, documents), and of the remainders (judges,)."""
        contents = self.material.contents
        scores = Bm25([*contents, *self._remainders], self._texts).scores(np.arange(len(self._texts)))
        return scores[:, : len(contents)], np.diagonal(scores[:, len(contents) :])

    def splade(self, queries: csr_matrix, documents: csr_matrix, remainders: csr_matrix) -> float:
        """The value of SPLADE vectors of the judges, of `self.documents` and of the remainders."""
        scores, rest = (queries @ documents.T).toarray(), np.asarray(queries.multiply(remainders).sum(1)).ravel()
        bm25, bm25_rest = self._bm25[0][:, self.documents], self._bm25[1]
        alpha = moments(scores)[1].mean() / moments(bm25)[1].mean()
        places = np.searchsorted(self.documents, self._sources)
        return _ndcg(alpha * bm25 + scores, alpha * bm25_rest + rest, places)

    def model(self, model: Splade, idf: np.ndarray) -> float:
        """The value of a SPLADE model with IDF (vocabulary,)."""
        config, contents = self.material.splade, self.material.contents
        queries = model.encode(self._texts, config.max_query_length)
        documents = model.encode([contents[number] for number in self.documents], config.max_document_length)
        remainders = model.encode(self._remainders, config.max_document_length)
        return self.splade(queries, documents @ diags_array(idf), remainders @ diags_array(idf))

    @cached_property
    def old_splade(self) -> tuple[csr_matrix, csr_matrix, csr_matrix]:
        """The vectors before adaptation, of the judges, of all documents and of the remainders."""
        material, vectors = self.material, self.material.products[0]
        remainders = material.encode(material.encoders[0], self._remainders) @ diags_array(material.idf)
        return vectors.queries[self.judges], vectors.documents, remainders

    @cached_property
    def _others(self) -> tuple[np.ndarray, np.ndarray]:
        """What BM25 and the old SPLADE contribute to the mixture."""
        queries, documents, remainders = self.old_splade
        rest = np.asarray(queries.multiply(remainders).sum(1)).ravel()
        bm25 = _contribution("bm25", *self._bm25)
        splade = _contribution("splade", (queries @ documents.T).toarray(), rest)
        return bm25[0] + splade[0], bm25[1] + splade[1]

    def dense(self, queries: np.ndarray, documents: np.ndarray, remainders: np.ndarray) -> float:
        """The value of dense vectors of the judges, of all documents and of the remainders."""
        scores, rest = _contribution("dense", queries @ documents.T, (queries * remainders).sum(1))
        return _ndcg(self._others[0] + scores, self._others[1] + rest, self._sources)


def _contribution(system: str, scores: np.ndarray, remainders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of documents (judges, documents) and of remainders (judges,), standardized by the documents' best ones."""
    means, deviations = moments(scores)
    weight = WEIGHTS[system]
    return weight * (scores - means) / deviations, weight * (remainders - means[:, 0]) / deviations[:, 0]


def _ndcg(scores: np.ndarray, remainders: np.ndarray, sources: np.ndarray) -> float:
    """The mean nDCG@10 of the documents in the columns `sources`, and of remainders in their place."""
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, sources] = -np.inf
    ranks = np.array([(others >= own[:, None]).sum(1) for own in (scores[rows, sources], remainders)])
    return float(np.where(ranks < CUTOFF, 1 / np.log2(ranks + 2), 0).mean())
