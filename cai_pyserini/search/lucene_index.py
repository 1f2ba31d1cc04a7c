"""What a Lucene index has of a document: its terms, their weights, and the stored text."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cai_pyserini.core import jvm
from cai_pyserini.index.shards import Index, open_reader, require_index

FIELD = "contents"
_READING = jvm.using_java("reading an index")


class Stored(NamedTuple):
    """A document as an index stores it."""

    id: str
    title: str
    contents: str  # what is searched, with the title


class LuceneIndex:
    """An index of impacts or of text, or all shards of one, built by the index stage. It is only read.

    Threads can share it, or have several open: calls into Java go one at a time.
    """

    @_READING
    def __init__(self, index: Index):
        require_index(index)
        java = jvm.java_class
        self._utils = java("io.anserini.index.IndexReaderUtils")
        self._term = java("org.apache.lucene.index.Term")
        self._bytes = java("org.apache.lucene.util.BytesRef")
        self._postings = java("org.apache.lucene.index.MultiTerms").getTermPostingsEnum
        self._reader = open_reader(index)
        self.documents: int = self._reader.getDocCount(FIELD)

    @_READING
    def impacts(self, documents: Sequence[str], terms: Iterable[str]) -> dict[str, dict[str, int]]:
        """Document id -> term -> impact, or frequency in an index of text, for the terms that the document has.

        Documents that the index does not have are left out.
        """
        numbers = ((self._utils.convertDocidToLuceneDocid(self._reader, id), id) for id in set(documents))
        places = sorted((number, id) for number, id in numbers if number >= 0)
        found: dict[str, dict[str, int]] = {id: {} for _, id in places}
        for term in terms:
            postings: Any = self._postings(self._reader, FIELD, self._bytes(term.encode()))
            for number, id in places if postings else ():
                at = postings.docID()
                if (postings.advance(number) if at < number else at) == number:
                    found[id][term] = postings.freq()
        return found

    @_READING
    def document(self, id: str) -> Stored | None:
        """A document; None if the index does not have it, or stores no documents."""
        raw = self._utils.documentRaw(self._reader, id)
        if raw is None:
            return None
        fields = json.loads(raw)
        return Stored(id, fields.get("title", ""), fields["contents"])

    @_READING
    def distinct_terms(self) -> np.ndarray:
        """The number of distinct terms of every document of an index of text, (documents,)."""
        vectors = self._reader.termVectors()
        found = (vectors.get(document, FIELD) for document in range(self._reader.maxDoc()))
        return np.array([terms.size() if terms else 0 for terms in found])

    @_READING
    def document_frequency(self, term: str) -> int:
        """The number of documents that have a term."""
        return self._reader.docFreq(self._term(FIELD, term))

    @_READING
    def bm25_weight(self, document: str, term: str, k1: float, b: float) -> float:
        """Lucene's BM25 weight of a term in a document."""
        return self._utils.getBM25AnalyzedTermWeightWithParameters(self._reader, document, term, float(k1), float(b))

    @_READING
    def close(self) -> None:
        """Close the index."""
        self._reader.close()
