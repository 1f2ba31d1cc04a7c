"""An encoder.yaml with what it names: the checkpoint, the IDF and the projection, copied to one place."""

import shutil
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, encoder_yaml
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_files, checkpoint_folder, require_safetensors


def bundle(config: EncoderConfig, folder: Path, place: str, checkpoint: bool) -> None:
    """Write an encoder.yaml to `folder`, and what it names to the folder `place` in it; without `checkpoint`, the
    encoder.yaml names the checkpoint as `config` does.

    The copied checkpoint has the digest of the original. Raises CaiError for a checkpoint or an IDF that is not there.
    """
    target = folder / place
    target.mkdir(parents=True, exist_ok=True)
    copies: dict[str, str | None] = {}
    if checkpoint:
        source = checkpoint_folder(config)
        require_safetensors(source)
        for path in checkpoint_files(source):
            shutil.copyfile(path, target / path.name)
        copies |= {"checkpoint": str(target), "revision": None}
    if config.idf_folder:
        artifact.require(config.idf_folder, "idf")
        copies["idf"] = str(shutil.copytree(config.idf_folder, target / "idf"))
    if config.projection:  # not beside the checkpoint's own safetensors
        (target / "projection").mkdir()
        copies["projection"] = str(shutil.copyfile(config.projection, target / "projection" / "weight.safetensors"))
    artifact.write_text(folder / "encoder.yaml", encoder_yaml(config.replace(**copies), folder))


def require_outside(output: Path, *sources: Path) -> None:
    """Raise CaiError if a source lies in the output folder, which would be replaced."""
    for source in sources:
        if source.resolve().is_relative_to(output.resolve()):
            raise CaiError(f"{output} has {source} in it, which it would replace: choose another --output")
