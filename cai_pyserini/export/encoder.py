"""What exports of encoders share: which encoders they take, and the artifact they make."""

from collections.abc import Callable
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Representation
from cai_pyserini.export.source import LOSES
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder

Write = Callable[[EncoderConfig, Representation, Path], list[str]]


def export_encoder(
    config: EncoderConfig, output: Path, format: str, write: Write, query: Representation | None = None
) -> artifact.Manifest:
    """Make the artifact `output`. `write` gets a temporary folder, and returns what the format loses, in sentences.

    Raises CaiError for a dense encoder, for that of a joint index, whose words have no place in a vocabulary, and for
    lengths beyond the checkpoint's positions.
    """
    if config.kind == "dense":
        raise CaiError(f"{config.name} is a dense encoder: only SPLADE encoders are exported")
    if config.joint:
        raise CaiError(
            f"{config.name} is the encoder of a joint index: {format} would leave the words of BM25 out of queries. "
            "Export the impacts with their queries (milvus, opensearch, …), or the queries with "
            "`python -m cai_pyserini.plugin export-topics`"
        )
    checkpoint = checkpoint_folder(config)
    Encoder(config, "cpu").require_loadable("documents", "queries")
    representation = query or config.query
    inputs = {
        "checkpoint": checkpoint_digest(checkpoint),
        "encoder": config.shaping("vectors", "impacts", "queries"),
        "idf": artifact.require(config.idf_folder, "idf").digest if config.idf_folder else None,
    }
    recipe = artifact.recipe("export", inputs, format=format, query=representation)

    def make(folder: Path) -> artifact.Stats:
        loses = write(config, representation, folder)
        if config.keep_query_terms and not config.rescore and representation == "splade":
            loses.append(f"query pruning: queries keep all their terms, not the {config.keep_query_terms} largest")
        return {"bytes": artifact.folder_bytes(folder), LOSES: loses}

    return artifact.require(artifact.make(output, recipe, make), "export")
