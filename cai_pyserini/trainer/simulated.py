"""Simulate the recommended systems with candidate encoders, and measure how well pseudo queries find their sources.

Documents get the impacts, and queries the weights, that the stages would give them, by the same code and with the
settings of the collection and the encoders:

joint   alpha * BM25 + SPLADE with IDF
smooth  the same, with SPLADE averaged with the neighbours', and BM25 with the neighbours' words and with associated
        words; the dense encoder determines all of these
fusion  w * z(BM25 with the neighbours' words) + z(SPLADE with IDF, averaged likewise) + 2 * z(dense)

Joint systems also have bag-of-words queries (-doc). Only BM25's word analysis differs (see mixture.py), because that of
the stages needs Java.

A query searches for its source's remainder in place of the source, as if the document used other words than the query.
Other passages and copies of the source, which still have these words, are neither retrieved nor neighbours of it.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import Stemmer
from scipy.sparse import csr_matrix, vstack

from cai_pyserini.collections.copies import PUNCTUATION
from cai_pyserini.collections.spans import CONTEXTS, Contexts, random_span
from cai_pyserini.core.config import WORD, EncoderConfig, Joint
from cai_pyserini.models.dense import project
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.runs.fuse import Hits, contributions
from cai_pyserini.runs.fusions import FUSIONS
from cai_pyserini.runs.rankings import best_hits
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.mixture import Bm25
from cai_pyserini.vectors.near_documents import WEIGHT, mix, neighbour_means
from cai_pyserini.vectors.near_words import (
    NEIGHBOUR_WORDS,
    Regression,
    WordAssociations,
    learn,
    rates,
    regression,
    side_by_side,
)
from cai_pyserini.vectors.neighbours import NEIGHBOURS, build_index, nearest
from cai_pyserini.vectors.quantization import Weighting, weighted
from cai_pyserini.vectors.queries import Representation, WordQueries, encode_queries, for_index
from cai_pyserini.vectors.shards import Matrix
from cai_pyserini.vectors.weighting import Terms, balanced_alpha, largest_weight, term_matrix

DOCUMENTS = 5000  # the sample, sources included, that represents a large collection
SPANS = 500  # spans that alpha is estimated with
CUTOFF = 10  # k of nDCG@k
BATCH = 256  # queries fused together
ZSCORE = FUSIONS["zscore"]


class SparseVectors(NamedTuple):
    """A SPLADE encoder and its raw vectors of rows, and of queries and spans by representation."""

    encoder: EncoderModel
    rows: csr_matrix
    queries: dict[Representation, csr_matrix]
    spans: dict[Representation, csr_matrix]


class DenseVectors(NamedTuple):
    """Dense vectors, and the BM25 weights that depend on them."""

    queries: np.ndarray
    rows: np.ndarray
    neighbours: csr_matrix  # inner products (rows, documents)
    bm25: csr_matrix  # BM25 with the neighbours' words
    words: csr_matrix  # BM25 with the neighbours' words and associated words


class SimulatedRetrieval:
    """Queries and the documents that they search, by number in the data. Pseudo queries have `sources` (queries,), as
    positions in `documents`, and the `remainders` of these.

    Rows are the documents, followed by the remainders. Scores are (queries, documents); a query's source has the score
    of its remainder. In a collection of passages, scores have a column for each original document, with the score of
    its best passage.
    """

    def __init__(
        self,
        data: AdaptationData,
        queries: list[str],
        documents: np.ndarray,
        sources: np.ndarray,
        remainders: Sequence[str] = (),
    ):
        self.data = data
        self.queries = queries
        self.documents = documents
        self.sources = sources
        self._remainders = remainders
        self._name = f"collection {data.collection.name}"  # in error messages
        self._contents = [data.contents[number] for number in documents]
        draw = random.Random(data.seed)
        texts = draw.sample(self._contents, min(SPANS, len(documents)))
        self.spans = [span for text in texts if (span := random_span(text, draw))]
        self.representations: list[Representation] = ["splade", "bow"] if data.splade.query == "splade" else ["bow"]
        self.bm25 = Bm25(self._contents, data.collection)
        self.counts = vstack([self.bm25.counts, self.bm25.queries(remainders)], format="csr")
        self.words = self.bm25.weighting.weights(self.counts)

    @classmethod
    def for_pseudo_queries(cls, data: AdaptationData, numbers: np.ndarray) -> "SimulatedRetrieval":
        """Take the pseudo queries with these numbers, and at most DOCUMENTS documents, including the sources."""
        sources, size = data.sources[numbers], len(data.contents)
        others = np.random.default_rng(data.seed).permutation(size)
        documents = np.sort(list(dict.fromkeys([*sources, *others]))[: min(size, DOCUMENTS)])
        queries = [data.pseudo_queries[number].text for number in numbers]
        return cls(data, queries, documents, np.searchsorted(documents, sources), data.remainders(numbers))

    @property
    def systems(self) -> list[str]:
        """The simulated systems, in the order of their values; without IDF, joint stands for joint-splade."""
        suffixes = ["-doc" if kind == "bow" else "" for kind in self.representations]
        if self.data.dense is None:
            return [f"joint{suffix}" for suffix in suffixes]
        return [f"trio{suffixes[0]}", *(f"joint{suffix}-near" for suffix in suffixes)]

    @cached_property
    def equivalents(self) -> csr_matrix:
        """Ones for the documents that answer the same queries as a query's source, (queries, documents)."""
        by_source: dict[int, np.ndarray] = {}
        for source in {*self.sources.tolist()}:
            numbers = self.data.equivalents(self.documents[source])
            by_source[source] = np.flatnonzero(np.isin(self.documents, numbers))
        rows = [by_source[source] for source in self.sources.tolist()]
        indices, indptr = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
        return csr_matrix((np.ones(len(indices), np.float32), indices, indptr), (len(rows), len(self.documents)))

    def splade(self, encoder: EncoderModel) -> SparseVectors:
        """Encode rows, queries and spans with a SPLADE encoder."""
        data = self.data
        is_old = encoder is data.encoders[0]  # whose vectors are stored
        documents = data.raw[0][self.documents] if is_old else data.encode(encoder, self._contents)
        remainders = [data.encode(encoder, self._remainders)] if self._remainders else []
        rows = vstack([documents, *remainders], format="csr")
        rows.eliminate_zeros()
        queries, spans = (
            {representation: encode_queries(encoder, texts, representation) for representation in self.representations}
            for texts in (self.queries, self.spans)
        )
        return SparseVectors(encoder, rows, queries, spans)

    @cached_property
    def old_splade(self) -> SparseVectors:
        return self.splade(self.data.encoders[0])

    @cached_property
    def old_dense(self) -> tuple[np.ndarray, np.ndarray]:
        """The dense vectors of queries and rows, before adaptation."""
        data, encoder = self.data, self.data.encoders[-1]
        rows = data.raw[-1][self.documents]
        if self._remainders:
            rows = np.vstack([rows, data.encode(encoder, self._remainders)])
        return np.asarray(encode_queries(encoder, self.queries)), rows

    @cached_property
    def _lexicon(self) -> tuple[np.ndarray, Regression]:
        """The columns of words in two or more documents, and the regression for their vectors, before adaptation."""
        forms: Counter[str] = Counter()
        for text in self._contents:
            # Once per text, in an order that does not depend on hashes.
            forms.update(dict.fromkeys(word.strip(PUNCTUATION) for word in text.lower().split()).keys())
        stem = Stemmer.Stemmer(self.data.collection.language).stemWord
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
        of_documents = self.bm25.counts[:, columns], self.old_dense[1][: len(self.documents)]
        return columns, regression(contexts.items, counts, *of_documents, [*lexicon.values()], self.data.encoders[-1])

    def dense(self, projection: np.ndarray | None) -> DenseVectors:
        """The dense encoder's vectors with a projection (width, width), if any, and the weights that depend on them."""
        columns, encoded = self._lexicon
        vectors = (*self.old_dense, encoded.targets, encoded.alone)
        queries, rows, targets, alone = (
            vectors if projection is None else (project(each, projection) for each in vectors)
        )
        word_vectors = learn(encoded._replace(targets=targets, alone=alone))
        count, frequencies = len(self.documents), self.bm25.counts.getnnz(axis=0)[columns]
        associations = WordAssociations.fit(word_vectors, frequencies, [rows[:count]], count)
        near = self.neighbours(rows)
        means = self.neighbours_words(near)
        both = side_by_side(associations.words(rows), columns, means, self.counts, rows)
        associated = both[:, : means.shape[1]]
        bm25, words = (self.bm25.weighting.weights(self.counts, means, more) for more in (None, associated))
        return DenseVectors(queries, rows, near, bm25, words)

    def neighbours(self, rows: np.ndarray) -> csr_matrix:
        """Inner products (rows, documents) with neighbours; equivalents of a source are none of its remainder."""
        count = len(self.documents)
        index = build_index(lambda label: [rows[:count]], rows.shape[1], count)
        own = np.concatenate([np.arange(count), self.sources[: len(self._remainders)]])
        near = nearest(index, rows, own, min(NEIGHBOURS, count - 1)).matrix(count)
        if self._remainders:
            remainders = near[count:]
            near = vstack([near[:count], remainders - remainders.multiply(self.equivalents)], format="csr")
            near.eliminate_zeros()
        return near

    def neighbours_words(self, near: csr_matrix) -> csr_matrix:
        """The mean rates of words in neighbours, (rows, words)."""
        return neighbour_means(rates(self.counts), near, NEIGHBOUR_WORDS)

    def values(
        self, sparse: SparseVectors, dense: Sequence[DenseVectors], weights: Sequence[float]
    ) -> Iterator[np.ndarray]:
        """nDCG@10 (systems, queries) with each of these dense vectors; without any, of the systems without a dense
        encoder. `weights` are those of BM25, SPLADE and dense in the fusion."""
        if not dense:
            yield np.array([*self._joint(sparse, sparse.rows, self.words)])
        for vectors in dense:
            rows = smoothed(sparse.rows, vectors.neighbours)
            fused = self.fused(self.parts(sparse, rows, vectors.bm25, vectors.queries, vectors.rows), weights)
            yield np.array([self.ndcg(fused), *self._joint(sparse, rows, vectors.words)])

    def _joint(self, sparse: SparseVectors, rows: csr_matrix, words: csr_matrix) -> Iterator[np.ndarray]:
        """nDCG@10 (queries,) of joint indexes of these raw vectors and BM25 weights, for each representation."""
        alpha = self.alpha(sparse, rows)
        return (self.ndcg(self.impact_scores(sparse, kind, rows, words, alpha[kind])) for kind in self.representations)

    def alpha(self, sparse: SparseVectors, rows: csr_matrix) -> Mapping[Representation, float]:
        """The weights of BM25 in a joint index of these raw vectors, by representation."""
        if self.data.alpha is not None:
            return dict.fromkeys(self.representations, self.data.alpha)
        count = len(self.documents)
        documents = weighted(rows[:count], self.data.idf), self.words[:count]
        return balanced_alpha(sparse.spans, self.bm25.queries(self.spans), [documents])

    def parts(
        self, sparse: SparseVectors, rows: csr_matrix, bm25: csr_matrix, queries: np.ndarray, dense: np.ndarray
    ) -> list[np.ndarray]:
        """The scores of smooth BM25, SPLADE and dense retrieval, the parts of the fusion."""
        only_words = sparse.encoder.config.replace(keep_terms=0)
        return [
            self.impact_scores(sparse, "bow", rows, bm25, config=only_words),
            self.impact_scores(sparse, self.representations[0], rows),
            self.product_scores(queries, dense),
        ]

    def impact_scores(
        self,
        sparse: SparseVectors,
        representation: Representation,
        rows: csr_matrix,
        words: csr_matrix | None = None,
        alpha: float = 1.0,
        config: EncoderConfig | None = None,
    ) -> np.ndarray:
        """The scores of an impact index of these raw vectors (rows, vocabulary), with the settings of the encoder or of
        `config`; of a joint index if `words` has BM25 weights."""
        count, collection = len(self.documents), self.data.collection
        config = config or sparse.encoder.config
        largest = config.range or largest_weight([weighted(rows[:count], self.data.idf)], self._name)
        config = config.replace(range=largest, joint=None)
        word_queries = None
        if words is not None:
            word_range = largest_weight([words[:count]], self._name)
            joint = Joint(alpha={representation: alpha}, range=word_range, **collection.bm25._asdict())
            config = config.replace(joint=joint)
            analyzed = dict(zip(self.queries, self.bm25.analyze(self.queries), strict=True))
            word_queries = WordQueries(analyzed.__getitem__, config)
        impacts, _ = Weighting(config, self.data.idf).impacts(rows, words)
        vectors = sparse.queries[representation]
        queries: list[Any] = for_index(
            vectors, self.queries, sparse.encoder, config.query_scale, query=representation, words=word_queries
        )
        terms = Terms(sparse.encoder.tokenizer.terms, [] if words is None else [(WORD, [*self.bm25.words])])
        scores = self.product_scores(term_matrix(queries, terms), impacts.astype(np.float32))
        scores[scores <= 0] = -np.inf  # documents without a common term are not retrieved
        return scores

    def product_scores(self, queries: Matrix, rows: Matrix) -> np.ndarray:
        """Scores of rows, as inner products of query and row vectors; a document has that of its best passage."""
        count = len(self.documents)
        product = queries @ rows[:count].T
        scores: np.ndarray = product if isinstance(product, np.ndarray) else product.toarray()
        if isinstance(rows, np.ndarray):
            scores[:, ~rows[:count].any(1)] = -np.inf  # zero vectors retrieve nothing and are not retrieved
            scores[~queries.any(1)] = -np.inf
        if self._remainders:
            remainders = rows[count:]
            if isinstance(remainders, np.ndarray):
                remainder_scores = np.where(queries.any(1) & remainders.any(1), (queries * remainders).sum(1), -np.inf)
            else:
                remainder_scores = remainders.multiply(queries).sum(1).A1
            scores[self.equivalents.nonzero()] = -np.inf
            scores[np.arange(len(scores)), self.sources] = remainder_scores
        order = np.argsort(self._columns, kind="stable")
        starts = np.flatnonzero(np.diff(self._columns[order], prepend=-1))
        return scores if len(starts) == len(order) else np.maximum.reduceat(scores[:, order], starts, axis=1)

    @cached_property
    def _columns(self) -> np.ndarray:
        """The score column of each document, which may be a passage: (documents,)."""
        if not self.data.collection.passages:
            return np.arange(len(self.documents))
        return np.unique(self.data.origins[self.documents], return_inverse=True)[1]

    @property
    def source_columns(self) -> np.ndarray:
        """The score column of each query's source, (queries,)."""
        return self._columns[self.sources]

    def fused(self, parts: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
        """Fuse the scores of BM25, SPLADE and dense; -inf for documents that are not fused."""
        fused = np.full_like(parts[0], -np.inf)
        for start in range(0, len(fused), BATCH):
            chunk = slice(start, start + BATCH)
            runs = [best_hits(scores[chunk], self.data.collection.hits) for scores in parts]
            found = Hits([*map(len, (run[0] for run in runs))], *map(np.concatenate, zip(*runs, strict=True)))
            queries, documents, values = contributions(found, ZSCORE, self.data.depth, weights)
            fused[chunk][queries, documents] = ZSCORE.combined(values)
        return fused

    def ndcg(self, scores: np.ndarray) -> np.ndarray:
        """nDCG@10 (queries,), with the sources as the only relevant documents; tied documents rank before them."""
        source_scores = scores[np.arange(len(scores)), self.source_columns]
        ranks = (scores >= source_scores[:, None]).sum(1) - 1
        return np.where((ranks < CUTOFF) & (source_scores > -np.inf), 1 / np.log2(ranks + 2), 0)


def smoothed(rows: csr_matrix, near: csr_matrix) -> csr_matrix:
    """Average raw SPLADE vectors with the neighbours'."""
    return mix(rows, rows, near, WEIGHT)
