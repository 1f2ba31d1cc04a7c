"""SPLADE: text -> sparse vector over the vocabulary of a masked language model.

    w_v = max over tokens i of log(1 + relu(logit_iv))            (Formal et al. 2021; Iida & Okazaki 2022, eq. 3)

log1p and relu grow with the logit, so the maximum is taken over the logits, and the rest is done once per vocabulary
entry. On a CPU every thread works on a batch of its own: threads that share each product wait for the slowest of them
hundreds of times a batch, on a busy machine for most of the time.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import batched
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix

from cai_pyserini.cli import CaiError
from cai_pyserini.head import max_logits

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

BATCH_SIZE = {"cpu": 16, "cuda": 256}
Precision = Literal["auto", "float32", "bfloat16"]


class TextEncoder:
    """A transformer that makes a vector of each text, in batches. What kind of vector, its subclasses say.

    `precision` is that of the products; sums and everything after them are float32. `auto` is bfloat16 where the
    hardware multiplies it faster than float32. Raises CaiError for a checkpoint that is none.
    """

    width: int  # of the vectors

    def __init__(self, checkpoint: Path, device: str = "auto", precision: Precision = "auto"):
        self.checkpoint = checkpoint
        self.device = resolve_device(device)
        self.precision = resolve_precision(precision, self.device)
        self._dtype = getattr(torch, self.precision)
        self.tokenizer = Tokenizer(checkpoint)

    def _take(self, model: Any, without: Any = None) -> None:
        """Take a loaded model; its products are made in our precision, except those of the layer `without`."""
        positions = [
            m.num_embeddings - (m.padding_idx + 1 if m.padding_idx is not None else 0)
            for name, m in model.named_modules()
            if name.endswith("position_embeddings") and isinstance(m, torch.nn.Embedding)
        ]
        limit = getattr(model.config, "max_position_embeddings", self.tokenizer.max_length)
        self._max_length = min([self.tokenizer.max_length, limit, *positions])
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not without:
                module.to(self._dtype)  # once, not in every batch
        self._body = model.to(self.device)

    def _entries(self, tokens: list[Any]) -> tuple[np.ndarray, ...]:
        """Rows, columns and values of the vectors of tokenized texts."""
        raise NotImplementedError

    def encode(
        self,
        texts: Sequence[str],
        max_length: int,
        batch_size: int | None = None,
        done: Callable[[int], object] = lambda count: None,
    ) -> csr_matrix:
        """Encode texts, of which the first `max_length` tokens count, special tokens included.

        `batch_size` is the number of texts of full length a batch; shorter ones make larger batches. `done` is called
        with the number of texts of every batch that is. Returns float32 vectors (len(texts), width). That of a blank
        text is empty.
        """
        batch_size = batch_size or BATCH_SIZE[self.device.type]
        if max_length > self._max_length:
            raise CaiError(f"{self.checkpoint} reads at most {self._max_length} tokens, not {max_length}")
        tokens = self.tokenizer.encode(texts, max_length)
        full = [i for i, text in enumerate(texts) if text.strip()]
        grouped = list(batches([len(tokens[i]) for i in full], batch_size * max_length, 8 * batch_size))
        rows = [np.empty(0, np.int64)]
        columns = [np.empty(0, np.int64)]
        weights = [np.empty(0, np.float32)]
        found = self._each([[tokens[full[i]] for i in batch] for batch in grouped])
        for batch, (row, column, weight) in zip(grouped, found, strict=True):
            rows.append(np.array(full)[batch][row])
            columns.append(column)
            weights.append(weight)
            done(len(batch))
        done(len(texts) - len(full))
        entries = np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))
        return csr_matrix(entries, shape=(len(texts), self.width))

    def _each(self, batches: list[list[Any]]) -> Iterator[tuple[np.ndarray, ...]]:
        """What `_entries` gives for every batch: on a CPU several at a time, which share torch's threads evenly."""
        threads = torch.get_num_threads()
        workers = min(threads, len(batches)) if self.device.type == "cpu" else 1
        if workers < 2:
            yield from map(self._entries, batches)
            return
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
                yield from pool.map(self._entries, batches)
        finally:
            torch.set_num_threads(threads)

    def _padded(self, tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask, (texts, tokens) each, on the device."""
        lengths = torch.tensor([len(t) for t in tokens])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.full(mask.shape, self.tokenizer.pad_id)
        ids[mask] = torch.tensor([id for t in tokens for id in t])
        return ids.to(self.device), mask.to(self.device)

    def _run(self, ids: torch.Tensor, mask: torch.Tensor, **more: torch.Tensor) -> Any:
        """What the model gives for padded tokens."""
        with torch.autocast(self.device.type, self._dtype, enabled=self.precision != "float32"):
            return self._body(input_ids=ids, attention_mask=mask.long(), **more)


class Splade(TextEncoder):
    """A SPLADE encoder: any checkpoint with a masked-language-model head whose decoder is a linear layer."""

    def __init__(self, checkpoint: Path, device: str = "auto", precision: Precision = "auto"):
        super().__init__(checkpoint, device, precision)
        model, decoder = load_masked_lm(checkpoint)
        self.width = size = len(self.tokenizer)
        if decoder.weight.shape[0] < size:
            raise CaiError(
                f"{checkpoint}: the tokenizer has {size} entries but the model only {decoder.weight.shape[0]}; they do "
                "not belong together"
            )
        self._take(model, without=decoder)
        # a decoder may be padded beyond the vocabulary
        self._embeddings = decoder.weight.detach()[:size].to(self.device, self._dtype).contiguous()
        bias = torch.zeros(size) if decoder.bias is None else decoder.bias.detach()[:size]
        self._bias = bias.to(self.device, self._dtype)

    @torch.inference_mode()
    def _entries(self, tokens: list[list[int]]) -> tuple[np.ndarray, ...]:
        """Rows, columns and weights of the non-zero entries."""
        ids, mask = self._padded(tokens)
        hidden = self._run(ids, mask).logits  # the decoder is taken off
        logits = max_logits(hidden, mask, self._embeddings, self._bias)
        row, column = logits.gt(0).nonzero(as_tuple=True)
        weights = torch.log1p(logits[row, column])
        return row.numpy(force=True), column.numpy(force=True), weights.numpy(force=True)


class Tokenizer:
    """The fast tokenizer of a checkpoint, and the names of its entries in indexes and JSON vectors."""

    def __init__(self, checkpoint: Path):
        from transformers import AutoTokenizer

        if not any((checkpoint / name).is_file() for name in ("tokenizer.json", "vocab.txt", "tokenizer.model")):
            raise CaiError(f"{checkpoint}: no tokenizer (tokenizer.json) in this folder")
        try:
            loaded = AutoTokenizer.from_pretrained(str(checkpoint), trust_remote_code=False)
        except ValueError as error:
            raise CaiError(f"{checkpoint}: its tokenizer cannot be read ({error})") from None
        if not loaded.is_fast:
            raise CaiError(f"{checkpoint}: its tokenizer has no fast version (tokenizer.json)")
        self._backend = loaded.backend_tokenizer
        self._backend.no_padding()
        self.pad_id: int = loaded.pad_token_id or 0
        self.max_length: int = loaded.model_max_length
        self.has_types = "token_type_ids" in loaded.model_input_names

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def terms(self) -> list[str]:
        """What each entry is called in an index: itself, unless white space or emptiness would make it another."""
        terms = [f"[{i}]" for i in range(len(self))]
        for token, i in self._backend.get_vocab(with_added_tokens=True).items():
            if token.split() == [token] and "\x01" not in token:
                terms[i] = token
        return terms

    def encode(self, texts: Sequence[str], max_length: int | None, special: bool = True) -> list[list[int]]:
        """Token ids of each text, with or without special tokens; cut after `max_length`, or whole where it is None."""
        if max_length is None:
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(max_length)
        encode = self._backend.encode_batch_fast  # its results are large: a few at a time
        return [e.ids for part in batched(texts, 256) for e in encode(list(part), add_special_tokens=special)]

    def pairs(self, first: Sequence[str], second: Sequence[str], max_length: int) -> list[Any]:
        """Encodings (`ids`, `type_ids`) of pairs of texts with special tokens, the longer text of each cut first."""
        self._backend.enable_truncation(max_length)
        return self._backend.encode_batch_fast(list(zip(first, second, strict=True)))

    def bag_of_words(self, texts: Sequence[str], max_length: int) -> csr_matrix:
        """Counts of the word pieces of each text: SPLADE-Doc's queries, (len(texts), vocabulary)."""
        # The model would read [CLS] and [SEP] too, so that many fewer word pieces.
        tokens = self.encode(texts, max_length - 2, special=False)
        indptr = np.cumsum([0] + [len(t) for t in tokens])
        indices = np.array([id for t in tokens for id in t], np.int32)
        counts = csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(texts), len(self)))
        counts.sum_duplicates()
        return counts


