"""One open index: queries in, hits out, and the terms of every score."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.trec import Hits
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Query, Representation, encode_queries, for_index
from cai_pyserini.index.shards import Index, folders, require_index
from cai_pyserini.models.tokenizer import WORD
from cai_pyserini.retrieval.faiss import FaissSearcher
from cai_pyserini.retrieval.lucene import LuceneSearcher
from cai_pyserini.retrieval.search import open_searcher, queries_for, require_same_encoder
from cai_pyserini.search.explanation import Scored
from cai_pyserini.search.lucene_index import LuceneIndex, Stored
from cai_pyserini.search.terms import impact_terms, text_terms
from cai_pyserini.words.analyzer import Analyzer


class Retriever:
    """An open index, or all shards of one, with the encoder of its queries, by default its own.

    `k1` and `b` are parameters of BM25.

    Retrievers that are given the same `encoders` share models: one that encodes queries alike is used, or else added.
    Threads can use several retrievers at the same time, or one, if no two encode queries with one model.
    Raises CaiError for an index of another encoder, and for a dense index without one.
    """

    def __init__(
        self,
        index: Index,
        encoder: str | EncoderConfig | None = None,
        query: Representation | None = None,
        device: str = "auto",
        k1: float = 0.9,
        b: float = 0.4,
        encoders: dict[str, Encoder] | None = None,
    ):
        self.manifest = require_index(index)
        first, *_ = folders(index)
        form = queries_for(first, {}, encoder, query, device)
        self._config = form.encoder and form.encoder.config
        if form.encoder:
            require_same_encoder(first, form.encoder, form.words.config if form.words else None)
            if encoders is not None:
                config = form.encoder.config
                key = artifact.digest([form.encoder.identity("queries"), config.shaping("queries")])
                form = replace(form, encoder=encoders.setdefault(key, form.encoder))
        self._form = form
        self._searcher = open_searcher(index, k1, b, form.two_step)
        self._index = LuceneIndex(index) if isinstance(self._searcher, LuceneSearcher) else None
        self._bm25 = k1, b
        self.terms_of = lru_cache(maxsize=1 << 16)(self._terms_of)

    @cached_property
    def _analyze(self) -> Callable[[str], Sequence[str]]:
        return self._form.words.analyze if self._form.words else Analyzer()

    def encode(self, texts: Sequence[str]) -> list[Query]:
        """Queries in the form that the index takes."""
        form = self._form
        if form.encoder is None:
            return list(texts)
        vectors = encode_queries(form.encoder, texts, form.query)
        return for_index(vectors, texts, form.encoder, self._searcher.query_scale, form.query, form.words)

    def search(self, texts: Sequence[str], hits: int, threads: int = 1) -> list[Hits]:
        """The best documents for each text."""
        queries = {str(number): query for number, query in enumerate(self.encode(texts))}
        found: dict[str, Hits] = {}
        for batch in self._searcher.search_many(queries, hits, threads):
            found |= batch
        return [found[number] for number in queries]

    def explain(self, text: str, documents: Sequence[str]) -> dict[str, Scored]:
        """The scores of documents for a text, and their terms, the largest contribution first; those of a dense index
        have no terms."""
        (query,) = self.encode([text])
        if isinstance(self._searcher, FaissSearcher):
            assert isinstance(query, np.ndarray)
            return {id: Scored(score, []) for id, score in self._searcher.scores(query, documents).items()}
        assert self._index
        if isinstance(query, dict) and self._config:
            scale = self.manifest.stats["document_scale"]
            terms = impact_terms(self._index, query, documents, self._config, scale)
        else:
            terms = text_terms(self._index, self._analyze(text), documents, *self._bm25)
        return {id: Scored.of(found) for id, found in terms.items()}

    def _terms_of(self, word: str) -> list[str]:
        """The terms that a word of a text is to the index."""
        if self._index is None:
            return []
        if self._form.encoder is None:
            return list(self._analyze(word))
        words = [WORD + stem for stem in self._analyze(word)] if self._form.words else []
        return self._form.encoder.tokenizer.pieces(word) + words

    def document(self, id: str) -> Stored | None:
        """A stored document; None if there is none."""
        return self._index.document(id) if self._index else None

    def close(self) -> None:
        """Close the index."""
        self._searcher.close()
        if self._index:
            self._index.close()
