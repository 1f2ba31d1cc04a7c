"""How well the recommended systems find what queries were made of, with candidates for their encoders.

What is scored are documents of the collection as float vectors, as the stages serve them:

joint        alpha * BM25 + SPLADE with IDF
smooth       the same, SPLADE mixed with that of near documents, and BM25 with near words, both by the dense encoder
three ways   w * z(BM25) + z(SPLADE with IDF) + 2 * z(dense)

joint ones also with bag-of-words queries (-doc). In the place of its source, a query finds the source's remainder, as
if the document had other words than the query.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import STEMMER, WEIGHTS, Bm25, moments
from cai_pyserini.adapt.pseudo_queries import PUNCTUATION
from cai_pyserini.collection.spans import random_span
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Representation, encode_queries
from cai_pyserini.expand.expand import LENGTH, Near
from cai_pyserini.impact.bm25 import NEAR
from cai_pyserini.models.dense import project
from cai_pyserini.smooth.neighbours import Neighbours, build_index, nearest
from cai_pyserini.smooth.smooth import WEIGHTS as SMOOTH
from cai_pyserini.smooth.smooth import mix
from cai_pyserini.vectors.shards import Matrix

DOCUMENTS = 5000  # a sample of this size, with the sources, stands for a large collection
SPANS = 500  # to estimate alpha with
NEIGHBOURS = 40
CUTOFF = 10  # of nDCG


class Sparse(NamedTuple):
    """SPLADE's vectors: of `rows` (see Served) raw, and of queries and spans by representation."""

    rows: csr_matrix
    idf: np.ndarray  # (vocabulary,)
    queries: dict[Representation, csr_matrix]
    spans: dict[Representation, csr_matrix]


class Dense(NamedTuple):
    """Dense vectors of queries and `rows`, the neighbours of the rows, and the weights of words near them."""

    queries: np.ndarray
    rows: np.ndarray
    near: Neighbours
    words: csr_matrix