def batches(lengths: Sequence[int], max_tokens: int, max_rows: int) -> Iterator[list[int]]:
    """Positions in `lengths`, longest first so that memory peaks at once, grouped so that a batch, padded to its
    longest text, has at most `max_tokens` tokens and `max_rows` texts."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(1, min(max_rows, max_tokens // max(1, lengths[order[start]])))
        yield order[start : start + size]
        start += size


def load_pretrained(kind: str, checkpoint: Path, wanted: str) -> Any:
    """A model of one of transformers' Auto classes, float32, for inference, with all its weights from safetensors.

    Raises CaiError, which says that the checkpoint has no `wanted`, where there is none.
    """
    import transformers
    from safetensors import SafetensorError
    from transformers.utils import logging

    if not (checkpoint / "config.json").is_file():
        raise CaiError(f"{checkpoint} is no checkpoint: it has no config.json")
    if not any(checkpoint.glob("*.safetensors")):
        raise CaiError(
            f"{checkpoint} has no *.safetensors; other formats can run code when loaded and are refused. "
            "For a hub id, a revision with safetensors (often refs/pr/1) can be set in the encoder's YAML"
        )
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # missing weights are an error here, and said below
    try:
        model, report = getattr(transformers, kind).from_pretrained(
            str(checkpoint),
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise CaiError(f"{checkpoint}: broken *.safetensors ({error})") from None
    except (ValueError, KeyError, OSError) as error:
        raise CaiError(f"{checkpoint} has no {wanted}: {str(error).splitlines()[0][:200]}") from None
    finally:
        logging.set_verbosity(verbosity)
    # A bare transformer's pooler is never used here, and masked language models come without one.
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        raise CaiError(
            f"{checkpoint} has no {wanted}: its weights lack {', '.join(missing[:3])}"
            f"{' …' if len(missing) > 3 else ''}. It takes a checkpoint saved from {kind}"
        )
    return model.eval()


def load_masked_lm(checkpoint: Path) -> tuple[Any, torch.nn.Linear]:
    """A masked language model, and its decoder, which passes its input through: `logits` of the model are what the
    decoder would multiply.

    transformers' own heads are used, of whatever architecture. Raises CaiError where there is none.
    """
    model = load_pretrained("AutoModelForMaskedLM", checkpoint, "masked-language-model head")
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, torch.nn.Linear):
        raise CaiError(f"{checkpoint}: the head of {type(model).__name__} does not end in a linear decoder")
    probe = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        logits = model(input_ids=probe).logits
        pass_through(model)
        hidden = model(input_ids=probe).logits
        wanted = torch.nn.functional.linear(hidden, decoder.weight, decoder.bias)
    if hidden.shape[-1] != decoder.in_features or not torch.allclose(wanted, logits, atol=1e-3, rtol=1e-3):
        raise CaiError(f"{checkpoint}: the head of {type(model).__name__} does more than a linear decoder at its end")
    return model, decoder


def pass_through(model: Any) -> torch.nn.Linear:
    """Make the decoder of a masked language model give back its input; `del decoder.forward` undoes it."""
    decoder = model.get_output_embeddings()
    decoder.forward = torch.nn.Identity().forward
    return decoder


def resolve_device(device: str) -> torch.device:
    """`device`, with `auto` settled: a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError:
        resolved = torch.device("meta")
    if resolved.type not in BATCH_SIZE:
        raise CaiError(f"no device {device!r}; known are auto, cpu, cuda, cuda:1, …")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise CaiError(f"no device {device!r}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs")
    return resolved


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """`precision`, with `auto` settled for the device."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"
