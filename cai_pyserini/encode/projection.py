"""The vectors of a dense encoder with a projection, from those without it: nothing is encoded again."""

from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.models.dense import load_projection, project
from cai_pyserini.vectors.shards import Shard, Vectors, shard_path, write_shard


def project_vectors(vectors: Vectors, encoder: Encoder, output: Path) -> Path:
    """Write the document vectors that `encoder` would make: those of the same encoder without its projection, in a
    folder written by the encode stage, times the projection, if it has one. They differ from encoded ones only by
    rounding, and their recipe is the same."""
    texts = vectors.manifest.recipe["inputs"]["texts"]
    inputs = {"texts": texts, "encoder": encoder.identity("documents")}
    recipe = artifact.recipe("encode", inputs, role="documents")
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        matrix = load_projection(encoder.projection, vectors.width) if encoder.projection else None
        for number, shard in enumerate(progress(vectors, vectors.shards, "project", "shard")):
            projected = shard.vectors if matrix is None else project(shard.vectors, matrix)
            write_shard(shard_path(folder, number), Shard(shard.ids, projected), digest, 0.0, 1)
        kept = {key: value for key, value in vectors.manifest.stats.items() if key != "seconds"}
        return kept | {"encoder": encoder.facts("documents")}

    return artifact.make(output, recipe, write)
