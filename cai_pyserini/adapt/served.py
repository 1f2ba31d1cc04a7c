"""How well the recommended systems find the sources of pseudo queries, with candidate encoders.

What is scored are documents of the collection as float vectors, as the stages serve them:

joint   alpha * BM25 + SPLADE with IDF
smooth  the same, SPLADE mixed with that of near documents, and BM25 with their words and with near words, all by the
        dense encoder
fusion  w * z(BM25 with words of near documents) + z(SPLADE with IDF, mixed likewise) + 2 * z(dense)

joint ones also with bag-of-words queries (-doc). A query searches for its source's remainder in place of the source, as
if the document had other words than the query.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import Stemmer
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import WEIGHTS, Bm25, moments
from cai_pyserini.adapt.pseudo_queries import PUNCTUATION
from cai_pyserini.collection.spans import Contexts, random_span
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Representation, encode_queries
from cai_pyserini.expand.expand import RATES, Near
from cai_pyserini.expand.word_vectors import Evidence, evidence, learn
from cai_pyserini.impact.bm25 import NEAR_WORDS
from cai_pyserini.models.dense import project
from cai_pyserini.smooth.smooth import WEIGHTS as SMOOTH
from cai_pyserini.vectors.mixing import mean_of_near, mix
from cai_pyserini.vectors.neighbours import NEIGHBOURS, build_index, nearest
from cai_pyserini.vectors.shards import Matrix

DOCUMENTS = 5000  # a sample of this size, with the sources, stands for a large collection
SPANS = 500  # spans that alpha is estimated with
CONTEXTS = 10_000  # spans that vectors of words are learned from
CUTOFF = 10  # the cutoff of nDCG


class Sparse(NamedTuple):
    """SPLADE's raw vectors: of `rows` (see Served), and of queries and spans by representation."""

    rows: csr_matrix
    queries: dict[Representation, csr_matrix]
    spans: dict[Representation, csr_matrix]


class Dense(NamedTuple):
    """Dense vectors of queries and `rows`, the inner products of rows and near documents (rows, documents), the weights
    of words near rows, and those of BM25 with words of near documents."""

    queries: np.ndarray
    rows: np.ndarray
    near: csr_matrix
    words: csr_matrix
    bm25: csr_matrix


