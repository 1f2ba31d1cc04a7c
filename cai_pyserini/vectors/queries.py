"""All query encoding: queries in the form that an index is searched with.

A BM25 index takes text, an impact index {term: round(weight * query_scale)}, a dense index vectors. In a joint index,
BM25's impacts have a document_scale of their own, so the query weights of words rescale them to SPLADE's:

    round(count * alpha * query_scale * document_scale / BM25's document_scale)

n-grams of words have weights, see core.grams, in place of counts.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.config import GRAM, WORD, EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.grams import weighted_grams
from cai_pyserini.core.text import normalized
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.rows import largest, stacked, with_data
from cai_pyserini.vectors.shards import Matrix, Vectors

MAX_WEIGHT = 2**31 - 1  # largest weight of a query term, Java's largest int

Query = str | Mapping[str, float] | np.ndarray  # text, {term: impact or weight}, or a vector (width,)
Representation = Literal["splade", "bow"]  # the model's weights, or a bag of word pieces (SPLADE-Doc)


def encode_queries(
    encoder: EncoderModel, texts: Sequence[str], query: Representation | None = None, max_length: int | None = None
) -> Matrix:
    """Raw query vectors (queries, width); `query` and `max_length` override the encoder's settings.

    Bags of word pieces, which SPLADE can use, need no model: they hold counts, or the encoder's token weights.
    """
    texts = [*map(normalized, texts)]
    config, length = encoder.config, max_length or encoder.config.max_query_length
    if config.needs_query_model(query):
        return apply_query_settings(encoder, encoder.load("queries").encode(texts, length), texts, length)
    if (weights := encoder.token_weights) is not None:
        texts = [config.query_prompt + text for text in texts]
    counts = encoder.tokenizer.bag_of_words(texts, length)
    if config.binary_queries:
        return _binary(counts)
    if weights is None:
        return counts
    bags = with_data(counts, weights[counts.indices])
    bags.eliminate_zeros()
    return largest(bags, config.max_active_dims) if config.max_active_dims else bags


def apply_query_settings(encoder: EncoderModel, vectors: Matrix, texts: Sequence[str], length: int) -> Matrix:
    """Apply expand_queries and binary_queries to a model's vectors of texts, of at most `length` tokens."""
    if not isinstance(vectors, csr_matrix):
        return vectors
    if not encoder.config.expand_queries:
        vectors = vectors.multiply(encoder.tokenizer.bag_of_words(texts, length) > 0).tocsr()
    return _binary(vectors) if encoder.config.binary_queries else vectors


def _binary(vectors: csr_matrix) -> csr_matrix:
    return with_data(vectors, np.ones_like(vectors.data))


def quantize_queries(vectors: csr_matrix, query_scale: int) -> csr_matrix:
    """round(weight * query_scale), integers stored as float32 (queries, vocabulary), without zeros."""
    impacts = with_data(vectors, np.rint(vectors.data * np.float32(query_scale))).copy()
    impacts.eliminate_zeros()
    return impacts


def pruned(query: dict[str, int], mass: float, idf: Callable[[str], float]) -> dict[str, int]:
    """Keep the model's terms with the largest weight * idf, as few as make up the share `mass` of the sum, and all
    BM25 words. Terms with an IDF of 0 are dropped."""
    values = {term: weight * idf(term) for term, weight in query.items() if not term.startswith((WORD, GRAM))}
    missing, kept = mass * sum(values.values()), set()
    for term in sorted(values, key=values.__getitem__, reverse=True):
        if missing <= 0 or not values[term]:
            break
        kept.add(term)
        missing -= values[term]
    return {term: weight for term, weight in query.items() if term in kept or term not in values}


def as_terms(impacts: csr_matrix, terms: Sequence[str]) -> list[dict[str, int]]:
    """The rows of an integer-valued matrix (texts, vocabulary) as {term: impact}."""
    indices, data = impacts.indices.tolist(), impacts.data.astype(int).tolist()
    return [
        {terms[column]: value for column, value in zip(indices[start:end], data[start:end], strict=True)}
        for start, end in zip(impacts.indptr, impacts.indptr[1:], strict=False)
    ]


