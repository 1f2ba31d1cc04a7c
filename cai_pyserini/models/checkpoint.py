"""Checkpoint folders: where they are, and digests of their contents."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from cai_pyserini.core.artifact import digest, file_digest
from cai_pyserini.core.config import EncoderConfig, names
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import PIP, pip_path

SUFFIXES = (".json", ".safetensors", ".txt", ".model")


def checkpoint_folder(config: EncoderConfig) -> Path:
    """The local folder of an encoder's checkpoint, downloaded from the hub where it is not one."""
    if config.checkpoint.startswith(PIP):
        return pip_path(config.checkpoint)
    if (folder := Path(config.checkpoint)).is_dir():
        return folder
    if folder.is_absolute() or config.checkpoint.startswith("."):
        raise CaiError(f"no checkpoint folder {folder}")
    try:
        patterns = [f"*{suffix}" for suffix in SUFFIXES]
        return Path(snapshot_download(config.checkpoint, revision=config.revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CaiError(
            f"no encoder {config.checkpoint!r}: it is not in encoders/ ({', '.join(names('encoders'))}), not a local "
            f"folder, and could not be downloaded from the hub ({reason})"
        ) from None


def require_safetensors(checkpoint: Path) -> None:
    """Raise CaiError for a folder that is not a checkpoint with weights in safetensors."""
    if not (checkpoint / "config.json").is_file():
        raise CaiError(f"{checkpoint} is not a checkpoint: it has no config.json")
    if not any(checkpoint.glob("*.safetensors")):
        raise CaiError(
            f"{checkpoint} has no *.safetensors; other formats can run code when loaded and are refused. "
            "For a hub id, a revision with safetensors (often refs/pr/1) can be set in the encoder's YAML"
        )


def checkpoint_files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint's configuration, tokenizer and weights."""
    return [
        path
        for path in sorted(checkpoint.iterdir())
        if path.suffix in SUFFIXES and path.name not in ("manifest.json", "log.json", "report.json")
    ]


def checkpoint_digest(checkpoint: Path, tokenizer_only: bool = False) -> str:
    """A digest of a checkpoint's configuration, tokenizer and weights, or of its tokenizer alone."""
    files = checkpoint_files(checkpoint)
    if tokenizer_only:
        files = [path for path in files if path.name.startswith(("tokenizer", "vocab", "merges", "added", "special"))]
    return digest({path.name: file_digest(path) for path in files})
