"""Terms and weights in a BM25 index, read with Lucene."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cai_pyserini.core import artifact, jvm
from cai_pyserini.words.analyzer import Analyzer

FIELD = "contents"


class TextIndex:
    """An index of text, built by the index stage."""

    def __init__(self, folder: Path):
        artifact.require(folder, "index")
        self._utils = jvm.java_class("io.anserini.index.IndexReaderUtils")
        self._term = jvm.java_class("org.apache.lucene.index.Term")
        self._reader = self._utils.getReader(str(folder))
        self.analyze = Analyzer()
        self.documents: int = self._reader.getDocCount(FIELD)

    def distinct_terms(self) -> np.ndarray:
        """The number of distinct terms of every document, (documents,)."""
        vectors = self._reader.termVectors()
        found = (vectors.get(document, FIELD) for document in range(self._reader.maxDoc()))
        return np.array([terms.size() if terms else 0 for terms in found])

    def document_frequency(self, term: str) -> int:
        """The number of documents that have a term."""
        return self._reader.docFreq(self._term(FIELD, term))

    def occurrences(self, document: str, terms: Iterable[str]) -> dict[str, int]:
        """How often each of these terms occurs in a document; terms that do not occur are left out."""
        # An empty document is not in the index; one of stop words alone is, without a term vector.
        try:
            vector = self._utils.getDocumentVector(self._reader, document)
        except jvm.start().JavaException:
            vector = None
        counts = {term: vector.get(term) for term in terms} if vector is not None else {}
        return {term: count for term, count in counts.items() if count}

    def bm25_weight(self, document: str, term: str, k1: float, b: float) -> float:
        """Lucene's BM25 weight of a term in a document."""
        return self._utils.getBM25AnalyzedTermWeightWithParameters(self._reader, document, term, float(k1), float(b))
