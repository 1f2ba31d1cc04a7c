"""One open index: texts in, hits out, and the terms of every score."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, WORD, EncoderConfig, Joint, Language
from cai_pyserini.core.trec import Hits
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Query, Representation, encode_queries, for_index
from cai_pyserini.index.shards import Index, folders
from cai_pyserini.retrieval.faiss import FaissSearcher
from cai_pyserini.retrieval.filters import Filter
from cai_pyserini.retrieval.lucene import LuceneIndex, LuceneSearcher, Stored
from cai_pyserini.retrieval.search import open_searcher, queries_for, require_same_encoder
from cai_pyserini.search.explanation import Scored, Term
from cai_pyserini.search.highlight import SPLIT
from cai_pyserini.words.analyzer import Analyzer

SUGGESTED = 200  # characters; to find a similar word takes milliseconds


@dataclass
class Effort:
    """What a search may take, and what it took."""

    deadline: float = math.inf  # by time.monotonic(), for parts of a fusion whose queries a model encodes
    late: list[str] = field(default_factory=list)  # such parts that were left out
    encode: float = 0.0  # seconds
    search: float = 0.0


class Retriever:
    """An open index, or all shards of one, with the encoder of its queries, by default its own.

    `k1` and `b` are parameters of BM25.

    Retrievers that are given the same `encoders` share models: an encoder that encodes queries in the same way is used
    again. Models are loaded when it is opened. Threads can share retrievers: they take turns at a model. Raises
    CaiError for an index of another encoder, and for a dense index without one.
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
        first, *_ = folders(index)
        form = queries_for(first, {}, encoder, query, device)
        if own := form.encoder:
            require_same_encoder(first, own, form.words.config if form.words else None)
            if encoders is not None:
                key = artifact.digest([own.identity("queries"), own.config.shaping("queries")])
                own = encoders.setdefault(key, own)
                form = replace(form, encoder=own)
            with own.in_use:  # load what the first query would, of another run if an update has replaced this one
                own.tokenizer  # noqa: B018
                encode_queries(own, ["a"], form.query)
        self._form = form
        self.documents = sum(artifact.require(folder, "index").stats["documents"] for folder in folders(index))
        self._searcher = open_searcher(index, k1, b, form.two_step)
        self._bm25 = k1, b
        self.document: Callable[[str], Stored | None] = self._searcher.document
        self.close = self._searcher.close
        self.terms_of = lru_cache(maxsize=1 << 16)(self._terms_of)

    @property
    def description(self) -> str:
        """What it finds documents by, in a phrase."""
        if self._form.encoder is None:
            return "BM25 (the words of the query)"
        config, joint = self._form.encoder.config, self._form.words and self._form.words.config.joint
        if config.kind == "dense":
            return "dense vectors (similar meaning)"
        near = ", also where only similar documents have them" * bool(joint and joint.expanded)
        bm25 = f"BM25 (the words of the query{near})"
        if joint and config.keep_terms == 0:
            return bm25
        splade = "SPLADE (words related to those of the documents" + (" and the query)" if self.needs_model else ")")
        return f"{splade} and {bm25} in one index" if joint else splade

    @property
    def language(self) -> Language:
        """What the words of the index were made with; English if it has none."""
        if self._form.words and (joint := self._form.words.config.joint):
            return joint.language
        return ENGLISH if isinstance(self._searcher, FaissSearcher) else self._searcher.language

    @property
    def needs_model(self) -> bool:
        """Whether a model encodes the queries."""
        if self._form.encoder is None:
            return False
        config = self._form.encoder.config
        return config.kind == "dense" or (self._form.query or config.query) == "splade"

    @cached_property
    def _analyze(self) -> Callable[[str], Sequence[str]]:
        return self._form.words.analyze if self._form.words else Analyzer(self.language)

    @property
    def index(self) -> LuceneIndex | None:
        """The open index, if it is one of Lucene."""
        return self._searcher if isinstance(self._searcher, LuceneIndex) else None

    def search(
        self,
        texts: Sequence[str],
        hits: int,
        threads: int = 1,
        filter: Filter | None = None,
        by: LuceneIndex | None = None,
        effort: Effort | None = None,
    ) -> list[Hits]:
        """The best documents for each text, of those that a filter lets through; `by` is an index of the same documents
        that has their words, and for a dense index their metadata."""
        start, searcher = time.perf_counter(), self._searcher
        if filter:
            assert by  # engines have one, or refuse filters
            searcher = searcher.filtered(filter, by)
        queries = {str(number): query for number, query in enumerate(self._encode(texts))}
        encoded = time.perf_counter()
        found: dict[str, Hits] = {}
        for batch in searcher.search_many(queries, hits, threads):
            found |= batch
        if effort:
            effort.encode += encoded - start
            effort.search += time.perf_counter() - encoded
        return [found[number] for number in queries]

    def having_words(self, text: str) -> Any:
        """A Lucene query of the documents that have a word of a text; None for an index without words."""
        if not isinstance(self._searcher, LuceneSearcher) or (self._form.encoder and not self._form.words):
            return None
        words = {WORD + word: 1 for word in self._analyze(text)}
        return self._searcher.lucene_query(words if self._form.words else text)

    def explain(self, text: str, documents: Sequence[str]) -> dict[str, Scored]:
        """The scores of documents for a text, and their terms, the largest contribution first; those of a dense index
        have no terms. Documents that the index does not have are left out."""
        (query,) = self._encode([text])
        if isinstance(query, np.ndarray):
            return {id: Scored(score, []) for id, score in self._searcher.scores(query, documents).items()}
        assert isinstance(self._searcher, LuceneSearcher)
        if isinstance(query, dict):
            joint = self._form.words.config.joint if self._form.words else None
            terms = _impact_terms(self._searcher, query, documents, joint)
        else:
            terms = text_terms(self._searcher, self._analyze(text), documents, *self._bm25)
        return {id: Scored.of(found) for id, found in terms.items()}

    def suggestion(self, text: str) -> str | None:
        """A short text with similar words for those that no document has; None if it has none, or the index no words.

        An index has stems; the word of a similar one is from a document that has it.
        """
        index, prefix = self._searcher, WORD if self._form.words else ""
        if not isinstance(index, LuceneSearcher) or not index.documents or len(text) > SUGGESTED:
            return None
        if self._form.encoder and not self._form.words:
            return None
        pieces = SPLIT.split(text)  # words are at odd places
        for place in range(1, len(pieces), 2):
            stems = self._analyze(pieces[place])
            if len(stems) != 1 or index.document_frequency(term := prefix + stems[0]):
                continue
            most = min(2, len(pieces[place]) // 3)
            near = (index.most_similar(term, len(prefix) + 1, edits) for edits in range(1, most + 1))
            best, document = next(filter(None, near), ("", None))
            words = SPLIT.split(document.contents)[1::2] if document else []
            alike = (word.lower() for word in words if [prefix + stem for stem in self._analyze(word)] == [best])
            pieces[place] = next(alike, pieces[place])
        suggested = "".join(pieces)
        return suggested if suggested != text else None

    def _encode(self, texts: Sequence[str]) -> list[Query]:
        form = self._form
        if form.encoder is None:
            return list(texts)
        with form.encoder.in_use:
            vectors = encode_queries(form.encoder, texts, form.query)
            return for_index(vectors, texts, form.encoder, self._searcher.query_scale, form.query, form.words)

    def _terms_of(self, word: str) -> list[str]:
        """The terms that a word of a text is to the index; none to a dense one."""
        if self._form.encoder is None:
            return list(self._analyze(word))
        if self._form.encoder.config.kind == "dense":
            return []
        words = [WORD + stem for stem in self._analyze(word)] if self._form.words else []
        with self._form.encoder.in_use:
            return self._form.encoder.tokenizer.pieces(word) + words


def text_terms(
    index: LuceneIndex, words: Sequence[str], documents: Sequence[str], k1: float, b: float
) -> dict[str, list[Term]]:
    """BM25: document id -> the analyzed words of a query that the document has."""
    counts = Counter(words)
    frequencies = {word: index.document_frequency(word) for word in counts}
    idf = {word: math.log(1 + (index.documents - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}
    return {
        id: [
            Term(w, counts[w], occurrences, idf[w], None, counts[w] * index.bm25_weight(id, w, k1, b))
            for w, occurrences in of_document.items()
        ]
        for id, of_document in index.impacts(documents, counts).items()
    }


def _impact_terms(
    index: LuceneSearcher, query: dict[str, int], documents: Sequence[str], joint: Joint | None
) -> dict[str, list[Term]]:
    """SPLADE and joint: document id -> the terms of a query, {term: impact}, that the document has.

    Weights of documents are those of the index, IDF included. `joint` has the quantization of BM25's words.
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
            for term, impact in of_document.items()
        ]
        for id, of_document in index.impacts(documents, query).items()
    }