@dataclass(frozen=True)
class WordQueries:
    """The BM25 words of queries for the joint index of the encoder `config`. `analyze` splits a text into words."""

    analyze: Callable[[str], Sequence[str]]
    config: EncoderConfig

    def impacts(self, text: str, query: Representation | None = None) -> dict[str, int]:
        joint = self.config.joint
        if joint is None or self.config.range is None:
            raise ValueError("not the encoder of a joint index")
        document_scale = (2**self.config.bits - 1) / self.config.range
        scale = joint.alpha[query or self.config.query] * self.config.query_scale * document_scale / joint.scale
        text = normalized(text)
        terms: dict[str, float] = {WORD + word: count for word, count in Counter(self.analyze(text)).items()}
        if joint.grams:
            terms |= {GRAM + gram: weight for gram, weight in weighted_grams(text).items()}
        return {term: min(max(1, round(weight * scale)), MAX_WEIGHT) for term, weight in terms.items()}


def for_index(
    vectors: Matrix,
    texts: Sequence[str],
    encoder: EncoderModel,
    query_scale: int,
    query: Representation | None = None,
    words: WordQueries | None = None,
) -> list[Query]:
    """Raw vectors (texts, width) in the form that an index takes; `words` adds the words of BM25."""
    if not isinstance(vectors, csr_matrix):
        return list(vectors)
    query = query or encoder.config.query
    terms = as_terms(quantize_queries(vectors, query_scale), encoder.tokenizer.terms)
    if words is None:
        return list(terms)
    return [weights | words.impacts(text, query) for weights, text in zip(terms, texts, strict=True)]


class TwoStep(NamedTuple):
    """A search in two steps: the terms that make up `mass` of a query, see `pruned`, find at least `documents` that all
    terms score."""

    mass: float
    documents: int

    def candidates(self, hits: int) -> int:
        """The documents that the first step finds for so many hits."""
        return max(self.documents, 2 * hits)


@dataclass(frozen=True)
class Queries:
    """The topics of a split, id -> text, and how they are represented: as text without an encoder.

    `stored` is a folder of the encode stage with their vectors. `words` adds the words of BM25, for a joint index.
    """

    topics: dict[str, str]
    encoder: EncoderModel | None = None
    query: Representation | None = None
    stored: Path | None = None
    words: WordQueries | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The digests and settings that the encoded queries depend on."""
        identity: dict[str, Any] = {"topics": artifact.digest([*self.topics.items()])}
        if self.encoder:
            identity |= self.encoder.config.shaping("queries") | {"query": self.query or self.encoder.config.query}
        if self.stored:
            identity["vectors"] = artifact.require(self.stored, "encode").digest
        elif self.encoder:
            identity["encoder"] = self.encoder.identity("queries")
        if self.words and (joint := self.words.config.joint):
            identity["joint"] = [joint.model_dump(), self.words.config.range, self.words.config.bits]
        return identity

    @property
    def two_step(self) -> TwoStep | None:
        """The two steps of the search; None if it has one, as of bags of words, in which all terms matter."""
        if self.encoder is None:
            return None
        config = self.encoder.config
        counted = (self.query or config.query) == "bow" and self.encoder.token_weights is None
        if not (config.keep_query_mass and config.rescore) or config.binary_queries or counted:
            return None
        return TwoStep(config.keep_query_mass, config.rescore)

    @cached_property
    def encoded(self) -> tuple[Matrix, float]:
        """Raw vectors (queries, width) in the order of the topics, and the encoding time in seconds. Raises CaiError if
        the stored queries are not the topics."""
        if self.stored:
            vectors = Vectors(self.stored)
            shards = [*vectors]
            if [id for shard in shards for id in shard.ids] != [*self.topics]:
                raise CaiError(f"{self.stored} has other queries, or has them in another order: encode them again")
            stats = {"encoding_seconds": vectors.manifest.stats["seconds"]} | vectors.manifest.stats
            return stacked([shard.vectors for shard in shards]), stats["encoding_seconds"]
        if self.encoder is None:
            raise ValueError("queries searched as text have no vectors")
        texts = list(self.topics.values())
        encode_queries(self.encoder, texts[:1], self.query)  # loads the model
        start = time.perf_counter()
        return encode_queries(self.encoder, texts, self.query), time.perf_counter() - start

    def for_search(self, query_scale: int = 1) -> tuple[dict[str, Query], float]:
        """Encoded queries by id, and the encoding time in seconds."""
        if self.encoder is None:
            return dict(self.topics), 0.0
        vectors, seconds = self.encoded
        start = time.perf_counter()
        queries = for_index(vectors, list(self.topics.values()), self.encoder, query_scale, self.query, self.words)
        seconds += time.perf_counter() - start
        return dict(zip(self.topics, queries, strict=True)), seconds
