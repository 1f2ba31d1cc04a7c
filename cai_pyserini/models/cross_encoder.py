"""Cross-encoders, which read a query and a document together and score the pair (Nogueira & Cho 2019).

score = activation(w · h_[CLS](query, document) + b)                   (Iida & Okazaki 2022, Appendix A)

The scores equal those of sentence-transformers' CrossEncoder, whose modules a reranker consists of: a classifier with
one label, bare or saved by CrossEncoder; or a language model with LogitScore, saved by CrossEncoder.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Transformer as TransformerModule
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import AutoConfig

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import max_positions, read_json, require_safetensors
from cai_pyserini.models.device import Precision
from cai_pyserini.models.rows import first_not_finite
from cai_pyserini.models.tokenizer import NAME_LENGTH, Done, text_batches
from cai_pyserini.models.transformer import Transformer, batches, load_pretrained, quiet

PAIR_TOKENS = 512  # tokens of a full pair: a batch has those of `batch_size` full pairs
TOKENIZED_PAIRS = 1024  # pairs tokenized at a time
CLASSIFIER, CAUSAL = "sequence-classification", "text-generation"  # tasks of sentence-transformers
HEADS = {
    CLASSIFIER: ("AutoModelForSequenceClassification", "sequence-classification head"),
    CAUSAL: ("AutoModelForCausalLM", "language-model head"),
}
ACTIVATIONS = {"Identity": torch.nn.Identity, "Sigmoid": torch.nn.Sigmoid, "Tanh": torch.nn.Tanh}


class CrossEncoder:
    """A reranker. Unless `activated`, scores are raw logits, whose differences the activation function would shrink."""

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
        """Score pairs of a query and a document: float32 (pairs,). `done` is called with the pairs of each batch.
        Raises CaiError, with the document's name (by default its text), for a score that is not finite."""
        names = names or documents
        size = self.transformer.batch_size
        scores = np.empty(len(queries), np.float32)
        for window in text_batches(range(len(queries)), lambda i: len(queries[i]) + len(documents[i]), TOKENIZED_PAIRS):
            features = self._features([(queries[i], documents[i]) for i in window])
            lengths = features["attention_mask"].sum(1).tolist()
            groups = list(batches(lengths, size * PAIR_TOKENS, 8 * size))
            batch_inputs = [_rows(features, group, lengths[group[0]]) for group in groups]
            for group, values in zip(groups, self.transformer.map(self._scores, batch_inputs), strict=True):
                if (row := first_not_finite(values)) is not None:
                    pair = window[group[row]]
                    name = f"score of {queries[pair][:NAME_LENGTH]!r} and {names[pair][:NAME_LENGTH]!r}"
                    raise self.transformer.not_finite_error(name)
                scores[[window[i] for i in group]] = values
                done(len(group))
        return scores

    def seconds_per_pair(
        self, queries: Sequence[str], documents: Sequence[str], names: Sequence[str] | None = None
    ) -> float:
        """Measure the seconds per pair, on evenly spaced pairs: two batches per thread, or at most a tenth of all."""
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

        seconds(0)  # the first call takes longer
        return seconds(*np.linspace(0, len(queries) - 1, count).astype(int))

    def _features(self, pairs: list[tuple[str, str]]) -> Any:
        """Token ids, mask and the model's other inputs, padded to the longest pair."""
        try:
            return self._modules[0].preprocess(pairs, prompt=self._prompt)
        except ValueError as error:  # for instance from a chat template without a query and a document
            raise CaiError(f"{self.transformer.checkpoint}: {str(error).splitlines()[0][:NAME_LENGTH]}") from None

    @torch.inference_mode()
    def _scores(self, features: dict[str, Any]) -> np.ndarray:
        device, precision = self.transformer.device, self.transformer.precision
        features = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in features.items()}
        with torch.autocast(device.type, self.transformer.dtype, enabled=precision == "bfloat16"):
            for module in self._modules:
                features = module(features)
        return self._activation(features["scores"].float())[:, 0].numpy(force=True)


def _in_float32(layer: torch.nn.Linear) -> torch.nn.Linear:
    """Make a layer compute in float32 even under autocast: in bfloat16, many scores would be equal."""
    forward = layer.forward

    def exact(values: torch.Tensor) -> torch.Tensor:
        with torch.autocast(values.device.type, enabled=False):
            return forward(values.float())

    layer.forward = exact  # type: ignore[assignment]
    return layer


