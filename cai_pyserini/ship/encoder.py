"""Ship an encoder: a folder for a model hub, with a model card."""

import re
from pathlib import Path

import yaml

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.template import template
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.models.checkpoint import checkpoint_folder
from cai_pyserini.ship import scores
from cai_pyserini.ship.bundle import bundle, require_outside

CARD = Path(__file__).with_name("encoder.md.jinja")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def ship_encoder(
    spec: str, output: Path, license: str, language: str = "en", base: str | None = None, repository: str | None = None
) -> Path:
    """Write the checkpoint, encoder.yaml, IDF and projection of an encoder, and a model card, to a folder.

    `spec` is what load_encoder takes, `base` the hub id of the model that it was made from (default: that of its
    run folder, if it has one), and `repository` where it will be. Raises CaiError for the encoder of a joint index,
    and for lengths beyond the checkpoint's positions.
    """
    config = load_encoder(spec)
    if config.joint:
        raise CaiError(f"{spec} is the encoder of a joint index, whose weights belong to the index: ship the index")
    Encoder(config, "cpu").require_loadable("documents", "queries")
    folder = Path(spec) if Path(spec).is_dir() else None
    found = scores.of_encoder(folder) if folder else None
    made = _adaptation(folder) if folder else None
    require_outside(output, Path(spec), checkpoint_folder(config))
    origin = config.checkpoint if config.kind == "dense" else found.checkpoint if found else ""
    base = base or (origin if _is_hub_id(origin) else None)

    def write(folder: Path) -> None:
        bundle(config, folder, ".", checkpoint=True)
        tags = ["splade", "sparse", "learned-sparse-retrieval"] if config.kind == "splade" else ["dense"]
        front = {
            "license": license,
            "language": language,
            "library_name": "transformers",
            "pipeline_tag": "feature-extraction",
            "tags": [*tags, "information-retrieval", "pyserini", "cai-pyserini"],
            **({"base_model": base} if base else {}),
        }
        card = template(CARD).render(
            front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
            title=(repository or output.resolve().name).rpartition("/")[2],
            repository=repository,
            folder=output.resolve().name,
            encoder=config,
            base=base,
            made=made,
            scores=found,
        )
        (folder / "README.md").write_text(card, encoding="utf-8")

    inputs = {
        "checkpoint": Encoder(config).digest,
        "idf": config.idf_folder and artifact.require(config.idf_folder, "idf").digest,
        "encoder": config.model_dump(mode="json", exclude={"checkpoint", "idf", "projection"}, exclude_defaults=True),
        "adaptation": made and made.digest,
        "scores": found,
    }
    card = [license, language, base, repository, output.resolve().name]
    recipe = artifact.recipe("ship", inputs, card=card)
    return artifact.make(output, recipe, write)


def _adaptation(folder: Path) -> artifact.Manifest | None:
    """The manifest of the adaptation that made the encoder of this folder, or the dense encoder in it."""
    manifests = filter(None, map(artifact.read_manifest, (folder, folder.resolve().parent)))
    return next((manifest for manifest in manifests if manifest.recipe["stage"] == "adapt"), None)


def _is_hub_id(checkpoint: str) -> bool:
    return HUB_ID.fullmatch(checkpoint) is not None and not Path(checkpoint).exists()
