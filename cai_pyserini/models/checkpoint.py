"""Checkpoint folders: where they are, what they need to have, and digests of their contents."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cai_pyserini.core.artifact import digest, file_digest
from cai_pyserini.core.config import EncoderConfig, load_encoder, names
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import require_content
from cai_pyserini.core.packages import PIP, pip_path

PROJECTION_REMEDY = "write the projection of this encoder there, or remove `projection` from the encoder's YAML"
TOKENIZER = ("tokenizer", "vocab", "merges", "added", "special", "spm", "spiece", "sentencepiece")  # names begin so
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
PICKLES = (".bin",)


def checkpoint_folder(config: EncoderConfig, pickles: bool = False) -> Path:
    """The local folder of an encoder's checkpoint, downloaded if it is on the hub, with pickled weights or without.
    Raises CaiError for one that would not be loaded as it is, see require_whole."""
    if config.checkpoint.startswith(PIP):
        return pip_path(config.checkpoint)
    if (folder := Path(config.checkpoint)).is_dir():
        return require_whole(folder)
    if folder.is_absolute() or config.checkpoint.startswith("."):
        raise CaiError(f"no checkpoint folder {folder}")
    import huggingface_hub

    try:
        patterns = [f"*{suffix}" for suffix in (*suffixes(config), *["pytorch_model*.bin"] * pickles)]
        found = huggingface_hub.snapshot_download(config.checkpoint, revision=config.revision, allow_patterns=patterns)
    except (ValueError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CaiError(
            f"no encoder {config.checkpoint!r}: it is not in encoders/ ({', '.join(names('encoders'))}), not a local "
            f"folder, and could not be downloaded from the hub ({reason})"
        ) from None
    return require_whole(Path(found))


def require_whole(folder: Path) -> Path:
    """The folder. Raises CaiError if it has an adapter, which the libraries apply only where peft is installed, or a
    pointer in place of a file."""
    if (adapter := folder / "adapter_config.json").exists():
        raise CaiError(
            f"{folder} has an adapter (adapter_config.json), with which it would be another model where peft is "
            f"installed: save what peft's merge_and_unload makes of it by save_pretrained, and use that; or remove "
            f"{adapter} if the weights beside it are merged already"
        )
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (*SUFFIXES, *PICKLES):
            require_content(path)
    return folder


def suffixes(config: EncoderConfig) -> Sequence[str]:
    """The endings of the files that a model is loaded from."""
    return (*SUFFIXES, ".py") if config.trust_remote_code else SUFFIXES


def load_checkpoint(spec: str) -> Path:
    """The local folder of the checkpoint that `spec` refers to, see load_encoder."""
    return checkpoint_folder(load_encoder(spec))


def require_safetensors(checkpoint: Path, config: bool = True) -> None:
    """Raise CaiError for a folder that is not a checkpoint, with a `config`, and with weights in safetensors; or as
    require_whole does."""
    require_whole(checkpoint)
    if config and not (checkpoint / "config.json").is_file():
        needed = "config.json, *.safetensors and a tokenizer"
        raise CaiError(f"{checkpoint} is not a checkpoint, which has {needed}: it has no config.json")
    if not any(checkpoint.glob("*.safetensors")):
        raise CaiError(
            f"{checkpoint} has no *.safetensors; other formats can run code when loaded and are refused. Convert it "
            "with `python -m cai_pyserini.convert checkpoint ENCODER --output FOLDER`, or for a hub id set a revision "
            "with safetensors (often refs/pr/1) in the encoder's YAML"
        )


def untrusted(checkpoint: Path) -> CaiError:
    """The error for a checkpoint with code that was not run."""
    return CaiError(
        f"{checkpoint} has code of its own (auto_map in its JSON files), which was not run: read it, and set "
        "`trust_remote_code: true` in the encoder's YAML"
    )


def require_own_code(checkpoint: Path) -> None:
    """Raise CaiError for a checkpoint whose code is in another repository, where it may change at any time."""
    for name in ("config.json", "tokenizer_config.json"):
        path = checkpoint / name
        with suppress(OSError, ValueError):  # what loads the file reports it
            named = json.dumps(json.loads(path.read_text(encoding="utf-8")).get("auto_map"))
            if others := re.findall(r'"([^"]+)--', named):
                raise CaiError(
                    f"{path}: its code is in another repository, {others[0]}, of which no revision is named: copy the "
                    f"checkpoint to a folder, the code beside it, and remove `{others[0]}--` from auto_map"
                )


def require_projection(path: Path) -> Path:
    """The path, if it is a file. Raises CaiError if not."""
    if not path.is_file():
        raise CaiError(f"no projection {path}: {PROJECTION_REMEDY}")
    require_content(path)
    return path


def max_positions(model: Any) -> int | None:
    """The number of tokens that a model has position embeddings for; None for relative and rotary positions."""
    import torch

    rooms = []
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "embed_positions", "wpe")) and isinstance(module, torch.nn.Embedding):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts on from there
            rooms.append(module.num_embeddings - unused - getattr(module, "offset", 0))
    return min([*rooms, getattr(model.config, "max_position_embeddings", rooms[0])]) if rooms else None


def require_positions(checkpoint: Path, lengths: Mapping[str, int]) -> None:
    """Raise CaiError for a setting of `lengths`, in tokens, that is greater than the number of positions that the model
    of a checkpoint has. The weights are not loaded."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(str(checkpoint), trust_remote_code=False)
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config, trust_remote_code=False)
    except Exception:  # of many kinds; loading the model reports it
        return
    room = max_positions(model.get_encoder() if config.is_encoder_decoder else model)
    for name, length in lengths.items():
        if room is not None and length > room:
            raise CaiError(f"{checkpoint} has {room} positions, too few for {name} {length}: set it to {room} at most")


def checkpoint_files(checkpoint: Path, modules: bool = False, code: bool = False) -> list[Path]:
    """The files of a checkpoint's configuration, tokenizer and weights, also those of `modules` in subfolders and of
    its `code`."""
    is_nested = modules and (checkpoint / "modules.json").is_file()
    return [
        path
        for path in sorted(checkpoint.rglob("*") if is_nested else checkpoint.iterdir())
        if path.suffix in (*SUFFIXES, *[".py"] * code) and path.name not in ("manifest.json", "log.json", "report.json")
    ]


def checkpoint_digest(checkpoint: Path, tokenizer_only: bool = False, modules: bool = False) -> str:
    """A digest of a checkpoint's configuration, tokenizer and weights, with `modules` also in subfolders, or of its
    tokenizer alone."""
    files = checkpoint_files(checkpoint, modules)
    if tokenizer_only:
        files = [path for path in files if path.name.startswith(TOKENIZER)]
    return digest({path.relative_to(checkpoint).as_posix(): file_digest(path) for path in files})
