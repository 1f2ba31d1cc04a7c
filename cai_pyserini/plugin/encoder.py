"""Ship an encoder: a folder for a model hub, with a model card."""

import shutil
from pathlib import Path

from huggingface_hub import ModelCardData

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.template import template
from cai_pyserini.models.checkpoint import checkpoint_files, checkpoint_folder, require_safetensors
from cai_pyserini.models.encoder import EncoderModel, Role
from cai_pyserini.models.folder import read_folder
from cai_pyserini.models.idf import idf_digest
from cai_pyserini.plugin import scores

CARD = Path(__file__).with_name("encoder.md.jinja")


def ship_encoder(spec: str, output: Path, license: str, language: str = "en", base: str | None = None) -> Path:
    """Write the checkpoint, encoder.yaml, IDF and projection of an encoder, and a model card, to a folder.

    `spec` is as in load_encoder, `base` the hub id of the model it was made from. Raises CaiError for the encoder of a
    joint index, and for lengths beyond the checkpoint's positions.
    """
    config = load_encoder(spec)
    if config.joint:
        raise CaiError(f"{spec} is the encoder of a joint index, whose weights belong to the index: ship the index")
    encoder = EncoderModel(config, "cpu")
    config = encoder.config
    roles: list[Role] = ["documents", "queries"] if encoder.has_query_model else ["documents"]
    encoder.require_loadable(*roles)
    folder = Path(spec) if Path(spec).is_dir() else None
    run_scores = scores.encoder_scores(folder) if folder else None
    adaptation = _adaptation(folder) if folder else None
    require_outside(output, Path(spec), checkpoint_folder(config))

    def write(folder: Path) -> None:
        bundle(config, folder, ".", checkpoint=True)
        tags = ["splade", "sparse", "learned-sparse-retrieval"] if config.is_sparse else ["dense"]
        metadata = ModelCardData(
            license=license,
            language=language,
            library_name="transformers",
            pipeline_tag="feature-extraction",
            tags=[*tags, "information-retrieval", "pyserini", "cai-pyserini"],
            base_model=base,
        )
        card = template(CARD).render(
            metadata=metadata.to_yaml(),
            folder=output.resolve().name,
            encoder=config,
            base=base,
            adaptation=adaptation,
            scores=run_scores,
        )
        (folder / "README.md").write_text(card, encoding="utf-8")

    inputs = {
        "checkpoint": encoder.digest,
        "queries": encoder.query_only_identity,
        "idf": idf_digest(config.idf_folder),
        "encoder": config.model_dump(mode="json", exclude={"checkpoint", "idf", "projection"}, exclude_defaults=True),
        "adaptation": adaptation and adaptation.digest,
        "scores": run_scores,
    }
    recipe = artifact.recipe("ship", inputs, card=[license, language, base, output.resolve().name])
    return artifact.make(output, recipe, write)


def _adaptation(folder: Path) -> artifact.Manifest | None:
    """The manifest of the adaptation that made the encoder in this folder; None for any other encoder."""
    manifests = filter(None, map(artifact.read_manifest, (folder, folder.resolve().parent)))
    return next((manifest for manifest in manifests if manifest.recipe["stage"] == "adapt"), None)


def bundle(config: EncoderConfig, folder: Path, subfolder: str, checkpoint: bool) -> None:
    """Write an encoder.yaml to `folder`, and copies of its checkpoint, IDF and projection to `subfolder` in it.

    Without `checkpoint`, the encoder.yaml names the checkpoint as `config` does. It never trusts the checkpoint's code:
    that is for the recipient to decide. Raises CaiError if the checkpoint or the IDF is missing.
    """
    target = folder / subfolder
    target.mkdir(parents=True, exist_ok=True)
    copies: dict[str, str | None] = {}
    if checkpoint:
        _copy_folder(config, target)
        copies |= {"checkpoint": str(target), "revision": None}
    if checkpoint and config.query_checkpoint:
        other = config.replace(checkpoint=config.query_checkpoint, revision=config.query_revision)
        copies["query_checkpoint"] = str(_copy_folder(other, target / "queries"))
        copies["query_revision"] = None
    if config.query_weights:
        (target / "query_weights").mkdir()  # separate, because all files beside a checkpoint identify it
        copy = target / "query_weights" / "weights.json"
        copies["query_weights"] = str(shutil.copyfile(config.query_weights, copy))
    if config.idf_folder:
        artifact.require(config.idf_folder, "idf")
        copies["idf"] = str(shutil.copytree(config.idf_folder, target / "idf"))
    if config.projection:
        (target / "projection").mkdir()  # separate from the checkpoint's own safetensors
        copies["projection"] = str(shutil.copyfile(config.projection, target / "projection" / "weight.safetensors"))
    files.write_text(folder / "encoder.yaml", encoder_yaml(config.replace(**copies), folder))


def _copy_folder(config: EncoderConfig, target: Path) -> Path:
    """Copy a checkpoint with its modules."""
    source = checkpoint_folder(config)
    require_safetensors(read_folder(source).documents.folder)
    for path in checkpoint_files(source, modules=True):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return target


def require_outside(output: Path, *sources: Path) -> None:
    """Raise CaiError if a source is in the output folder, which will be replaced."""
    for source in sources:
        if source.resolve().is_relative_to(output.resolve()):
            raise CaiError(f"{output} contains {source}, which it would replace: choose another output")
