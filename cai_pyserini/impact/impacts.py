"""Impacts as JSON vectors, which Anserini's JsonVectorCollection and the index stage read.

One line per document, {"id": …, "contents": "", "vector": {term: impact, …}}, and an encoder.yaml with the settings
used, so that the Pyserini plugin can encode further documents in the same way.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, encoder_yaml
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.shards import Vectors
from cai_pyserini.impact.quantization import QuantizationLoss, Quantizer
from cai_pyserini.impact.weighting import idf_weights, weighted
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.tokenizer import Tokenizer


def write_impacts(vectors: Vectors, config: EncoderConfig, output: Path) -> Path:
    """Write the impacts of a collection as JSON vectors, one file per shard.

    Raises CaiError for dense vectors, and for vectors of another encoder.
    """
    recipe = {
        "stage": "impact",
        "vectors": vectors.manifest.digest,
        "checkpoint": vectors.manifest.recipe["checkpoint"],
        "idf": artifact.require(Path(config.idf), "idf").digest if config.idf else None,
        "encoder": config.model_dump(exclude={"name", "checkpoint", "revision", "idf", "source"}),  # its encoder.yaml
    }

    def write(folder: Path) -> artifact.Stats:
        if vectors.kind == "dense":
            raise CaiError(f"{vectors.folder} has dense vectors: index them with `index dense`")
        checkpoint = checkpoint_folder(config)
        if checkpoint_digest(checkpoint) != recipe["checkpoint"]:
            raise CaiError(f"{vectors.folder} was not encoded with {config.name}: encode the documents again with it")
        terms = Tokenizer(checkpoint).terms
        weights = idf_weights(config, len(terms))
        largest = config.range or max(float(weighted(s.vectors, weights).data.max(initial=0)) for s in vectors)
        if not largest > 0:
            raise CaiError(f"{vectors.folder}: no document has any weight; is this a SPLADE checkpoint?")
        quantizer = Quantizer.of(config.bits, largest)
        loss = QuantizationLoss(quantizer)
        nonzeros = 0
        for number, shard in enumerate(progress(vectors, vectors.shards, f"impacts {output.name}", "shard")):
            float_weights = weighted(shard.vectors, weights)
            impacts = quantizer.impacts(float_weights)
            loss.add(float_weights, impacts)
            nonzeros += impacts.nnz
            with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json_vectors(shard.ids, impacts, terms))
        artifact.write_text(folder / "encoder.yaml", encoder_yaml(config.replace(range=largest), output))
        return {
            "vectors": len(vectors),
            "nonzeros": nonzeros,
            "document_scale": quantizer.scale,
            "loss": loss.stats(),
        }

    return artifact.make(output, recipe, write)


def json_vectors(ids: Sequence[str], impacts: csr_matrix, terms: Sequence[str]) -> list[str]:
    """One JSON line per row, with its newline; terms are in vocabulary order."""
    names = {column: json.dumps(terms[column], ensure_ascii=False) for column in np.unique(impacts.indices).tolist()}
    lines = []
    for row, id in enumerate(ids):
        entries = slice(impacts.indptr[row], impacts.indptr[row + 1])
        pairs = zip(impacts.indices[entries].tolist(), impacts.data[entries].tolist(), strict=True)
        vector = ", ".join([f"{names[column]}: {value}" for column, value in pairs])
        lines.append(f'{{"id": {json.dumps(id)}, "contents": "", "vector": {{{vector}}}}}\n')
    return lines
