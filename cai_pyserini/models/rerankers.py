"""Load a reranker as modules of sentence-transformers: a classifier with one label, bare or saved by CrossEncoder; or a
language model with LogitScore, saved by CrossEncoder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import AutoConfig

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import max_positions, require_safetensors
from cai_pyserini.models.folder import read_json
from cai_pyserini.models.transformer import load_pretrained, quiet

CLASSIFIER, CAUSAL = "sequence-classification", "text-generation"  # tasks of sentence-transformers
HEADS = {
    CLASSIFIER: ("AutoModelForSequenceClassification", "sequence-classification head"),
    CAUSAL: ("AutoModelForCausalLM", "language-model head"),
}
ACTIVATIONS = {"Identity": torch.nn.Identity, "Sigmoid": torch.nn.Sigmoid, "Tanh": torch.nn.Tanh}


class Reranker(NamedTuple):
    """Modules, the first with `model` and `preprocess` for pairs; run in order, they add `scores` (pairs, 1)."""

    modules: list[Any]
    activation: torch.nn.Module
    prompt: str | None


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


def load_reranker(checkpoint: Path) -> Reranker:
    """Load a reranker. Raises CaiError as require_reranker does, and for weights that are not a reranker's."""
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
        return Reranker(modules, activation(), (settings.get("prompts") or {}).get(settings.get("default_prompt_name")))


def _module(checkpoint: Path, entry: dict[str, str]) -> Any:
    known = {"Transformer": _CheckedTransformer, "LogitScore": LogitScore}
    library, _, name = entry["type"].rpartition(".")
    if not library.startswith("sentence_transformers.") or name not in known:
        raise CaiError(f"{checkpoint}/modules.json: {entry['type']} is not one of {', '.join(known)}")
    if name == "Transformer" and entry["path"]:
        raise CaiError(f"{checkpoint}/modules.json: the Transformer is in {entry['path']!r}, not at the root")
    return known[name].load(str(checkpoint), subfolder=entry["path"], local_files_only=True)


class _CheckedTransformer(Transformer):
    """The library's Transformer, with weights loaded and checked by load_pretrained."""

    def _load_model(self, path: str, task: str, config: Any, *unused: Any, **options: Any) -> Any:
        if task not in HEADS:
            raise CaiError(f"{path}: a reranker's task is {' or '.join(HEADS)}, not {task}")
        kind, head = HEADS[task]
        return load_pretrained(kind, Path(path), head, config=config)
