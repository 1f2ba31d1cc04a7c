"""Encoders for Pyserini: CaiQueryEncoder and CaiDocumentEncoder.

    from cai_pyserini.plugin.encoders import CaiQueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    searcher = LuceneImpactSearcher("indexes/splade-idf", CaiQueryEncoder("splade-tiny"))
    hits = searcher.search("repeated bladder infections")

Importing this module also registers them, so that Pyserini can load them by name, see cai_pyserini.plugin.hook.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.plugin import hook

hook.register()  # before Pyserini is imported; also starts the JVM for it

from pyserini.encode import DocumentEncoder, QueryEncoder  # noqa: E402

from cai_pyserini.core import artifact  # noqa: E402
from cai_pyserini.core.config import EncoderConfig, load_encoder  # noqa: E402
from cai_pyserini.core.errors import CaiError  # noqa: E402
from cai_pyserini.encode.encoder import Encoder  # noqa: E402
from cai_pyserini.encode.queries import Query, Representation, as_terms, encode_queries, for_index  # noqa: E402
from cai_pyserini.impact.quantization import Quantizer, prune, weighted  # noqa: E402
from cai_pyserini.models.device import Precision  # noqa: E402
from cai_pyserini.models.idf import idf_weights  # noqa: E402
from cai_pyserini.retrieval.search import require_same_encoder, word_queries  # noqa: E402

TYPICAL_RANGE = 5.0  # SPLADE weights rarely exceed it; Pyserini's own encoders quantize with it too


class CaiQueryEncoder(QueryEncoder):
    """Text -> {term: impact}, with impact = round(weight * query_scale); with a dense encoder, text -> vector.

    With the encoder of a joint index, such as the index itself, the words of BM25 are among the terms. `query`, splade
    or bow, overrides the encoder's setting; bags of word pieces need no model.
    """

    def __init__(self, encoder: str | EncoderConfig, query: Representation | None = None, device: str = "auto"):
        super().__init__()
        self._encoder = Encoder(load_encoder(encoder) if isinstance(encoder, str) else encoder, device)
        self.config = self._encoder.config
        self.query = query or self.config.query
        self._words = word_queries(self.config)
        if self.query == "splade" or self.config.kind == "dense":
            self._encoder.load("queries")

    def encode(self, query: str, max_length: int | None = None, **kwargs: Any) -> Query:
        """The impacts, or the vector (width,), of the first `max_length` tokens of a query."""
        vectors = encode_queries(self._encoder, [query], self.query, max_length)
        return for_index(vectors, [query], self._encoder, self.config.query_scale, self.query, self._words)[0]

    def require_same_encoder(self, index: str | Path) -> None:
        """Raise CaiError if one of our indexes was built with another encoder. Other indexes are not checked."""
        if artifact.require_if_ours(Path(index), "index"):
            require_same_encoder(Path(index), self._encoder, self.config if self._words else None)


class CaiDocumentEncoder(DocumentEncoder):
    """Texts -> [{term: impact}], weighted with the encoder's IDF, if it has one, and quantized; or dense vectors.

    With an encoder.yaml of the impact stage, documents get the same impacts as there. An encoder without a range, such
    as a bare checkpoint, uses 5 times its largest IDF weight. Raises CaiError for the encoder of a joint index.
    """

    def __init__(self, encoder: str | EncoderConfig, device: str = "auto", precision: Precision = "auto"):
        self._encoder = Encoder(load_encoder(encoder) if isinstance(encoder, str) else encoder, device, precision)
        self.config = self._encoder.config
        if self.config.joint:
            raise CaiError(
                f"{self.config.name} is the encoder of a joint index: a document's BM25 weights depend on the whole "
                "collection; build the index again with the new documents"
            )
        self._model = self._encoder.load("documents")
        if self.config.kind == "splade":
            self._weights = idf_weights(self.config, self._encoder.tokenizer.vocabulary)
            largest = 1.0 if self._weights is None else float(self._weights.max())
            self._quantizer = Quantizer.of(self.config.bits, self.config.range or TYPICAL_RANGE * largest)

    def encode(
        self,
        texts: list[str],
        titles: list[str] | None = None,
        max_length: int | None = None,
        add_sep: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, int]] | np.ndarray:
        """The impacts, or the vectors (documents, width), of documents: `title text` if titles are given.

        Only the first `max_length` tokens of each are read. Raises CaiError for `add_sep`, which SPLADE does not use.
        """
        if add_sep:
            raise CaiError("add_sep does not apply: a SPLADE document is a title, a space and a text")
        pairs = zip(titles or [""] * len(texts), texts, strict=True)
        contents = [f"{title or ''} {text or ''}" for title, text in pairs]
        length = max_length or self.config.max_document_length
        vectors = self._model.encode(contents, length, overlap=self.config.overlap)
        if self.config.kind == "dense":
            return vectors
        impacts = self._quantizer.impacts(weighted(vectors, self._weights))
        return as_terms(prune(impacts, self.config), self._encoder.tokenizer.terms)
