"""Load and run a transformer: device, precision, and batches of padded token ids.

On a CPU, every thread works on its own batch: threads that share each matrix product would wait for the slowest of them
hundreds of times per batch, on a busy machine for most of the time.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import logging

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import enter
from cai_pyserini.models.checkpoint import max_positions, own_code_error, require_safetensors
from cai_pyserini.models.device import Precision, resolve_device, resolve_precision
from cai_pyserini.models.int8 import replace_linears
from cai_pyserini.models.rows import Matrix, first_not_finite, stacked
from cai_pyserini.models.tokenizer import NAME_LENGTH, PAD_MULTIPLE, Done, TokenIds, Tokenizer

GPU_BATCH = 256  # texts of full length
CPU_BATCH = 2048  # texts of full length times the model's width, so that activations stay in the cache


class Transformer:
    """A model of the transformers library and its tokenizer.

    `precision` applies to matrix products, except in the layer `exclude`; sums and everything after them are float32.
    `batch_size` is the default number of texts of full length per batch.
    """

    def __init__(
        self,
        checkpoint: Path,
        model: Any,
        device: str = "auto",
        precision: Precision = "auto",
        exclude: torch.nn.Module | None = None,
    ):
        self.checkpoint = checkpoint
        self.tokenizer = Tokenizer(checkpoint)
        if (size := model.get_input_embeddings().num_embeddings) < len(self.tokenizer):
            raise CaiError(
                f"{checkpoint}: the tokenizer has {len(self.tokenizer):,} entries but the model only {size:,}; they do "
                "not belong together"
            )
        self.device = resolve_device(device)
        self.precision = resolve_precision(precision, self.device)
        self.dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        self.max_length = max_positions(model) or sys.maxsize
        on_gpu = self.device.type == "cuda"
        torch.backends.cuda.enable_cudnn_sdp(False)  # it prepares every new shape of a batch for .1 s
        self.batch_size = GPU_BATCH if on_gpu else max(1, CPU_BATCH // model.config.hidden_size)
        if self.precision == "int8":
            replace_linears(model, exclude, getattr(torch, resolve_precision("auto", self.device)))
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not exclude:
                module.to(self.dtype)  # once, not in every batch
        self._model = model.to(self.device)

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor, **more: torch.Tensor) -> Any:
        """The model's output for padded token ids and their mask, (texts, tokens) each."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.precision == "bfloat16"):
            return self._model(input_ids=ids, attention_mask=mask.long(), **more)

    def not_finite_error(self, name: str) -> CaiError:
        """The error for a vector or score with NaN or infinity."""
        return CaiError(
            f"{self.checkpoint}: the {name} has NaN or infinity: the checkpoint is damaged, or has numbers too large "
            f"for {self.precision}"
        )

    def map_batches[R](
        self,
        function: Callable[[torch.Tensor, torch.Tensor], R],
        tokens: TokenIds,
        batch_size: int | None = None,
        done: Done = lambda count: None,
    ) -> Iterator[tuple[np.ndarray, R]]:
        """Apply `function` to the padded token ids and mask of every batch of texts, and yield the texts' positions and
        the result.

        `batch_size`, by default the model's, is the number of texts of maximum length per batch; batches of shorter
        texts are larger. `done` is called with the number of texts of each batch, and first of blank texts.
        """
        size, full = batch_size or self.batch_size, self.padded(tokens.max_length)
        positions = np.fromiter(tokens.ids, np.int64)
        lengths = np.array([self.padded(len(ids)) for ids in tokens.ids.values()], np.int64)
        batches: list[np.ndarray] = []
        # All texts of a batch are padded to the same length, so that a vector does not depend on the rest.
        for length in np.unique(lengths)[::-1].tolist():
            same, rows = positions[lengths == length], min(8 * size, size * full // max(1, length))
            batches += np.split(same, range(rows, len(same), rows))
        done(len(tokens.names) - len(tokens.ids))
        results = self.map(lambda batch: function(*self.pad([tokens.ids[i] for i in batch.tolist()])), batches)
        for batch, result in zip(batches, results, strict=True):
            yield batch, result
            done(len(batch))

    def map[B, R](self, function: Callable[[B], R], items: Sequence[B]) -> Iterator[R]:
        """Apply `function` to every item; on a CPU to several at a time, among which torch's threads are divided."""
        enter("PyTorch")
        threads = torch.get_num_threads()
        workers = min(threads, len(items)) if self.device.type == "cpu" else 1
        if workers < 2:
            yield from map(function, items)
            return
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
                yield from pool.map(function, items)
        finally:
            torch.set_num_threads(threads)

    def padded(self, length: int) -> int:
        """The number of tokens that a text of this length is padded to."""
        return min(-(-length // PAD_MULTIPLE) * PAD_MULTIPLE, self.max_length)

    def pad(self, tokens: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask, (texts, tokens) each, on the device."""
        lengths = np.array([len(t) for t in tokens])
        mask = np.arange(self.padded(lengths.max())) < lengths[:, None]
        ids = np.full(mask.shape, self.tokenizer.pad_id)
        ids[mask] = np.concatenate(tokens)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)


class TextEncoder[Vectors: Matrix](ABC):
    """A transformer that turns texts into vectors (texts, width). `prompt` precedes every text."""

    prompt = ""

    def __init__(self, transformer: Transformer, width: int):
        self.transformer = transformer
        self.tokenizer = transformer.tokenizer
        self.width = width

    def with_prompt(self, prompt: str) -> Self:
        """The same model with another prompt."""
        model = copy(self)
        model.prompt = prompt
        return model

    def token_ids(self, texts: Sequence[str], max_length: int, names: Sequence[str] | None = None) -> TokenIds:
        """See Tokenizer.token_ids. Raises CaiError if the model reads fewer tokens."""
        if max_length > (limit := self.transformer.max_length):
            raise CaiError(f"{self.transformer.checkpoint} reads at most {limit} tokens, not {max_length}")
        return self.tokenizer.token_ids(texts, max_length, self.prompt, names)

    def encode(
        self,
        texts: Sequence[str],
        max_length: int,
        batch_size: int | None = None,
        done: Done = lambda count: None,
    ) -> Vectors:
        """Encode the first `max_length` tokens of each text: float32 (texts, width), zero for blank texts. For the
        other arguments see Transformer.map_batches."""
        return self.in_order(self.encode_batches(self.token_ids(texts, max_length), batch_size, done), len(texts))

    def encode_batches(
        self, tokens: TokenIds, batch_size: int | None, done: Done
    ) -> Iterator[tuple[np.ndarray, Vectors]]:
        """The texts' positions and the vectors of each batch. Raises CaiError if they are not finite."""
        for positions, vectors in self.transformer.map_batches(self._vectors, tokens, batch_size, done):
            if (row := first_not_finite(vectors)) is not None:
                raise self.transformer.not_finite_error(f"vector of {tokens.names[positions[row]][:NAME_LENGTH]!r}")
            yield positions, vectors

    def in_order(self, batches: Iterable[tuple[np.ndarray, Vectors]], texts: int) -> Vectors:
        """The vectors of all texts, (texts, width), from those of batches; zero for the other texts."""
        positions, parts = [np.zeros(0, np.int64)], list[Vectors]()
        for batch, vectors in batches:
            positions.append(batch)
            parts.append(vectors)
        rows = np.full(texts, -1)  # the last row, which is zero
        rows[np.concatenate(positions)] = np.arange(sum(map(len, positions)))
        return stacked([*parts, self._zero_vector()])[rows]

    @abstractmethod
    def _zero_vector(self) -> Vectors:
        """float32 (1, width)."""

    @abstractmethod
    def _vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> Vectors: ...


def batches(lengths: Sequence[int], max_tokens: int, max_rows: int) -> Iterator[list[int]]:
    """Group positions in `lengths` into batches, longest texts first, so that memory use peaks at the start. A batch,
    padded to its longest text, has at most `max_tokens` tokens and `max_rows` texts."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(1, min(max_rows, max_tokens // max(1, lengths[order[start]])))
        yield order[start : start + size]
        start += size


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers except for errors."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def load_pretrained(kind: str, checkpoint: Path, head: str, **options: Any) -> Any:
    """Load a model of one of transformers' Auto classes, in float32, for inference, with all weights from safetensors.
    Raises CaiError, with the name of the missing `head`, if weights are missing or of another kind."""
    enter("PyTorch")
    require_safetensors(checkpoint)
    logging.disable_progress_bar()
    try:
        with quiet():  # missing weights are reported below
            model, report = getattr(transformers, kind).from_pretrained(
                str(checkpoint),
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
    except SafetensorError as error:
        raise CaiError(f"{checkpoint}: broken *.safetensors ({error})") from None
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        if "trust_remote_code" in str(error):
            raise own_code_error(checkpoint) from None
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        if "ignore_mismatched_sizes" in reason:  # the library suggests this option
            reason = "its weights have other shapes than config.json says"
        raise CaiError(f"{checkpoint} has no {head}: {reason}. Use a checkpoint saved from {kind}") from None
    # The pooler is never used, and masked language models have none.
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        raise CaiError(
            f"{checkpoint} has no {head}: its weights lack {', '.join(missing[:3])}"
            f"{' …' if len(missing) > 3 else ''}. Use a checkpoint saved from {kind}"
        )
    return model.eval()
