"""Impacts: raw vectors, weighted with IDF and quantized to integers, as JSON vectors.

    impact = round(w_v * idf_v ** power * document_scale),   document_scale = (2 ** bits - 1) / range

`range` is the largest weight in the collection unless it is given, in which case larger weights get the largest
impact. Entries that become 0 are dropped. The output is what Anserini's JsonVectorCollection reads, one line a
document, {"id": …, "contents": "", "vector": {term: impact, …}}; and an encoder.yaml with the settings as they turned
out, with which the Pyserini plugin gives any other document the impacts that it would have had here.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.config import PIP, EncoderConfig, checkpoint_folder, load_encoder
from cai_pyserini.idf import Idf
from cai_pyserini.vectors import Vectors


@dataclass(frozen=True)
class Quantizer:
    """Weights -> impacts: round(weight * scale), at most 2 ** bits - 1."""

    scale: float
    bits: int

    @classmethod
    def of(cls, bits: int, range: float) -> "Quantizer":
        """The quantizer that gives the weight `range` the largest impact."""
        return cls((2**bits - 1) / range, bits)

    def impacts(self, weights: csr_matrix) -> csr_matrix:
        """int32 impacts, (documents, vocabulary), without those that are 0."""
        values = np.minimum(np.rint(weights.data * self.scale), 2**self.bits - 1).astype(np.int32)
        impacts = csr_matrix((values, weights.indices, weights.indptr), shape=weights.shape, copy=True)
        impacts.eliminate_zeros()
        return impacts


class Loss:
    """What quantization cost: squared error against the float weights, entries dropped, entries cut to the range."""

    def __init__(self, quantizer: Quantizer):
        self._quantizer = quantizer
        self._error = self._square = 0.0
        self._entries = self._dropped = self._clipped = 0

    def add(self, weights: csr_matrix, impacts: csr_matrix) -> None:
        """Count one shard."""
        difference = weights - impacts / self._quantizer.scale
        self._error += float(np.square(difference.data).sum())
        self._square += float(np.square(weights.data).sum())
        self._entries += weights.nnz
        self._dropped += weights.nnz - impacts.nnz
        self._clipped += int((weights.data * self._quantizer.scale >= 2**self._quantizer.bits - 0.5).sum())

    def facts(self) -> dict[str, float]:
        """`relative_error`: ||w - impact / scale|| / ||w|| over all; `dropped`, `clipped`: fractions of the entries."""
        entries = max(self._entries, 1)
        return {
            "relative_error": float(np.sqrt(self._error / self._square)) if self._square else 0.0,
            "dropped": self._dropped / entries,
            "clipped": self._clipped / entries,
        }


def weighted(vectors: csr_matrix, weights: np.ndarray | None) -> csr_matrix:
    """Every row times `weights` (vocabulary,), elementwise (the paper's equation 6); unchanged where that is None."""
    if weights is None:
        return vectors
    data = vectors.data * weights[vectors.indices]
    return csr_matrix((data, vectors.indices, vectors.indptr), shape=vectors.shape)


def idf_weights(config: EncoderConfig, terms: Sequence[str]) -> np.ndarray | None:
    """What an encoder weights documents with, (vocabulary,); None for plain SPLADE: no idf, or power 0."""
    if config.idf is None or config.idf_power == 0:
        return None
    weights = Idf.load(Path(config.idf)).weights(config.idf_power)
    if len(weights) != len(terms):
        raise CaiError(
            f"{config.idf} counts {len(weights):,} tokens, encoder {config.name} has {len(terms):,}; make it anew"
        )
    return weights


def quantization(index: Path, terms: Sequence[str]) -> tuple[Quantizer, np.ndarray | None]:
    """What raw vectors became the impacts of an index with: the quantizer, and IDF weights (vocabulary,) where there
    are any."""
    config = load_encoder(str(index))
    scale = artifact.require_manifest(index, "index")["document_scale"]
    return Quantizer(scale, config.bits), idf_weights(config, terms)


def write_impacts(vectors: Vectors, config: EncoderConfig, output: Path) -> Path:
    """Write the impacts of a collection as JSON vectors, a file a shard, unless they are there already."""
    recipe = {
        "stage": "impact",
        "format": 1,
        "vectors": vectors.manifest["digest"],
        "checkpoint": vectors.manifest["recipe"]["checkpoint"],
        "idf": artifact.require_manifest(Path(config.idf), "idf")["digest"] if config.idf else None,
        "idf_power": config.idf_power,
        "bits": config.bits,
        "range": config.range,
        "query_scale": config.query_scale,
    }
    if artifact.is_fresh(output, recipe):
        return output
    from cai_pyserini.splade import Tokenizer

    terms = Tokenizer(checkpoint_folder(config)).terms
    weights = idf_weights(config, terms)
    if vectors.width != len(terms):
        raise CaiError(f"{vectors.folder} was not encoded with {config.name}: the vocabularies differ")
    range_ = config.range or max((weighted(shard.matrix, weights).data.max(initial=0) for shard in vectors), default=0)
    if not range_ > 0:
        raise CaiError(f"{vectors.folder}: no document has any weight; is this a SPLADE checkpoint?")
    quantizer = Quantizer.of(config.bits, float(range_))
    loss = Loss(quantizer)
    nonzeros = 0
    with artifact.building(output, recipe) as (partial, facts):
        for number, shard in enumerate(cli.progress(vectors, vectors.shards, f"impacts {output.name}", "shard")):
            float_weights = weighted(shard.matrix, weights)
            impacts = quantizer.impacts(float_weights)
            loss.add(float_weights, impacts)
            nonzeros += impacts.nnz
            with (partial / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json_vectors(shard.ids, impacts, terms))
        settled = replace(config, range=float(range_))
        artifact.write_text(partial / "encoder.yaml", encoder_yaml(settled, output))
        facts |= {
            "vectors": len(vectors),
            "nonzeros": nonzeros,
            "document_scale": quantizer.scale,
            "loss": loss.facts(),
        }
    return output


def json_vectors(ids: Sequence[str], impacts: csr_matrix, terms: Sequence[str]) -> list[str]:
    """One JSON line a row, with its newline; the terms in the order of the vocabulary."""
    names = {column: json.dumps(terms[column], ensure_ascii=False) for column in np.unique(impacts.indices).tolist()}
    lines = []
    for row, id in enumerate(ids):
        entries = slice(impacts.indptr[row], impacts.indptr[row + 1])
        pairs = zip(impacts.indices[entries].tolist(), impacts.data[entries].tolist(), strict=True)
        vector = ", ".join([f"{names[column]}: {value}" for column, value in pairs])
        lines.append(f'{{"id": {json.dumps(id)}, "contents": "", "vector": {{{vector}}}}}\n')
    return lines


def encoder_yaml(config: EncoderConfig, folder: Path) -> str:
    """An encoder as the text of an encoder.yaml in `folder`: the keys that are not at their defaults."""
    import yaml

    if not config.checkpoint.startswith(PIP) and Path(config.checkpoint).is_dir():
        config = replace(config, checkpoint=os.path.relpath(config.checkpoint, folder))
    if config.idf:
        config = replace(config, idf=os.path.relpath(config.idf, folder))
    defaults = asdict(EncoderConfig(name="", checkpoint=""))
    changed = {key: value for key, value in asdict(config).items() if value != defaults[key]}
    return yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)


