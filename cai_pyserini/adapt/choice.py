"""What decides, without labels, whether adapted weights replace the old ones, and how far.

The judges are pseudo queries that were held out of the training. A candidate is judged by what is served of it: SPLADE
by its joint score with BM25, alpha * BM25 + SPLADE with IDF; dense vectors by the mixture of all three systems. Its
value is how well that finds the judges' sources, in the mean of two nDCG@10: of the sources as they are, and of their
remainders, as if the documents had other words than the query. The best candidate wins; the old weights are one.

The weight of BM25 in the mixture is judged by the remainders alone: a source as it is has all words of its query, more
than documents have of what people type, and would speak for BM25.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix, diags_array

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import WEIGHTS, Bm25, moments
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import encode_queries

BM25_WEIGHTS = (2.0, 1.0, 0.5)  # candidates for its weight in the mixture; the first is that of WEIGHTS
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

    def best(self, values: dict[float, float], how: str = "with and without their words") -> tuple[float, str]:
        """The weight of the candidate with the highest value, and the evidence, for people."""
        tried = ", ".join(f"{weight:.2g}: {value:.3f}" for weight, value in values.items())
        evidence = f"sources of {len(self.judges)} pseudo queries found {how}, by weight: {tried}"
        return max(values, key=lambda weight: values[weight]), evidence

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
        return float(_ndcg(alpha * bm25 + scores, np.searchsorted(self.documents, self._sources)).mean())

    def encoder(self, encoder: Encoder, idf: np.ndarray) -> float:
        """The value of a SPLADE encoder with IDF (vocabulary,)."""
        material = self.material
        queries = encode_queries(encoder, self._texts)
        documents = material.encode(encoder, [material.contents[number] for number in self.documents])
        remainders = material.encode(encoder, self.remainders)
        return self.splade(queries, documents @ diags_array(idf), remainders @ diags_array(idf))

    @cached_property
    def old_splade(self) -> tuple[csr_matrix, csr_matrix, csr_matrix]:
        """The vectors before adaptation, of the judges, of all documents and of the remainders."""
        material, vectors = self.material, self.material.products[0]
        remainders = material.encode(material.encoders[0], self.remainders) @ diags_array(material.idf)
        return vectors.queries[self.judges], vectors.documents, remainders

    @cached_property
    def old_dense(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The dense vectors before adaptation, of the judges, of all documents and of the remainders."""
        material, vectors = self.material, self.material.products[-1]
        remainders = np.asarray(material.encode(material.encoders[-1], self.remainders))
        return np.asarray(vectors.queries)[self.judges], np.asarray(vectors.documents), remainders

    @cached_property
    def _standardized(self) -> tuple[np.ndarray, np.ndarray]:
        """The standardized scores of all documents by BM25 and the old SPLADE."""
        return _standardize(self._bm25), _standardize(_products(*self.old_splade))

    def _found(self, dense: np.ndarray, weight: float = WEIGHTS["bm25"]) -> np.ndarray:
        """The nDCG@10 of sources and of remainders in the mixture, with these dense scores and this weight of BM25,
        (2,)."""
        bm25, splade = self._standardized
        mixed = weight * bm25 + WEIGHTS["splade"] * splade + WEIGHTS["dense"] * dense
        return _ndcg(mixed, self._sources)

    def dense(self, queries: np.ndarray, documents: np.ndarray, remainders: np.ndarray) -> float:
        """The value of dense vectors of the judges, of all documents and of the remainders."""
        return float(self._found(_cosines(queries, documents, remainders)).mean())

    def weight_of_bm25(self) -> tuple[float, str]:
        """The best weight of BM25 in the mixture, and the evidence, for people."""
        dense = _cosines(*self.old_dense)
        return self.best({w: float(self._found(dense, w)[1]) for w in BM25_WEIGHTS}, "without their words")


def _products(queries: csr_matrix, documents: csr_matrix, remainders: csr_matrix) -> np.ndarray:
    """SPLADE's scores."""
    of_remainders = np.asarray(queries.multiply(remainders).sum(1))
    return np.column_stack([(queries @ documents.T).toarray(), of_remainders])


def _cosines(queries: np.ndarray, documents: np.ndarray, remainders: np.ndarray) -> np.ndarray:
    """The standardized scores of dense vectors."""
    return _standardize(np.column_stack([queries @ documents.T, (queries * remainders).sum(1)]))


def _moments(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moments of the best documents' scores; remainders are no documents."""
    return moments(scores[:, :-1])


def _standardize(scores: np.ndarray) -> np.ndarray:
    means, deviations = _moments(scores)
    standardized: np.ndarray = (scores - means) / deviations
    return standardized


def _ndcg(scores: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """The nDCG@10 of the documents in the columns `sources`, and of remainders in their place, (2,)."""
    rows = np.arange(len(scores))
    others = scores[:, :-1].copy()
    others[rows, sources] = -np.inf
    ranks = np.array([(others >= own[:, None]).sum(1) for own in (scores[rows, sources], scores[:, -1])])
    gains: np.ndarray = np.where(ranks < CUTOFF, 1 / np.log2(ranks + 2), 0).mean(1)
    return gains
