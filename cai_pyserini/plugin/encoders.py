"""Encoders for Pyserini: CaiQueryEncoder and CaiDocumentEncoder, wherever Pyserini takes a query or document encoder.

    from cai_pyserini.encoder import CaiQueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    searcher = LuceneImpactSearcher("indexes/splade-idf", CaiQueryEncoder("splade-tiny"))
    hits = searcher.search("repeated bladder infections")

Importing this module registers them, so that Pyserini also takes their names: see cai_pyserini.registration.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from cai_pyserini import artifact, registration

registration.register()  # before Pyserini is imported: it also finds it a Java

from pyserini.encode import DocumentEncoder, QueryEncoder  # noqa: E402

from cai_pyserini.cli import CaiError  # noqa: E402
from cai_pyserini.config import EncoderConfig, load_encoder  # noqa: E402
from cai_pyserini.encode import LazyEncoder  # noqa: E402
from cai_pyserini.impact import Quantizer, idf_weights, weighted  # noqa: E402
from cai_pyserini.search import query_impacts, require_fit  # noqa: E402
from cai_pyserini.splade import Precision, Tokenizer  # noqa: E402

TYPICAL_RANGE = 5.0  # SPLADE weights hardly exceed it; Pyserini's own encoders quantize by it too


class CaiQueryEncoder(QueryEncoder):
    """Text -> {term: impact}, round(weight * query_scale). `query` overrides the encoder's: `splade`, or `bow` for a
    bag of word pieces, which needs no model. A dense encoder gives a vector for FaissSearcher."""

    def __init__(
        self,
        encoder: str | EncoderConfig,
        query: Literal["splade", "bow"] | None = None,
        device: str = "auto",
        precision: Precision = "float32",
    ):
        super().__init__()
        self.config = load_encoder(encoder) if isinstance(encoder, str) else encoder
        self.query = query or self.config.query
        lazy = LazyEncoder(self.config, device, precision)
        self.checkpoint = lazy.checkpoint
        self.model = lazy.load("documents") if self.query == "splade" or self.config.kind == "dense" else None
        self.tokenizer = self.model.tokenizer if self.model else Tokenizer(self.checkpoint)

    def encode(self, query: str, max_length: int | None = None, **kwargs: Any) -> dict[str, int] | np.ndarray:
        """The impacts, or the vector (width,), of one query, of which the first `max_length` tokens count (default: the
        encoder's)."""
        length = max_length or self.config.max_query_length
        if self.config.kind == "dense" and self.model:
            return self.model.encode([query], length).toarray()[0]
        encode = self.model.encode if self.model else self.tokenizer.bag_of_words
        return query_impacts(encode([query], length), self.tokenizer.terms, self.config.query_scale)[0]

    def require_fit(self, index: str | Path) -> None:
        """Raise CaiError where an index of ours was built with another checkpoint; others' indexes are not checked."""
        if artifact.read_manifest(Path(index)):
            require_fit(Path(index), self.checkpoint)


class CaiDocumentEncoder(DocumentEncoder):
    """Texts -> [{term: impact}], weighted with the encoder's IDF, if it has one, and quantized; or dense vectors.

    An encoder.yaml of the impact stage gives the impacts that its collection got. An encoder without a range, such as
    one named by a checkpoint, takes 5 times its largest IDF weight.
    """

    def __init__(self, encoder: str | EncoderConfig, device: str = "auto", precision: Precision = "auto"):
        self.config = load_encoder(encoder) if isinstance(encoder, str) else encoder
        self.model = LazyEncoder(self.config, device, precision).load("documents")
        if self.config.kind == "dense":
            return
        self.weights = idf_weights(self.config, self.model.tokenizer.terms)
        largest = 1.0 if self.weights is None else float(self.weights.max())
        self.quantizer = Quantizer.of(self.config.bits, self.config.range or TYPICAL_RANGE * largest)

    def encode(
        self,
        texts: list[str],
        titles: list[str] | None = None,
        max_length: int | None = None,
        add_sep: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, int]] | np.ndarray:
        """The impacts, or the vectors (documents, width), of documents, `title text` where titles are given.

        Of each the first `max_length` tokens count (default: the encoder's). There is no form with a separator: raises
        CaiError for `add_sep`.
        """
        if add_sep:
            raise CaiError("add_sep is not for SPLADE documents, which are a title, a space and a text")
        contents = [
            f"{title or ''} {text or ''}" for title, text in zip(titles or [""] * len(texts), texts, strict=True)
        ]
        vectors = self.model.encode(contents, max_length or self.config.max_document_length)
        if self.config.kind == "dense":
            return vectors.toarray()
        impacts = self.quantizer.impacts(weighted(vectors, self.weights))
        return query_impacts(impacts, self.model.tokenizer.terms, 1)
