"""Cross-encoders: a score for a query and a document that are read together (Nogueira & Cho 2019).

score = activation(w · h_[CLS](query, document) + b)                   (Iida & Okazaki 2022, Appendix A)

The scores are those of sentence-transformers' CrossEncoder.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.rows import first_not_finite
from cai_pyserini.models.device import Precision
from cai_pyserini.models.rerankers import load_reranker
from cai_pyserini.models.tokenizer import NAME, Done, by_characters
from cai_pyserini.models.transformer import Transformer, batches

logger = logging.getLogger(__name__)

SAID = 60.0  # seconds of work from which on its time is said
FULL = 512  # tokens of a pair; a batch has as many tokens as pairs of this length
TOKENIZED = 1024  # pairs that are tokenized at a time


class CrossEncoder:
    """A reranker of any of the kinds in `rerankers`.

    Without `activated`, scores are logits, whose differences an activation function would shrink.
    """

    def __init__(self, checkpoint: Path, device: str = "auto", precision: Precision = "auto", activated: bool = True):
        self._modules, activation, self._prompt = load_reranker(checkpoint)
        self._activation = activation if activated else torch.nn.Identity()
        first = self._modules[0]
        head = [module for module in first.model.modules() if isinstance(module, torch.nn.Linear)][-1]
        self.transformer = Transformer(checkpoint, first.model, device, precision, exclude=_in_float32(head))
        first.max_seq_length = min(first.max_seq_length, self.transformer.max_length)

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
        scores = np.empty(len(queries), np.float32)
        for window in by_characters(range(len(queries)), lambda i: len(queries[i]) + len(documents[i]), TOKENIZED):
            features = self._features([(queries[i], documents[i]) for i in window])
            lengths = features["attention_mask"].sum(1).tolist()
            groups = list(batches(lengths, size * FULL, 8 * size))
            found = self.transformer.map(self._scores, [_rows(features, group, lengths[group[0]]) for group in groups])
            for group, values in zip(groups, found, strict=True):
                if (row := first_not_finite(values)) is not None:
                    pair = window[group[row]]
                    what = f"score of {queries[pair][:NAME]!r} and {names[pair][:NAME]!r}"
                    raise self.transformer.not_finite(what)
                scores[[window[i] for i in group]] = values
                done(len(group))
        return scores

    def seconds_per_pair(
        self, queries: Sequence[str], documents: Sequence[str], names: Sequence[str] | None = None, *, pairs: int = 0
    ) -> float:
        """The time that a pair takes, measured on two batches per thread, or a tenth of all pairs, evenly chosen; or
        that of the longest pair, alone, if so many `pairs` of it take less than SAID seconds, of which nothing is said.
        """
        if not queries:
            return 0.0
        threads = torch.get_num_threads() if self.transformer.device.type == "cpu" else 1
        count = min(len(queries) // 10 + 1, 2 * threads * 8 * self.transformer.batch_size)
        columns = queries, documents, names or documents

        def seconds(*rows: int) -> float:
            start = perf_counter()
            queries, documents, names = ([column[i] for i in rows] for column in columns)
            self.score(queries, documents, names=names)
            return (perf_counter() - start) / len(rows)

        longest = max(range(len(queries)), key=lambda row: len(documents[row]))
        seconds(longest)  # the first call takes longer
        if pairs and pairs * (alone := seconds(longest)) < SAID:
            return alone
        return seconds(*np.linspace(0, len(queries) - 1, count).astype(int))

    def _features(self, pairs: list[tuple[str, str]]) -> Any:
        """Token ids, mask and whatever else the model reads, padded to the longest pair."""
        try:
            return self._modules[0].preprocess(pairs, prompt=self._prompt)
        except ValueError as error:  # as from a chat template that has no place for a query and a document
            raise CaiError(f"{self.transformer.checkpoint}: {str(error).splitlines()[0][:NAME]}") from None

    @torch.inference_mode()
    def _scores(self, features: dict[str, Any]) -> np.ndarray:
        device, precision = self.transformer.device, self.transformer.precision
        features = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in features.items()}
        with torch.autocast(device.type, self.transformer.dtype, enabled=precision == "bfloat16"):
            for module in self._modules:
                features = module(features)
        return self._activation(features["scores"].float())[:, 0].numpy(force=True)


def _in_float32(layer: torch.nn.Linear) -> torch.nn.Linear:
    """Have a layer compute in float32 also under autocast: many scores of 8 bits would be equal."""
    forward = layer.forward

    def exact(values: torch.Tensor) -> torch.Tensor:
        with torch.autocast(values.device.type, enabled=False):
            return forward(values.float())

    layer.forward = exact  # type: ignore[assignment]
    return layer


def announce(pairs: int, seconds: float) -> None:
    """Say how long pairs will take, at `seconds` for each, if it is long."""
    if (total := pairs * seconds) >= SAID:
        time = f"{total / 3600:.1f} hours" if total > 2 * 3600 else f"{total / 60:.0f} minutes"
        logger.info("scoring %s pairs takes about %s here: %.3g pairs per second", f"{pairs:,}", time, 1 / seconds)


def _rows(features: dict[str, Any], rows: list[int], length: int) -> dict[str, Any]:
    """Some rows of padded features, the first of which is the longest, without the columns that only pad."""
    mask = features["attention_mask"][rows[0]]
    columns = slice(length) if mask[0] else slice(-length, None)
    return {
        name: value[rows, columns] if isinstance(value, torch.Tensor) and value.dim() == 2 else value
        for name, value in features.items()
    }