class Served:
    """Queries and the documents that they search, by their numbers in the material. `sources` (queries,) are the places
    of the queries' sources among these documents.

    Rows are the documents, and then the remainder of the source of each query. Scores are (queries, documents + 1),
    that of the remainder last.
    """

    def __init__(
        self, material: Material, queries: list[str], remainders: list[str], documents: np.ndarray, sources: np.ndarray
    ):
        self.material = material
        self.queries = queries
        self.documents = documents
        self.sources = sources
        self._remainders = remainders
        self._contents = [material.contents[number] for number in documents]
        draw = random.Random(material.seed)
        texts = draw.sample(self._contents, min(SPANS, len(documents)))
        self.spans = [span for text in texts if (span := random_span(text, draw))]
        self.kinds: list[Representation] = ["splade", "bow"] if material.splade.query == "splade" else ["bow"]
        self.bm25 = Bm25(self._contents, material.collection.language)
        self.counts = vstack([self.bm25.counts, self.bm25.queries(remainders)], format="csr")
        self.words = self.bm25.weights(self.counts)
        self.word_queries = self.bm25.queries(queries)
        self._word_spread = _spread(self.bm25.queries(self.spans) @ self.bm25.documents.T)

    @classmethod
    def judges(cls, material: Material, numbers: np.ndarray) -> "Served":
        """The pseudo queries with these numbers, and at most DOCUMENTS documents, their sources among them."""
        sources, size = material.sources[numbers], len(material.contents)
        others = np.random.default_rng(material.seed).permutation(size)
        documents = np.sort(list(dict.fromkeys([*sources, *others]))[: min(size, DOCUMENTS)])
        queries = [material.pseudo_queries[number].text for number in numbers]
        return cls(material, queries, material.remainders(numbers), documents, np.searchsorted(documents, sources))

    @cached_property
    def _word_scores(self) -> np.ndarray:
        """BM25's scores, which only systems without a dense encoder have as they are."""
        return self.products(self.word_queries, self.words)

    @property
    def systems(self) -> list[str]:
        """The systems that are judged, in the order of their values."""
        names = ["splade-doc" if kind == "bow" else "splade" for kind in self.kinds]
        if self.material.dense is None:
            return [f"joint-{name}-idf" for name in names]
        return [
            f"fused-bm25-smooth-{names[0]}-idf-smooth-dense-zscore",
            *(f"joint-{name}-idf-smooth" for name in names),
        ]

    def splade(self, encoder: Encoder) -> Sparse:
        material = self.material
        is_old = encoder is material.encoders[0]
        documents = material.raw[0][self.documents] if is_old else material.encode(encoder, self._contents)
        rows = vstack([documents, material.encode(encoder, self._remainders)], format="csr")
        rows.eliminate_zeros()
        queries, spans = (
            {kind: encode_queries(encoder, texts, kind) for kind in self.kinds} for texts in (self.queries, self.spans)
        )
        return Sparse(rows, queries, spans)

    @cached_property
    def old_splade(self) -> Sparse:
        return self.splade(self.material.encoders[0])

    @cached_property
    def old_dense(self) -> tuple[np.ndarray, np.ndarray]:
        """The dense vectors of queries and rows before adaptation."""
        material, encoder = self.material, self.material.encoders[-1]
        rows = np.vstack([material.raw[-1][self.documents], material.encode(encoder, self._remainders)])
        return np.asarray(encode_queries(encoder, self.queries)), rows

    @cached_property
    def _lexicon(self) -> tuple[np.ndarray, Evidence]:
        """The words of two documents or more: their columns, and what their dense vectors are learned from, by the
        encoder before adaptation."""
        forms = Counter(
            form  # each once a text, in an order that does not depend on hashes
            for text in self._contents
            for form in dict.fromkeys(word.strip(PUNCTUATION) for word in text.lower().split())
        )
        stem = Stemmer.Stemmer(self.material.collection.language).stemWord
        lexicon: dict[str, str] = {}
        for form, documents in forms.most_common():
            word = stem(form)
            if documents > 1 and len(form) > 1 and form.isalpha() and word in self.bm25.words:
                lexicon.setdefault(word, form)
        columns = np.array([self.bm25.words[word] for word in lexicon], np.int32)
        contexts = Contexts(CONTEXTS)
        for text in self._contents:
            contexts.add(text)
        counts = self.bm25.queries(contexts.items)[:, columns]
        return columns, evidence(contexts.items, counts, [*lexicon.values()], self.material.encoders[-1])

    def dense(self, projection: np.ndarray | None) -> Dense:
        """The vectors of the dense encoder with a projection (width, width)."""
        columns, (contexts, *encoded) = self._lexicon
        vectors = (each if projection is None else project(each, projection) for each in (*self.old_dense, *encoded))
        queries, rows, targets, alone = vectors
        words = learn(contexts, targets, alone)
        count, frequencies = len(self.documents), self.bm25.counts.getnnz(axis=0)[columns]
        found = Near.among(words, frequencies, [rows[:count]], count).words(rows)
        weights = csr_matrix((found.data, columns[found.indices], found.indptr), shape=self.counts.shape)
        weights = csr_matrix(diags_array(np.sign(self.counts.sum(1).A1)) @ weights)  # texts without words have none
        near = self.near(rows)
        return Dense(queries, rows, near, weights, self.with_near(near))

    def near(self, rows: np.ndarray) -> csr_matrix:
        """The inner products (rows, documents) of rows with these dense vectors and near documents; a remainder is not
        near its source."""
        count = len(self.documents)
        index = build_index(lambda label: [rows[:count]], rows.shape[1], count)
        own = np.concatenate([np.arange(count), self.sources])
        return nearest(index, rows, own, min(NEIGHBOURS, count - 1)).matrix(count)

    def with_near(self, near: csr_matrix) -> csr_matrix:
        """BM25's weights with the words of near documents."""
        rates = csr_matrix(diags_array(1 / np.maximum(self.counts.sum(1).A1, 1)) @ self.counts)
        return self.bm25.weights(self.counts, mean_of_near(rates, near, RATES))

    def values(self, sparse: Sparse, dense: Sequence[Dense], weight: float) -> Iterator[np.ndarray]:
        """nDCG@10 (systems, queries) with each of these dense vectors; without any, of the systems that need none.
        `weight` is that of BM25 in the fusion."""
        if not dense:
            plain = [self.scores(sparse, kind, sparse.rows) for kind in self.kinds]
            yield np.array([self.found(alpha * self._word_scores + scores) for scores, alpha in plain])
        for vectors in dense:
            rows = smoothed(sparse.rows, vectors.near)
            smooth = [self.scores(sparse, kind, rows) for kind in self.kinds]
            words = self.products(self.word_queries, vectors.bm25 + NEAR_WORDS * vectors.words)
            bm25 = self.products(self.word_queries, vectors.bm25)
            systems = [fused(weight, bm25, smooth[0][0], self.products(vectors.queries, vectors.rows))]
            systems += [alpha * words + scores for scores, alpha in smooth]
            yield np.array([self.found(scores) for scores in systems])

    def scores(self, sparse: Sparse, kind: Representation, rows: csr_matrix) -> tuple[np.ndarray, float]:
        """Scores with IDF of raw rows, and alpha."""
        weighted = rows @ diags_array(self.material.idf)
        spans = sparse.spans[kind] @ weighted[: len(self.documents)].T
        return self.products(sparse.queries[kind], weighted), _spread(spans) / self._word_spread

    def products(self, queries: Matrix, rows: Matrix) -> np.ndarray:
        """Scores of rows, as products of their vectors and those of queries."""
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
        return np.where(ranks < CUTOFF, 1 / np.log2(ranks + 2), 0)


def smoothed(rows: csr_matrix, near: csr_matrix) -> csr_matrix:
    """Raw vectors of SPLADE, mixed with those of near documents."""
    return mix(rows, rows, near, SMOOTH["dense"])


def fused(weight: float, bm25: np.ndarray, splade: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """Scores of the fusion, with this weight of BM25, of the scores of its parts."""
    return (
        weight * _standardize(bm25) + WEIGHTS["splade"] * _standardize(splade) + WEIGHTS["dense"] * _standardize(dense)
    )


def _standardize(scores: np.ndarray) -> np.ndarray:
    """Scores in units of the deviation of the best documents' scores; remainders are no documents."""
    means, deviations = moments(scores[:, :-1])
    return (scores - means) / deviations


def _spread(scores: csr_matrix) -> float:
    """The mean deviation of the best documents' scores."""
    return float(moments(scores.toarray())[1].mean())
