"""Encoders for Pyserini: CaiQueryEncoder and CaiDocumentEncoder.

    from cai_pyserini.plugin.encoders import CaiQueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    searcher = LuceneImpactSearcher("indexes/splade-idf", CaiQueryEncoder("splade-tiny"))
    hits = searcher.search("repeated bladder infections")

Importing this module also registers them, so that Pyserini can load them by name; see cai_pyserini.plugin.hook.
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
from cai_pyserini.indexes.retrieve import require_same_encoder, word_queries  # noqa: E402
from cai_pyserini.models.device import Precision  # noqa: E402
from cai_pyserini.models.encoder import EncoderModel  # noqa: E402
from cai_pyserini.vectors.queries import Representation, encode_queries, for_index  # noqa: E402
from cai_pyserini.vectors.weighting import TextImpacts  # noqa: E402


class CaiQueryEncoder(QueryEncoder):
    """Text -> {term: impact}, with impact = round(weight * query_scale); with a dense encoder, text -> vector.

    With the encoder of a joint index, such as the index itself, the terms include BM25's words. `query`, splade or bow,
    overrides the encoder's setting; bags of word pieces need no model.
    """

    def __init__(self, encoder: str | EncoderConfig, query: Representation | None = None, device: str = "auto"):
        super().__init__()
        self._encoder = EncoderModel(load_encoder(encoder) if isinstance(encoder, str) else encoder, device)
        self.config = self._encoder.config
        self.query = query or self.config.query
        self._words = word_queries(self.config)
        if self.config.needs_query_model(self.query):
            self._encoder.load("queries")

    def encode(self, query: str, max_length: int | None = None, **kwargs: Any) -> Any:
        """The impacts by token, or the vector (dimensions,), of the first `max_length` tokens of a query."""
        vectors = encode_queries(self._encoder, [query], self.query, max_length)
        return for_index(vectors, [query], self._encoder, self.config.query_scale, self.query, self._words)[0]

    def require_same_encoder(self, index: str | Path) -> None:
        """Raise CaiError for one of our indexes that was built with another encoder. Other indexes are not checked."""
        if artifact.require_if_ours(Path(index), "index"):
            require_same_encoder(Path(index), self._encoder, self.config if self._words else None)


class CaiDocumentEncoder(DocumentEncoder):
    """Texts -> [{term: impact}], or dense vectors; see TextImpacts.

    With the encoder.yaml of an impact stage, documents get the same impacts as in that stage.
    """

    def __init__(self, encoder: str | EncoderConfig, device: str = "auto", precision: Precision = "auto"):
        loaded = EncoderModel(load_encoder(encoder) if isinstance(encoder, str) else encoder, device, precision)
        self.config, self._impacts = loaded.config, TextImpacts(loaded)

    def encode(
        self,
        texts: list[str],
        titles: list[str] | None = None,
        max_length: int | None = None,
        add_sep: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, int]] | np.ndarray:
        """The impacts, or the vectors (documents, dimensions), of documents: `title text`, if there are titles.

        Only the first `max_length` tokens of each are read. Raises CaiError for settings that would be ignored:
        `add_sep` and other fields.
        """
        if add_sep:
            raise CaiError("add_sep does not apply: a SPLADE document is a title, a space and a text")
        if others := [name for name, value in kwargs.items() if value is not None and value is not False]:
            raise CaiError(f"{', '.join(others)} does not apply: our encoders read only titles and texts")
        pairs = zip(titles or [""] * len(texts), texts, strict=True)
        return self._impacts([f"{title or ''} {text or ''}" for title, text in pairs], max_length)
