"""The terms that make up a document's score, read from the index."""

import math
from collections import Counter
from collections.abc import Sequence

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.impact.quantization import Quantizer
from cai_pyserini.models.tokenizer import WORD
from cai_pyserini.search.explanation import Term
from cai_pyserini.search.lucene_index import LuceneIndex


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


def impact_terms(
    index: LuceneIndex, query: dict[str, int], documents: Sequence[str], config: EncoderConfig, document_scale: float
) -> dict[str, list[Term]]:
    """SPLADE and joint: document id -> the terms of a query, {term: impact}, that the document has.

    Weights of documents are those of the index, IDF included. `config` is the encoder of the index.
    """
    joint = config.joint
    word_scale = Quantizer.of(joint.bits, joint.range).scale if joint else 1.0
    scale = config.query_scale * document_scale
    return {
        id: [
            Term(
                term,
                query[term] / config.query_scale,
                impact / (word_scale if term.startswith(WORD) else document_scale),
                None,
                impact,
                query[term] * impact / scale,
            )
            for term, impact in of_document.items()
        ]
        for id, of_document in index.impacts(documents, query).items()
    }
