"""How well the recommended systems find the sources of pseudo queries, with candidate encoders.

What is scored are documents of the collection with the impacts, and the queries with the weights, that the stages would
give them, by the same code and with the settings of the collection and the encoders:

joint   alpha * BM25 + SPLADE with IDF
smooth  the same, SPLADE mixed with that of near documents, and BM25 with their words and with near words, all by the
        dense encoder
fusion  w * z(BM25 with words of near documents) + z(SPLADE with IDF, mixed likewise) + 2 * z(dense)

joint ones also with bag-of-words queries (-doc). Only the analysis of BM25's words is another (adapt.mixture), since
that of the stages needs Java.

A query searches for its source's remainder in place of the source, as if the document had other words than the query.
Other passages of the source, and copies of it, are neither found nor near the remainder: they have these words still.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import Stemmer
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import Bm25
from cai_pyserini.collection.copies import PUNCTUATION
from cai_pyserini.collection.spans import Contexts, random_span
from cai_pyserini.core.config import EncoderConfig, Joint
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Representation, WordQueries, encode_queries, for_index
from cai_pyserini.expand.expand import NEIGHBOUR_WORDS, WordAssociations
from cai_pyserini.expand.word_vectors import Regression, learn, regression
from cai_pyserini.fusion.fuse import candidates
from cai_pyserini.fusion.fusions import FUSIONS
from cai_pyserini.impact.impacts import Terms, balanced_alpha, largest_weight, term_matrix
from cai_pyserini.impact.quantization import Weighting, weighted
from cai_pyserini.models.dense import project
from cai_pyserini.smooth.smooth import WEIGHTS as SMOOTH
from cai_pyserini.vectors.mixing import mix, neighbour_means
from cai_pyserini.vectors.neighbours import NEIGHBOURS, build_index, nearest
from cai_pyserini.vectors.shards import Matrix

DOCUMENTS = 5000  # a sample of this size, with the sources, stands for a large collection
SPANS = 500  # spans that alpha is estimated with
CONTEXTS = 10_000  # spans that vectors of words are learned from
CUTOFF = 10  # the cutoff of nDCG
BATCH = 256  # queries whose parts are fused together
ZSCORE = FUSIONS["zscore"]


class Sparse(NamedTuple):
    """A SPLADE encoder and its raw vectors: of `rows` (see Served), and of queries and spans by representation."""

    encoder: Encoder
    rows: csr_matrix
    queries: dict[Representation, csr_matrix]
    spans: dict[Representation, csr_matrix]


class Dense(NamedTuple):
    """Dense vectors of queries and `rows`, the inner products of rows and near documents (rows, documents), and the
    weights of BM25 with words of near documents, and with near words as well."""

    queries: np.ndarray
    rows: np.ndarray
    near: csr_matrix
    bm25: csr_matrix
    words: csr_matrix


class Served:
    """Queries and the documents that they search, by their numbers in the material. Those of pseudo queries have
    `sources` (queries,), the places of these among the documents, and their `remainders`.

    Rows are the documents, and then the remainders. Scores are (queries, documents); in the place of a query's source,
    that of its remainder. Where the collection is in passages, the columns of scores are those of the documents that
    these are of, each with the score of its best passage.
    """

    def __init__(
        self,
        material: Material,
        queries: list[str],
        documents: np.ndarray,
        sources: np.ndarray,
        remainders: Sequence[str] = (),
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
        self.bm25 = Bm25(self._contents, material.collection)
        self.counts = vstack([self.bm25.counts, self.bm25.queries(remainders)], format="csr")
        self.words = self.bm25.weighting.weights(self.counts)

    @classmethod
    def judges(cls, material: Material, numbers: np.ndarray) -> "Served":
        """The pseudo queries with these numbers, and at most DOCUMENTS documents, their sources among them."""
        sources, size = material.sources[numbers], len(material.contents)
        others = np.random.default_rng(material.seed).permutation(size)
        documents = np.sort(list(dict.fromkeys([*sources, *others]))[: min(size, DOCUMENTS)])
        queries = [material.pseudo_queries[number].text for number in numbers]
        return cls(material, queries, documents, np.searchsorted(documents, sources), material.remainders(numbers))

    @property
    def _name(self) -> str:
        return f"collection {self.material.collection.name}"

    @property
    def systems(self) -> list[str]:
        """The systems that are judged, in the order of their values."""
        idf = "-idf" * (self.material.splade.idf_power != 0)
        names = [f"splade-doc{idf}" if kind == "bow" else f"splade{idf}" for kind in self.kinds]
        if self.material.dense is None:
            return [f"joint-{name}" for name in names]
        return [f"fused-bm25-smooth-{names[0]}-smooth-dense-zscore", *(f"joint-{name}-smooth" for name in names)]

    @cached_property
    def alike(self) -> csr_matrix:
        """The documents that answer what the source of a query answers, (queries, documents), with ones."""
        documents, sources = self.documents, self.sources.tolist()
        known = {each: np.flatnonzero(np.isin(documents, self.material.alike(documents[each]))) for each in {*sources}}
        rows = [known[source] for source in sources]
        indices, indptr = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
        return csr_matrix((np.ones(len(indices), np.float32), indices, indptr), (len(rows), len(documents)))

    def splade(self, encoder: Encoder) -> Sparse:
        material = self.material
        is_old = encoder is material.encoders[0]
        documents = material.raw[0][self.documents] if is_old else material.encode(encoder, self._contents)
        remainders = [material.encode(encoder, self._remainders)] if self._remainders else []
        rows = vstack([documents, *remainders], format="csr")
        rows.eliminate_zeros()
        queries, spans = (
            {kind: encode_queries(encoder, texts, kind) for kind in self.kinds} for texts in (self.queries, self.spans)
        )
        return Sparse(encoder, rows, queries, spans)

    @cached_property
    def old_splade(self) -> Sparse:
        return self.splade(self.material.encoders[0])

    @cached_property
    def old_dense(self) -> tuple[np.ndarray, np.ndarray]:
        """The dense vectors of queries and rows before adaptation."""
        material, encoder = self.material, self.material.encoders[-1]
        rows = material.raw[-1][self.documents]
        if self._remainders:
            rows = np.vstack([rows, material.encode(encoder, self._remainders)])
        return np.asarray(encode_queries(encoder, self.queries)), rows

    @cached_property
    def _lexicon(self) -> tuple[np.ndarray, Regression]:
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
        return columns, regression(contexts.items, counts, [*lexicon.values()], self.material.encoders[-1])

    def dense(self, projection: np.ndarray | None) -> Dense:
        """The vectors of the dense encoder with a projection (width, width)."""
        columns, (contexts, *encoded) = self._lexicon
        vectors = (each if projection is None else project(each, projection) for each in (*self.old_dense, *encoded))
        queries, rows, targets, alone = vectors
        words = learn(contexts, targets, alone)
        count, frequencies = len(self.documents), self.bm25.counts.getnnz(axis=0)[columns]
        found = WordAssociations.fit(words, frequencies, [rows[:count]], count).words(rows)
        weights = csr_matrix((found.data, columns[found.indices], found.indptr), shape=self.counts.shape)
        has_both = (np.diff(self.counts.indptr) > 0) & rows.any(axis=1)  # words, and a vector, as in the expand stage
        weights = csr_matrix(diags_array(has_both.astype(np.float32)) @ weights)
        near = self.near(rows)
        return Dense(queries, rows, near, self.with_near(near), self.with_near(near, weights))

    def near(self, rows: np.ndarray) -> csr_matrix:
        """The inner products (rows, documents) of rows with these dense vectors and near documents; what is like its
        source is not near a remainder."""
        count = len(self.documents)
        index = build_index(lambda label: [rows[:count]], rows.shape[1], count)
        own = np.concatenate([np.arange(count), self.sources[: len(self._remainders)]])
        near = nearest(index, rows, own, min(NEIGHBOURS, count - 1)).matrix(count)
        if self._remainders:
            of_remainders = near[count:]
            near = vstack([near[:count], of_remainders - of_remainders.multiply(self.alike)], format="csr")
            near.eliminate_zeros()
        return near

    def with_near(self, near: csr_matrix, words: csr_matrix | None = None) -> csr_matrix:
        """BM25's weights with the words of near documents, and with these weights of near words."""
        rates = csr_matrix(diags_array(1 / np.maximum(self.counts.sum(1).A1, 1)) @ self.counts)
        return self.bm25.weighting.weights(self.counts, neighbour_means(rates, near, NEIGHBOUR_WORDS), words)

    def values(self, sparse: Sparse, dense: Sequence[Dense], weights: Sequence[float]) -> Iterator[np.ndarray]:
        """nDCG@10 (systems, queries) with each of these dense vectors; without any, of the systems that need none.
        `weights` are those of BM25, SPLADE and dense in the fusion."""
        if not dense:
            yield np.array([*self._joint(sparse, sparse.rows, self.words)])
        for vectors in dense:
            rows = smoothed(sparse.rows, vectors.near)
            fused = self.fused(self.parts(sparse, rows, vectors.bm25, vectors.queries, vectors.rows), weights)
            yield np.array([self.found(fused), *self._joint(sparse, rows, vectors.words)])

    def _joint(self, sparse: Sparse, rows: csr_matrix, words: csr_matrix) -> Iterator[np.ndarray]:
        """nDCG@10 (queries,) of joint indexes of these raw vectors and weights of words, by representation."""
        alpha = self.alpha(sparse, rows)
        return (self.found(self.impact_scores(sparse, kind, rows, words, alpha[kind])) for kind in self.kinds)

    def alpha(self, sparse: Sparse, rows: csr_matrix) -> Mapping[Representation, float]:
        """The weights of BM25 in a joint index of these raw vectors, by representation. Raises CaiError where they
        cannot be estimated."""
        if self.material.alpha is not None:
            return dict.fromkeys(self.kinds, self.material.alpha)
        count = len(self.documents)
        documents = weighted(rows[:count], self.material.idf), self.words[:count]
        return balanced_alpha(sparse.spans, self.bm25.queries(self.spans), [documents], self._name)

    def parts(
        self, sparse: Sparse, rows: csr_matrix, bm25: csr_matrix, queries: np.ndarray, dense: np.ndarray
    ) -> list[np.ndarray]:
        """The scores of BM25, SPLADE and dense retrieval, of smooth parts."""
        alone = sparse.encoder.config.replace(keep_terms=0)
        return [
            self.impact_scores(sparse, "bow", rows, bm25, 1.0, alone),
            self.impact_scores(sparse, self.kinds[0], rows),
            self.products(queries, dense),
        ]

    def impact_scores(
        self,
        sparse: Sparse,
        kind: Representation,
        rows: csr_matrix,
        words: csr_matrix | None = None,
        alpha: float = 1.0,
        config: EncoderConfig | None = None,
    ) -> np.ndarray:
        """Scores of an index of impacts of these raw vectors of rows, with the settings of the encoder, or of `config`;
        with the BM25 weights of `words`, a joint one."""
        count, collection = len(self.documents), self.material.collection
        config = config or sparse.encoder.config
        largest = config.range or largest_weight([weighted(rows[:count], self.material.idf)], self._name)
        config = config.replace(range=largest, joint=None)
        of_words = None
        if words is not None:
            of_best = largest_weight([words[:count]], self._name)
            joint = Joint(alpha={kind: alpha}, range=of_best, k1=collection.k1, b=collection.b)
            config = config.replace(joint=joint)
            of_words = WordQueries(self._analyzed.__getitem__, config)
        impacts, _ = Weighting(config, self.material.idf).impacts(rows, words)
        queries: list[Any] = for_index(
            sparse.queries[kind], self.queries, sparse.encoder, config.query_scale, kind, of_words
        )
        terms = Terms(sparse.encoder.tokenizer.terms, [] if words is None else [*self.bm25.words])
        scores = self.products(term_matrix(queries, terms), impacts.astype(np.float32))
        scores[scores <= 0] = -np.inf  # what shares no term with a query is not found
        return scores

    @cached_property
    def _analyzed(self) -> dict[str, list[str]]:
        """The words of the queries."""
        return dict(zip(self.queries, self.bm25.analyze(self.queries), strict=True))

    def products(self, queries: Matrix, rows: Matrix) -> np.ndarray:
        """Scores of rows, as products of their vectors and those of queries."""
        count = len(self.documents)
        product = queries @ rows[:count].T
        scores: np.ndarray = product if isinstance(product, np.ndarray) else product.toarray()
        if isinstance(rows, np.ndarray):
            scores[:, ~rows[:count].any(1)] = -np.inf  # zero vectors find nothing, and are not found
            scores[~queries.any(1)] = -np.inf
        if self._remainders:
            of_remainders = rows[count:]
            if isinstance(of_remainders, np.ndarray):
                own = np.where(queries.any(1) & of_remainders.any(1), (queries * of_remainders).sum(1), -np.inf)
            else:
                own = of_remainders.multiply(queries).sum(1).A1
            scores[self.alike.nonzero()] = -np.inf
            scores[np.arange(len(scores)), self.sources] = own
        return self._folded(scores)

    @cached_property
    def _columns(self) -> np.ndarray:
        """The columns of scores that documents, perhaps passages, belong to, (documents,)."""
        if self.material.collection.passages is None:
            return np.arange(len(self.documents))
        return np.unique(self.material.origins[self.documents], return_inverse=True)[1]

    @property
    def answers(self) -> np.ndarray:
        """The columns of scores that the queries' sources belong to, (queries,)."""
        return self._columns[self.sources]

    def _folded(self, scores: np.ndarray) -> np.ndarray:
        """The scores of documents, each that of its best passage, from those of passages."""
        columns = self._columns
        order = np.argsort(columns, kind="stable")
        starts = np.flatnonzero(np.diff(columns[order], prepend=-1))
        return scores if len(starts) == len(columns) else np.maximum.reduceat(scores[:, order], starts, axis=1)

    def fused(self, parts: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
        """Scores of BM25 + SPLADE + dense, from those of its parts; -inf for documents that are not fused."""
        fused = np.full_like(parts[0], -np.inf)
        for start in range(0, len(fused), BATCH):
            chunk = slice(start, start + BATCH)
            runs = [_run(scores[chunk], self.material.collection.hits) for scores in parts]
            hits, values = candidates(runs, ZSCORE, self.material.depth, weights)
            places = (hits[name].cat.codes.to_numpy() for name in ("query_id", "doc_id"))
            fused[chunk][*places] = ZSCORE.combined(values)
        return fused

    def found(self, scores: np.ndarray) -> np.ndarray:
        """nDCG@10 of the remainders in the place of the sources, (queries,)."""
        own = scores[np.arange(len(scores)), self.answers]
        ranks = (scores >= own[:, None]).sum(1) - 1
        return np.where((ranks < CUTOFF) & (own > -np.inf), 1 / np.log2(ranks + 2), 0)


def smoothed(rows: csr_matrix, near: csr_matrix) -> csr_matrix:
    """Raw vectors of SPLADE, mixed with those of near documents."""
    return mix(rows, rows, near, SMOOTH["dense"])


def _run(scores: np.ndarray, hits: int) -> pd.DataFrame:
    """A run with at most `hits` documents for each of these queries (queries, documents), named by their numbers."""
    depth = min(hits, scores.shape[1])
    best = np.sort(np.argpartition(-scores, depth - 1, axis=1)[:, :depth], axis=1)
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, axis=1)
    top: np.ndarray = np.take_along_axis(scores, best, axis=1)
    found = top > -np.inf
    queries, documents = (pd.Index([f"{number:09}" for number in range(size)], dtype="str") for size in scores.shape)
    columns = {
        "query_id": pd.Categorical.from_codes(np.nonzero(found)[0], queries),
        "doc_id": pd.Categorical.from_codes(best[found], documents),
    }
    return pd.DataFrame(columns | {"score": top[found].astype(np.float64)})
