"""Retrievers: an open index with its query encoder, which returns hits and the terms of their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.core import artifact
from cai_pyserini.core.config import GRAM, WORD, EncoderConfig
from cai_pyserini.core.grams import grams
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.engines import DEFAULTS, SearchOptions, open_searcher
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import Filter, has_phrase
from cai_pyserini.indexes.passages import best_documents, fold_passages
from cai_pyserini.indexes.retrieve import queries_for, require_same_encoder
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.queries import Query, Representation, encode_queries, for_index

MANY = 20  # passages with a phrase that are looked at, for each document

type Where = tuple[Filter, Searcher | None]  # a filter, and the index that has the words and metadata that it names


class Retrieved(NamedTuple):
    """A query as it was searched with, what it found and, if the index has passages, the best one of each document."""

    query: Query
    ranking: Ranking
    passages: Mapping[str, str] = {}


@dataclass
class Deadline:
    """When the parts of a fusion whose queries need a model have to be ready."""

    time: float  # of time.monotonic()
    late: list[str] = field(default_factory=list)  # parts that missed it


class Retriever:
    """An open index, in any engine, with its query encoder, by default the index's own.

    Retrievers with the same `encoders` share models that encode queries alike. The constructor loads the model. Threads
    can share retrievers: they take turns at a model. Raises CaiError for an index of another encoder, and for a dense
    index without one.
    """

    def __init__(
        self,
        index: Path,
        encoder: str | EncoderConfig | None = None,
        query: Representation | None = None,
        device: str = "auto",
        *,
        options: SearchOptions = DEFAULTS,
        encoders: dict[str, EncoderModel] | None = None,
    ):
        queries = queries_for(index, {}, encoder, query, device)
        if own := queries.encoder:
            require_same_encoder(index, own, queries.words.config if queries.words else None)
            if encoders is not None:
                key = artifact.digest([own.identity("queries"), own.config.shaping("queries")])
                own = encoders.setdefault(key, own)
                queries = replace(queries, encoder=own)
            with own.lock:  # load now, because an update may replace the run before the first query
                own.tokenizer  # noqa: B018
                encode_queries(own, ["a"], queries.query)
        self._queries = queries  # without topics: how to represent a query for this index
        self.searcher: Searcher = open_searcher(index, options._replace(two_step=queries.two_step))
        self.terms_of = lru_cache(maxsize=1 << 16)(self._terms_of)

    @property
    def description(self) -> str:
        """A phrase that says how it finds documents."""
        if self._queries.encoder is None:
            return "BM25 (the words of the query)"
        config, joint = self._queries.encoder.config, self.searcher.joint
        if not config.is_sparse:
            return "dense vectors (similar meaning)"
        expansion = ", also where only similar documents have them" if joint and joint.expanded else ""
        bm25 = f"BM25 (the words of the query{' and parts of them' if joint and joint.grams else ''}{expansion})"
        if joint and config.only_words:
            return bm25
        splade = "SPLADE (words related to those of the documents" + (" and the query)" if self.needs_model else ")")
        return f"{splade} and {bm25} in one index" if joint else splade

    @property
    def needs_model(self) -> bool:
        """Whether a model encodes the queries."""
        encoder = self._queries.encoder
        return encoder is not None and encoder.config.needs_query_model(self._queries.query)

    @cached_property
    def _analyze(self) -> Analyzer:
        return Analyzer(self.searcher.language)

    def search(
        self, texts: Sequence[str], hits: int, threads: int = 1, where: Where | None = None, passages: bool = False
    ) -> list[Retrieved]:
        """The best documents for each text, of those that pass a filter; `passages` says that the index has these. A
        phrase in the filter may have no word that the index knows, such as one of stop words; then documents with it
        are found in any order."""
        searcher = self.searcher.filtered(*where) if where else self.searcher
        queries = self._encode(texts)
        if passages:
            best = best_documents(searcher, queries, hits, threads)
            found = [Retrieved(query, *folded) for query, folded in zip(queries, best, strict=True)]
        else:
            found = [*map(Retrieved, queries, searcher.search_all(queries, hits, threads))]
        if where and has_phrase(where[0]) and not all(len(each.ranking) for each in found):
            first = fold_passages(searcher.unranked(MANY * hits), hits) if passages else (searcher.unranked(hits),)
            found = [each if len(each.ranking) else Retrieved(each.query, *first) for each in found]
        return found

    def matches(self, filter: Filter | None, text: str, filter_index: Searcher | None) -> Matches | None:
        """The documents that pass a filter and have a word of a text; None if they cannot be counted."""
        if self.searcher.word_prefix is None:
            return None
        words: Query = {WORD + word: 1 for word in self._analyze(text)} if self._queries.words else text
        return self.searcher.matches(filter, words, filter_index)

    def _encode(self, texts: Sequence[str]) -> list[Query]:
        """Texts as the index is searched with them."""
        encoder, query, words = self._queries.encoder, self._queries.query, self._queries.words
        if encoder is None:
            return list(texts)
        with encoder.lock:
            vectors = encode_queries(encoder, texts, query)
            return for_index(vectors, texts, encoder, self.searcher.query_scale, query, words)

    def _terms_of(self, word: str) -> list[str]:
        """The index terms for a word; none in a dense index."""
        if self._queries.encoder is None:
            return self._analyze.all(word)
        if not self._queries.encoder.config.is_sparse:
            return []
        words = [WORD + stem for stem in self._analyze.all(word)] if (joint := self.searcher.joint) else []
        words += [GRAM + gram for gram in grams(word)] if words and joint and joint.grams else []  # of no stop word
        with self._queries.encoder.lock:
            return self._queries.encoder.tokenizer.pieces(word) + words
