"""Retrievers: an open index with its query encoder, which returns hits and the terms of their scores."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, WORD, EncoderConfig, Joint, Language
from cai_pyserini.core.packages import require_modules
from cai_pyserini.engine.explanation import Scored, Term
from cai_pyserini.engine.highlight import WORDS
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.faiss import FaissSearcher
from cai_pyserini.indexes.filters import Filter
from cai_pyserini.indexes.index_shards import Index, folders
from cai_pyserini.indexes.reader import LuceneIndex, Stored
from cai_pyserini.indexes.retrieve import Searcher, open_searcher, queries_for, require_same_encoder
from cai_pyserini.indexes.searcher import LuceneSearcher
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.runs.trec import Hits
from cai_pyserini.vectors.queries import Query, Representation, encode_queries, for_index

if TYPE_CHECKING:
    from cai_pyserini.engine.milvus import MilvusSearcher

LONGEST_SUGGESTION = 200  # characters; finding a similar word takes milliseconds
MIN_SUGGESTED = 3  # documents that have a suggested word, in collections of more than 2,000; fewer in smaller ones
TWO_EDITS = 8  # characters of the words that may differ in two; a shorter one resembles too many others


@dataclass
class Effort:
    """The deadline of a search, and the time it took."""

    deadline: float = math.inf  # in time.monotonic(), for parts of a fusion whose queries need a model
    late: list[str] = field(default_factory=list)  # parts that missed the deadline
    encode: float = 0.0  # seconds
    search: float = 0.0


class Retriever:
    """An open index, all its shards, or an export to Milvus, with its query encoder, by default the index's own.

    `k1` and `b` are parameters of BM25. Retrievers with the same `encoders` share models that encode queries alike. The
    constructor loads the model. Threads can share retrievers: they take turns at a model. Raises CaiError for an index
    of another encoder, and for a dense index without one.
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
        first, *others = folders(index)
        is_export = not others and artifact.require(first, "index", "export").recipe["stage"] == "export"
        if in_milvus := _open_milvus(first) if is_export else None:
            query = query or in_milvus.query
        queries = queries_for(first, {}, encoder, query, device)
        if own := queries.encoder:
            require_same_encoder(first, own, queries.words.config if queries.words else None)
            if encoders is not None:
                key = artifact.digest([own.identity("queries"), own.config.shaping("queries")])
                own = encoders.setdefault(key, own)
                queries = replace(queries, encoder=own)
            with own.lock:  # load now, because an update may replace the run before the first query
                own.tokenizer  # noqa: B018
                encode_queries(own, ["a"], queries.query)
        self._queries = queries  # without topics: how to represent a query for this index
        stages = ("index", "export")
        self.documents = sum(artifact.require(folder, *stages).stats["documents"] for folder in folders(index))
        self._searcher: Searcher | MilvusSearcher = in_milvus or open_searcher(index, k1, b, queries.two_step)
        self._bm25 = k1, b
        self.document: Callable[[str], Stored | None] = self._searcher.document
        self.close = self._searcher.close
        self.terms_of = lru_cache(maxsize=1 << 16)(self._terms_of)

    @property
    def description(self) -> str:
        """A phrase that says how it finds documents."""
        if self._queries.encoder is None:
            return "BM25 (the words of the query)"
        config, joint = self._queries.encoder.config, self._queries.words and self._queries.words.config.joint
        if config.kind == "dense":
            return "dense vectors (similar meaning)"
        expansion = ", also where only similar documents have them" if joint and joint.expanded else ""
        bm25 = f"BM25 (the words of the query{expansion})"
        if joint and config.keep_terms == 0:
            return bm25
        splade = "SPLADE (words related to those of the documents" + (" and the query)" if self.needs_model else ")")
        return f"{splade} and {bm25} in one index" if joint else splade

    @property
    def language(self) -> Language:
        """The language of the analyzer that made the index's words; English if it has none."""
        if self._queries.words and (joint := self._queries.words.config.joint):
            return joint.language
        return self._searcher.language if isinstance(self._searcher, LuceneSearcher) else ENGLISH

    @property
    def needs_model(self) -> bool:
        """Whether a model encodes the queries."""
        if self._queries.encoder is None:
            return False
        config = self._queries.encoder.config
        return config.kind == "dense" or (self._queries.query or config.query) == "splade"

    @cached_property
    def _analyze(self) -> Callable[[str], Sequence[str]]:
        return self._queries.words.analyze if self._queries.words else Analyzer(self.language)

    @property
    def index(self) -> "LuceneIndex | MilvusSearcher | None":
        """The open index if it is Lucene's or Milvus's."""
        return None if isinstance(self._searcher, FaissSearcher) else self._searcher

    def search(
        self,
        texts: Sequence[str],
        hits: int,
        threads: int = 1,
        filter: Filter | None = None,
        filter_index: LuceneIndex | None = None,
        effort: Effort | None = None,
    ) -> list[Hits]:
        """The best documents for each text that pass a filter. `filter_index` is an index of the same documents with
        their words and, for a dense index, their metadata."""
        start, searcher = time.perf_counter(), self._searcher
        if filter:
            if isinstance(searcher, LuceneSearcher | FaissSearcher):
                assert filter_index  # engines have one, or refuse filters
                searcher = searcher.filtered(filter, filter_index)
            else:
                searcher = searcher.filtered(filter)
        queries = {str(number): query for number, query in enumerate(self._encode(texts))}
        encoded = time.perf_counter()
        rankings: dict[str, Hits] = {}
        for batch in searcher.search_many(queries, hits, threads):
            rankings |= batch
        if effort:
            effort.encode += encoded - start
            effort.search += time.perf_counter() - encoded
        return [rankings[number] for number in queries]

    @property
    def word_prefix(self) -> str | None:
        """The prefix of the index's word terms; None if it has no words."""
        return self.index.word_prefix if self.index else None

    def variants_of(self, word: str) -> Sequence[str]:
        """The index's words that differ from an analyzed word by accents alone, with which it is searched for."""
        return self.index.variants_of(word) if self.index else ()

    def any_word_query(self, text: str) -> Any:
        """A Lucene query for documents with any word of a text; None for an index without words."""
        if not isinstance(self._searcher, LuceneSearcher) or self.word_prefix is None:
            return None
        words = {WORD + word: 1 for word in self._analyze(text)}
        return self._searcher.lucene_query(words if self._queries.words else text)

    def explain(self, text: str, documents: Sequence[str]) -> dict[str, Scored]:
        """Scores of documents for a text with their terms, largest contribution first; no terms in a dense index.
        Documents that the index lacks are left out."""
        (query,) = self._encode([text])
        if isinstance(query, np.ndarray):
            assert isinstance(self._searcher, LuceneSearcher | FaissSearcher)
            return {id: Scored(score, []) for id, score in self._searcher.scores(query, documents).items()}
        assert not isinstance(self._searcher, FaissSearcher)
        (query,) = self._searcher.with_variants([query])
        if self._queries.encoder:
            assert isinstance(query, dict)
            joint = self._queries.words.config.joint if self._queries.words else None
            terms = _impact_terms(self._searcher, query, documents, joint)
        else:
            assert isinstance(self._searcher, LuceneSearcher)
            words = query if isinstance(query, dict) else Counter(self._analyze(text))
            terms = text_terms(self._searcher, words, documents, *self._bm25)
        return {id: Scored.of(terms_of_id) for id, terms_of_id in terms.items()}

    def suggestion(self, text: str) -> str | None:
        """A short text with words that no document has replaced by similar ones; None if there is nothing to replace or
        the index has no words.

        The index has stems, so the replacement is a word of a document with the similar stem.
        """
        index, prefix = self._searcher, self.word_prefix
        if not isinstance(index, LuceneSearcher) or prefix is None or not index.documents:
            return None
        if len(text) > LONGEST_SUGGESTION:
            return None
        min_documents = min(MIN_SUGGESTED, math.ceil(index.documents / 1000))
        pieces = WORDS.split(text)  # words are at odd positions
        for position in range(1, len(pieces), 2):
            stems = self._analyze(pieces[position])
            if len(stems) != 1 or index.documents_with(term := prefix + stems[0]):
                continue
            max_edits = min(2 if len(pieces[position]) >= TWO_EDITS else 1, len(pieces[position]) // 3)
            similar = (index.most_similar(term, len(prefix) + 1, edits) for edits in range(1, max_edits + 1))
            frequent = (each for each in similar if each and index.document_frequency(each[0]) >= min_documents)
            stem, document = next(frequent, ("", None))
            words = WORDS.split(document.contents)[1::2] if document else []
            matches = (word.lower() for word in words if [prefix + each for each in self._analyze(word)] == [stem])
            pieces[position] = next(matches, pieces[position])
        suggested = "".join(pieces)
        return suggested if suggested != text else None

    def _encode(self, texts: Sequence[str]) -> list[Query]:
        encoder, query, words = self._queries.encoder, self._queries.query, self._queries.words
        if encoder is None:
            return list(texts)
        with encoder.lock:
            return for_index(
                encode_queries(encoder, texts, query), texts, encoder, self._searcher.query_scale, query, words
            )

    def _terms_of(self, word: str) -> list[str]:
        """The index terms for a word; none in a dense index."""
        if self._queries.encoder is None:
            return list(self._analyze(word))
        if self._queries.encoder.config.kind == "dense":
            return []
        words = [WORD + stem for stem in self._analyze(word)] if self._queries.words else []
        with self._queries.encoder.lock:
            return self._queries.encoder.tokenizer.pieces(word) + words


def _open_milvus(folder: Path) -> "MilvusSearcher":
    require_modules(("pymilvus",), "export")
    from cai_pyserini.engine.milvus import MilvusSearcher  # of an extra

    return MilvusSearcher(folder)


def text_terms(
    index: LuceneIndex, counts: Mapping[str, float], documents: Sequence[str], k1: float, b: float
) -> dict[str, list[Term]]:
    """BM25: document id -> its terms among a query's, {analyzed word: occurrences, or weight of a variant}."""
    frequencies = {word: index.document_frequency(word) for word in counts}
    idf = {word: math.log(1 + (index.documents - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}
    return {
        id: [
            Term(w, counts[w], occurrences, idf[w], None, counts[w] * index.bm25_weight(id, w, k1, b))
            for w, occurrences in occurrences_by_word.items()
        ]
        for id, occurrences_by_word in index.impacts(documents, counts).items()
    }


def _impact_terms(
    index: "LuceneSearcher | MilvusSearcher", query: Mapping[str, float], documents: Sequence[str], joint: Joint | None
) -> dict[str, list[Term]]:
    """SPLADE and joint: document id -> its terms among those of a query, {term: impact}.

    Document weights are those in the index, IDF included. `joint` has the quantization of BM25's words.
    """
    word_scale = joint.scale if joint else 1.0
    return {
        id: [
            Term(
                term,
                query[term] / index.query_scale,
                impact / (word_scale if term.startswith(WORD) else index.document_scale),
                None,
                impact,
                query[term] * impact / (index.query_scale * index.document_scale),
            )
            for term, impact in impacts.items()
        ]
        for id, impacts in index.impacts(documents, query).items()
    }