def main() -> None:
    parser = cli.parser(
        "Weight raw vectors with IDF and quantize them into JSON vectors for Lucene.",
        "python -m cai_pyserini.impact --vectors vectors --idf idf --encoder splade-tiny --output impacts",
    )
    parser.add_argument("--vectors", type=Path, required=True, help="folder written by the encode stage")
    parser.add_argument("--encoder", required=True, help="the encoder that made them")
    parser.add_argument("--idf", help="folder written by the idf stage; without one, vectors stay unweighted")
    parser.add_argument(
        "--idf-power", type=float, help="weights are idf ** this; 0: plain SPLADE; default: the encoder's"
    )
    parser.add_argument("--bits", type=int, help="bits an impact; default: the encoder's")
    parser.add_argument(
        "--range", type=float, help="the weight with the largest impact; default: the collection's largest"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    given = {key: getattr(args, key) for key in ("idf", "idf_power", "bits", "range") if getattr(args, key) is not None}
    config = replace(load_encoder(args.encoder), **given)
    write_impacts(Vectors(args.vectors), config, args.output)
    manifest = artifact.require_manifest(args.output, "impact")
    loss = manifest["loss"]
    print(
        f"{args.output}: {manifest['nonzeros'] / manifest['vectors']:.1f} impacts a document, scale "
        f"{manifest['document_scale']:.3f}; quantization: relative error {loss['relative_error']:.2%}, "
        f"{loss['dropped']:.2%} of the entries became 0, {loss['clipped']:.2%} were cut to the range"
    )


if __name__ == "__main__":
    cli.run(main)
