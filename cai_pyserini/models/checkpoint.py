"""Checkpoint folders: find or download them, check their files, and digest their contents."""

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cai_pyserini.core.artifact import digest, file_digest
from cai_pyserini.core.config import EncoderConfig, load_encoder, names
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.files import require_content
from cai_pyserini.core.packages import PIP, pip_path
from cai_pyserini.models.packed import unpacked

logger = logging.getLogger(__name__)

DOWNLOAD_AGAIN = "save or download the model again"
PROJECTION_REMEDY = "write the projection of this encoder there, or remove `projection` from the encoder's YAML"
TOKENIZER_PREFIXES = ("tokenizer", "vocab", "merges", "added", "special", "spm", "spiece", "sentencepiece")
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")


def checkpoint_folder(config: EncoderConfig) -> Path:
    """The local folder of an encoder's checkpoint, downloaded if it is on the hub. Raises CaiError as require_complete
    does."""
    if config.checkpoint.startswith(PIP):
        path = pip_path(config.checkpoint)
        return unpacked(path) if path.is_file() else path
    if (folder := Path(config.checkpoint)).is_dir():
        return require_complete(folder)
    if folder.is_absolute() or config.checkpoint.startswith("."):
        raise CaiError(f"no checkpoint folder {folder}")
    if "/" not in config.checkpoint and (hint := did_you_mean(config.checkpoint, names("encoders"))):
        raise CaiError(f"no encoder {config.checkpoint!r}{hint}")
    from cai_pyserini.models import hub

    patterns = ("encoder.yaml", *(f"*{suffix}" for suffix in SUFFIXES))
    try:
        folder = hub.download(config.checkpoint, config.revision, patterns)
    except CaiError as error:
        if "/" in config.checkpoint and not isinstance(error, hub.NotOnHubError):
            raise
        raise CaiError(
            f"no encoder {config.checkpoint!r}: it is not in encoders/ ({', '.join(names('encoders'))}) and not a "
            f"local folder, and {error}"
        ) from None
    if config.model_fields_set <= {"name", "checkpoint"} and (folder / "encoder.yaml").is_file():
        _warn_of_settings(config.checkpoint)
    return require_complete(folder)


@cache  # once per process
def _warn_of_settings(repository: str) -> None:
    logger.warning(
        "%s has an encoder.yaml, whose settings are not used: give the folder that `cai-pyserini ship pull %s` prints",
        *(repository, repository),
    )


def require_complete(folder: Path) -> Path:
    """Return the folder. Raises CaiError if it has an adapter, which the libraries apply only where peft is installed,
    or a Git LFS pointer in place of a file."""
    if (adapter := folder / "adapter_config.json").exists():
        raise CaiError(
            f"{folder} has an adapter (adapter_config.json), which changes the model wherever peft is installed: merge "
            f"it with peft's merge_and_unload, save the result with save_pretrained, and use that; or remove {adapter} "
            "if the weights are merged already"
        )
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (*SUFFIXES, ".bin"):
            require_content(path)
    return folder


def load_checkpoint(spec: str) -> Path:
    """The local folder of the checkpoint that `spec` refers to, see load_encoder."""
    return checkpoint_folder(load_encoder(spec))


def require_safetensors(checkpoint: Path) -> None:
    """Raise CaiError unless a folder is complete, with weights in safetensors and a config.json."""
    require_complete(checkpoint)
    if not (checkpoint / "config.json").is_file():
        expected = "config.json, *.safetensors and a tokenizer"
        raise CaiError(f"{checkpoint} is not a checkpoint, which has {expected}: it has no config.json")
    if not any(checkpoint.glob("*.safetensors")):
        raise CaiError(
            f"{checkpoint} has no *.safetensors; other formats can run code when loaded and are refused. For a hub id, "
            "set a revision with safetensors (often refs/pr/1) in the encoder's YAML, or save the model again, with "
            "SparseEncoder(ID).save_pretrained(FOLDER) of sentence_transformers (dense: SentenceTransformer)"
        )


def own_code_error(checkpoint: Path) -> CaiError:
    """The error for a checkpoint that needs code of its own."""
    return CaiError(
        f"{checkpoint} has code of its own (auto_map in its JSON files), which is not run: choose a checkpoint of an "
        "architecture that transformers has"
    )


def require_projection(path: Path) -> Path:
    """Return the path. Raises CaiError if there is no such file."""
    if not path.is_file():
        raise CaiError(f"no projection {path}: {PROJECTION_REMEDY}")
    require_content(path)
    return path


def max_positions(model: Any) -> int | None:
    """The number of tokens that a model has position embeddings for; None for relative and rotary positions."""
    import torch

    limits = []
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "embed_positions", "wpe")) and isinstance(module, torch.nn.Embedding):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa's positions start after it
            limits.append(module.num_embeddings - unused - getattr(module, "offset", 0))
    return min([*limits, getattr(model.config, "max_position_embeddings", limits[0])]) if limits else None


def require_positions(checkpoint: Path, lengths: Mapping[str, int]) -> None:
    """Raise CaiError if a setting in `lengths`, name -> tokens, exceeds the model's positions. Loads no weights."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(str(checkpoint), trust_remote_code=False)
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config, trust_remote_code=False)
    except Exception:  # of many kinds; loading the model reports it
        return
    limit = max_positions(model.get_encoder() if config.is_encoder_decoder else model)
    for name, length in lengths.items():
        if limit is not None and length > limit:
            raise CaiError(
                f"{checkpoint} has {limit} positions, too few for {name} {length}: set it to {limit} at most"
            )


def checkpoint_files(checkpoint: Path, modules: bool = False) -> list[Path]:
    """A checkpoint's configuration, tokenizer and weights; `modules`: also in subfolders."""
    is_nested = modules and (checkpoint / "modules.json").is_file()
    return [
        path
        for path in sorted(checkpoint.rglob("*") if is_nested else checkpoint.iterdir())
        if path.suffix in SUFFIXES and path.name not in ("manifest.json", "log.json", "report.json")
    ]


def checkpoint_digest(checkpoint: Path, tokenizer_only: bool = False, modules: bool = False) -> str:
    """A digest of the checkpoint_files, or of those of the tokenizer only."""
    files = checkpoint_files(checkpoint, modules)
    if tokenizer_only:
        files = [path for path in files if path.name.startswith(TOKENIZER_PREFIXES)]
    return digest({path.relative_to(checkpoint).as_posix(): file_digest(path) for path in files})


def read_json(path: Path) -> Any:
    """Read a JSON file; {} if it is missing."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        require_content(path)
        raise CaiError(f"{path}: not JSON ({error}); {DOWNLOAD_AGAIN}") from None