def _rows(features: dict[str, Any], rows: list[int], length: int) -> dict[str, Any]:
    """Select rows of padded features, the longest first, without columns that hold only padding."""
    mask = features["attention_mask"][rows[0]]
    columns = slice(length) if mask[0] else slice(-length, None)
    return {
        name: value[rows, columns] if isinstance(value, torch.Tensor) and value.dim() == 2 else value
        for name, value in features.items()
    }


@contextmanager
def _reading(checkpoint: Path) -> Iterator[None]:
    """Turn the libraries' errors about an unreadable checkpoint into CaiError."""
    try:
        with quiet():
            yield
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise CaiError(f"{checkpoint} cannot be read as a reranker ({str(error).splitlines()[0][:200]})") from None


def require_reranker(checkpoint: Path) -> None:
    """Raise CaiError if the model in a folder is no reranker, or has several labels."""
    require_safetensors(checkpoint)
    with _reading(checkpoint):
        config = AutoConfig.from_pretrained(str(checkpoint), trust_remote_code=False)
    kind: str = (config.architectures or ["ForSequenceClassification"])[0]
    if kind.endswith("ForSequenceClassification") and config.num_labels != 1:
        raise CaiError(f"{checkpoint} has {config.num_labels} labels; a reranker has one, the score")
    if (checkpoint / "modules.json").exists():
        kind = read_json(checkpoint / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    elif kind.endswith("ForCausalLM"):
        raise CaiError(f"{checkpoint} is a language model: save it as a reranker, by CrossEncoder with LogitScore")
    if not kind.endswith(("ForSequenceClassification", "CrossEncoder")):
        raise CaiError(f"{checkpoint} is a {kind}, not a reranker")


def load_reranker(checkpoint: Path) -> tuple[list[Any], torch.nn.Module, str | None]:
    """Load a reranker: its modules, of which the first has `model` and `preprocess` for pairs, and which, run in order,
    add `scores` (pairs, 1); its activation function; and its prompt. Raises CaiError as require_reranker does, and for
    weights that are not a reranker's."""
    require_reranker(checkpoint)
    with _reading(checkpoint):
        settings: dict[str, Any] = {}
        if (path := checkpoint / "modules.json").exists():
            settings = read_json(checkpoint / "config_sentence_transformers.json")
            modules = [_module(checkpoint, entry) for entry in read_json(path)]
        else:
            safe = {name: {"trust_remote_code": False} for name in ("config_kwargs", "processor_kwargs")}
            modules = [_CheckedTransformer(str(checkpoint), transformer_task=CLASSIFIER, **safe)]
        model, task = modules[0].model, modules[0].transformer_task
        if [type(module) for module in modules[1:]] != ([LogitScore] if task == CAUSAL else []):
            raise CaiError(f"{checkpoint}/modules.json: a reranker is a Transformer, with LogitScore if that is causal")
        if task == CAUSAL and max_positions(model) is not None:
            raise CaiError(f"{checkpoint} counts positions from the padding: its scores would depend on the batch")
        older = getattr(model.config, "sentence_transformers", None) or {}  # older versions of the library
        oldest = getattr(model.config, "sbert_ce_default_activation_function", None)
        name = settings.get("activation_fn") or older.get("activation_fn") or oldest or "torch.nn.Sigmoid"
        if not name.startswith("torch.nn.") or (activation := ACTIVATIONS.get(name.rpartition(".")[2])) is None:
            raise CaiError(f"{checkpoint}: activation function {name!r} is not one of {', '.join(ACTIVATIONS)}")
        return modules, activation(), (settings.get("prompts") or {}).get(settings.get("default_prompt_name"))


def _module(checkpoint: Path, entry: dict[str, str]) -> Any:
    known = {"Transformer": _CheckedTransformer, "LogitScore": LogitScore}
    library, _, name = entry["type"].rpartition(".")
    if not library.startswith("sentence_transformers.") or name not in known:
        raise CaiError(f"{checkpoint}/modules.json: {entry['type']} is not one of {', '.join(known)}")
    if name == "Transformer" and entry["path"]:
        raise CaiError(f"{checkpoint}/modules.json: the Transformer is in {entry['path']!r}, not at the root")
    return known[name].load(str(checkpoint), subfolder=entry["path"], local_files_only=True)


class _CheckedTransformer(TransformerModule):
    """The library's Transformer, with weights loaded and checked by load_pretrained."""

    def _load_model(self, path: str, task: str, config: Any, *unused: Any, **options: Any) -> Any:
        if task not in HEADS:
            raise CaiError(f"{path}: a reranker's task is {' or '.join(HEADS)}, not {task}")
        kind, head = HEADS[task]
        return load_pretrained(kind, Path(path), head, config=config)
