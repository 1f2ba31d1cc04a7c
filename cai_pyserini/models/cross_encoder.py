"""Cross-encoders: a score for a query and a document that are read together (Nogueira & Cho 2019).

score = w · h_[CLS](query, document) + b                               (Iida & Okazaki 2022, Appendix A)
"""

from collections.abc import Sequence
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.finite import first_not_finite
from cai_pyserini.models.device import Precision
from cai_pyserini.models.tokenizer import NAME, Done
from cai_pyserini.models.transformer import Transformer, batches, load_pretrained

MAX_LENGTH = 512  # tokens of a query and a document together
TOKENIZED = 4096  # pairs that are tokenized at a time


class CrossEncoder:
    """A cross-encoder: any checkpoint for sequence classification with one label."""

    def __init__(self, checkpoint: Path, device: str = "auto", precision: Precision = "auto"):
        model = load_pretrained("AutoModelForSequenceClassification", checkpoint, "sequence-classification head")
        if model.config.num_labels != 1:
            raise CaiError(f"{checkpoint} has {model.config.num_labels} labels; a cross-encoder has one, the score")
        self.transformer = Transformer(checkpoint, model, device, precision)

    def score(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        done: Done = lambda count: None,
        names: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Scores of pairs of a query and a document: float32 (pairs,). `done` gets the number of pairs of a batch.

        Raises CaiError for a score that is not finite, with the document's id if these are its `names`.
        """
        names = names or documents
        size = self.transformer.batch_size
        tokenizer, max_length = self.transformer.tokenizer, min(MAX_LENGTH, self.transformer.max_length)
        scores = np.empty(len(queries), np.float32)
        for window in batched(range(len(queries)), TOKENIZED):
            pairs = tokenizer.pairs([queries[i] for i in window], [documents[i] for i in window], max_length)
            groups = list(batches([len(pair) for pair in pairs], size * MAX_LENGTH, 8 * size))
            found = self.transformer.map(self._scores, [[pairs[i] for i in group] for group in groups])
            for group, values in zip(groups, found, strict=True):
                if (row := first_not_finite(values)) is not None:
                    pair = window[group[row]]
                    what = f"score of {queries[pair][:NAME]!r} and {names[pair][:NAME]!r}"
                    raise self.transformer.not_finite(what)
                scores[[window[i] for i in group]] = values
                done(len(group))
        return scores

    @torch.inference_mode()
    def _scores(self, pairs: list[Any]) -> np.ndarray:
        ids, mask = self.transformer.pad([pair.ids for pair in pairs])
        more = {}
        if self.transformer.tokenizer.has_types:
            types, _ = self.transformer.pad([pair.type_ids for pair in pairs])
            more["token_type_ids"] = types * mask
        return self.transformer(ids, mask, **more).logits[:, 0].float().numpy(force=True)
