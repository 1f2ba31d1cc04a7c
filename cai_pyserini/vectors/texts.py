"""Impacts of single texts, without a collection."""

from collections.abc import Sequence

import numpy as np

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import normalized
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.models.idf import idf_weights
from cai_pyserini.vectors.quantization import Weighting
from cai_pyserini.vectors.queries import as_terms

TYPICAL_RANGE = 5.0  # SPLADE weights rarely exceed it; Pyserini's own encoders also quantize with it


class TextImpacts:
    """Document texts -> [{term: impact}], weighted with the encoder's IDF, if it has one; or dense vectors.

    Without a range, as of a bare checkpoint, the range is 5 times the largest IDF weight. Raises CaiError for the
    encoder of a joint index.
    """

    def __init__(self, encoder: Encoder):
        self._config = config = encoder.config
        if config.joint:
            raise CaiError(
                f"{config.name} is the encoder of a joint index: a document's BM25 weights depend on the whole "
                "collection; build the index again with the new documents"
            )
        self._model, self._terms = encoder.load("documents"), encoder.tokenizer.terms
        if config.is_sparse:
            idf = idf_weights(config, encoder.tokenizer.vocabulary)
            largest = 1.0 if idf is None else float(idf.max())
            self._weighting = Weighting(config.replace(range=config.range or TYPICAL_RANGE * largest), idf)

    def __call__(self, contents: Sequence[str], max_length: int | None = None) -> list[dict[str, int]] | np.ndarray:
        """The impacts, or the vectors (documents, width), of the first `max_length` tokens of each text."""
        length = max_length or self._config.max_document_length
        vectors = self._model.encode([*map(normalized, contents)], length)
        if isinstance(vectors, np.ndarray):
            return vectors
        return as_terms(self._weighting.impacts(vectors)[0], self._terms)