@dataclass(frozen=True)
class Served:
    """Queries, by their numbers among the pseudo queries of the material, and the documents that they search.

    Rows are these documents, and then the remainder of the source of each query. Scores are (queries, documents + 1),
    that of the remainder last.
    """

    material: Material
    numbers: np.ndarray

    @cached_property
    def documents(self) -> np.ndarray:
        """The numbers of the documents, in order."""
        size = len(self.material.contents)
        others = np.random.default_rng(self.material.seed).permutation(size)
        first = dict.fromkeys([*self.material.sources[self.numbers], *others])
        return np.sort(list(first)[: min(size, DOCUMENTS)])

    @cached_property
    def sources(self) -> np.ndarray:
        """The place of the source of each query among the documents."""
        return np.searchsorted(self.documents, self.material.sources[self.numbers])

    @cached_property
    def queries(self) -> list[str]:
        return [self.material.pseudo_queries[number].text for number in self.numbers]

    @cached_property
    def _contents(self) -> list[str]:
        return [self.material.contents[number] for number in self.documents]

    @cached_property
    def _remainders(self) -> list[str]:
        return self.material.remainders(self.numbers)

    @cached_property
    def spans(self) -> list[str]:
        draw = random.Random(self.material.seed)
        texts = draw.sample(self._contents, min(SPANS, len(self._contents)))
        return [span for text in texts if (span := random_span(text, draw))]

    @cached_property
    def bm25(self) -> Bm25:
        return Bm25(self._contents)

    @cached_property
    def words(self) -> csr_matrix:
        """BM25's weights of the rows."""
        return vstack([self.bm25.documents, self.bm25.weights(self._remainders)], format="csr")

    @cached_property
    def _scores_of_words(self) -> np.ndarray:
        return self._scores(self.bm25.queries(self.queries), self.words)

    @cached_property
    def _spread_of_words(self) -> float:
        return _spread(self.bm25.queries(self.spans) @ self.bm25.documents.T)

    @cached_property
    def _lexicon(self) -> dict[str, str]:
        """The words of two documents or more, with their most frequent forms."""
        forms = Counter(
            form for text in self._contents for form in {word.strip(PUNCTUATION) for word in text.lower().split()}
        )
        lexicon: dict[str, str] = {}
        for form, documents in forms.most_common():
            word = STEMMER.stemWord(form)
            if documents > 1 and len(form) > 1 and form.isalpha() and word in self.bm25.words:
                lexicon.setdefault(word, form)
        return lexicon

    @property
    def systems(self) -> list[str]:
        """The systems that are judged, in the order of their values."""
        kinds = ["splade", "splade-doc"] if self.material.splade.query == "splade" else ["splade-doc"]
        if self.material.dense is None:
            return [f"joint-{kind}-idf" for kind in kinds]
        return [f"hybrid-{kinds[0]}-idf-dense-zscore", *(f"joint-{kind}-idf-smooth" for kind in kinds)]

    def splade(self, encoder: Encoder, idf: np.ndarray) -> Sparse:
        """The vectors of a SPLADE encoder, with IDF (vocabulary,)."""
        material = self.material
        is_old = encoder is material.encoders[0]
        documents = material.raw[0][self.documents] if is_old else material.encode(encoder, self._contents)
        rows = vstack([documents, material.encode(encoder, self._remainders)], format="csr")
        rows.eliminate_zeros()
        kinds: list[Representation] = ["splade", "bow"] if material.splade.query == "splade" else ["bow"]
        queries = {kind: encode_queries(encoder, self.queries, kind) for kind in kinds}
        return Sparse(rows, idf, queries, {kind: encode_queries(encoder, self.spans, kind) for kind in kinds})

    @cached_property
    def old_splade(self) -> Sparse:
        """The vectors of the SPLADE encoder before adaptation."""
        return self.splade(self.material.encoders[0], self.material.idf)

    @cached_property
    def old_dense(self) -> tuple[np.ndarray, np.ndarray]:
        """The dense vectors of queries and rows before adaptation."""
        material, encoder = self.material, self.material.encoders[-1]
        rows = np.vstack([material.raw[-1][self.documents], material.encode(encoder, self._remainders)])
        return np.asarray(encode_queries(encoder, self.queries)), rows

    @cached_property
    def _forms(self) -> np.ndarray:
        """The dense vectors of the lexicon before adaptation."""
        encoder = self.material.encoders[-1].load("documents")
        return np.asarray(encoder.encode(list(self._lexicon.values()), LENGTH))

    def dense(self, projection: np.ndarray | None) -> Dense:
        """The vectors of the dense encoder with a projection (width, width)."""
        vectors = *self.old_dense, self._forms
        queries, rows, words = vectors if projection is None else (project(each, projection) for each in vectors)
        count = len(self.documents)
        index = build_index(lambda label: [rows[:count]], rows.shape[1], count)
        own = np.concatenate([np.arange(count), self.sources])
        near = nearest(index, rows, own, min(NEIGHBOURS, count - 1))
        found = Near.among(words, [rows[:count]]).words(rows, self.words.getnnz(axis=1) > 0)
        columns = np.array([self.bm25.words[word] for word in self._lexicon], np.int32)
        weights = csr_matrix((found.data, columns[found.indices], found.indptr), shape=self.words.shape)
        return Dense(queries, rows, near, weights)

    def values(self, sparse: Sparse, dense: Sequence[Dense], weight: float) -> Iterator[np.ndarray]:
        """nDCG@10 (systems, queries) with each of these dense vectors; without any, of the systems that need none.
        `weight` is that of BM25 in three ways."""
        plain = [self.scores(sparse, kind, sparse.rows) for kind in sparse.queries]
        if not dense:
            yield np.array([self.found(alpha * self._scores_of_words + scores) for scores, alpha in plain])
        for vectors in dense:
            smooth = mix(sparse.rows, np.arange(sparse.rows.shape[0]), vectors.near, SMOOTH["dense"])
            words = self._scores(self.bm25.queries(self.queries), self.words + NEAR * vectors.words)
            systems = [
                self.three_ways(weight, plain[0][0], vectors.queries, vectors.rows)
            ]  # with SPLADE queries, if it has these
            for kind in sparse.queries:
                scores, alpha = self.scores(sparse, kind, smooth)
                systems.append(alpha * words + scores)
            yield np.array([self.found(scores) for scores in systems])

    def three_ways(self, weight: float, splade: np.ndarray, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Scores of the sum of z-scores, with this weight of BM25, SPLADE's scores, and dense vectors."""
        words, dense = self._scores_of_words, self._scores(queries, rows)
        return (
            weight * _standardize(words)
            + WEIGHTS["splade"] * _standardize(splade)
            + WEIGHTS["dense"] * _standardize(dense)
        )

    def scores(self, sparse: Sparse, kind: Representation, rows: csr_matrix) -> tuple[np.ndarray, float]:
        """Scores with IDF of raw rows, and alpha."""
        weighted = rows @ diags_array(sparse.idf)
        spans = sparse.spans[kind] @ weighted[: len(self.documents)].T
        return self._scores(sparse.queries[kind], weighted), _spread(spans) / self._spread_of_words

    def _scores(self, queries: Matrix, rows: Matrix) -> np.ndarray:
        count = len(self.documents)
        if isinstance(rows, np.ndarray):
            return np.column_stack([queries @ rows[:count].T, (queries * rows[count:]).sum(1)])
        of_remainders = np.asarray(rows[count:].multiply(queries).sum(1))
        return np.column_stack([(queries @ rows[:count].T).toarray(), of_remainders])

    def found(self, scores: np.ndarray) -> np.ndarray:
        """nDCG@10 of the remainders in the place of the sources, (queries,)."""
        others = scores[:, :-1].copy()
        others[np.arange(len(scores)), self.sources] = -np.inf
        ranks = (others >= scores[:, -1:]).sum(1)
        gains: np.ndarray = np.where(ranks < CUTOFF, 1 / np.log2(ranks + 2), 0)
        return gains


def _standardize(scores: np.ndarray) -> np.ndarray:
    """Scores in units of the deviation of the best documents' scores; remainders are no documents."""
    means, deviations = moments(scores[:, :-1])
    standardized: np.ndarray = (scores - means) / deviations
    return standardized


def _spread(scores: csr_matrix) -> float:
    """The mean deviation of the best documents' scores."""
    return float(moments(scores.toarray())[1].mean())
