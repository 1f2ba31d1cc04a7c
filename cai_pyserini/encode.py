"""Encode a collection, once: documents or queries -> raw, float vectors in shards, of SPLADE unweighted.

A shard is the unit of work: a pure function of a slice of the collection. Encoding goes on after an interruption with
the first shard that is missing, and several processes (or GPUs, or machines that share a folder) can each make the
shards that are theirs; the last one to end declares the folder complete.
"""

import argparse
import time
from collections.abc import Iterable
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cai_pyserini import artifact, cli
from cai_pyserini.collection import Collection, Document, open_collection
from cai_pyserini.config import EncoderConfig, checkpoint_digest, checkpoint_folder, load_encoder, load_index_config

if TYPE_CHECKING:
    from cai_pyserini.splade import Precision, TextEncoder


Part = Literal["documents", "queries"]


class LazyEncoder:
    """A Splade or Dense that is loaded when it is first needed: where every vector is there already, it never is.

    `precision` is that of documents. Queries are always encoded in float32: they are short, and so a query has the same
    impacts wherever and with whatever others it is encoded.
    """

    def __init__(self, config: EncoderConfig, device: str = "auto", precision: "Precision" = "auto"):
        self.config = config
        self.checkpoint = checkpoint_folder(config)
        self.device = device
        self._precision = precision
        self._loaded: dict[str, TextEncoder] = {}

    def precision(self, part: Part) -> "Precision":
        """The precision for documents or queries, `auto` settled."""
        from cai_pyserini.splade import resolve_device, resolve_precision

        return "float32" if part == "queries" else resolve_precision(self._precision, resolve_device(self.device))

    @property
    def idf(self) -> Path | None:
        """The IDF that its vectors depend on: that of a dense mean. SPLADE's vectors are weighted later."""
        config = self.config
        return Path(config.idf) if config.kind == "dense" and config.idf and config.idf_power else None

    def load(self, part: Part) -> "TextEncoder":
        """The encoder of documents or queries."""
        from cai_pyserini.dense import Dense
        from cai_pyserini.idf import Idf
        from cai_pyserini.splade import Splade

        precision = self.precision(part)
        if precision not in self._loaded:
            if self.config.kind == "splade":
                self._loaded[precision] = Splade(self.checkpoint, self.device, precision)
            else:
                weights = Idf.load(self.idf).weights(self.config.idf_power) if self.idf else None
                self._loaded[precision] = Dense(self.checkpoint, self.device, precision, weights)
        return self._loaded[precision]


def encode(
    collection: Collection,
    encoder: LazyEncoder,
    output: Path,
    part: Part = "documents",
    split: str = "test",
    batch_size: int | None = None,
    shard_id: int = 0,
    shard_num: int = 1,
) -> Path:
    """Encode the documents of a collection, or the queries of a split, into a folder of shards.

    Of the shards, this call makes those whose number modulo `shard_num` is `shard_id`.
    """
    from cai_pyserini.vectors import SHARD, Shard, shard_facts, shard_path, write_shard

    queries = part == "queries"
    max_length = encoder.config.max_query_length if queries else encoder.config.max_document_length
    recipe = {
        "stage": "encode",
        "format": 1,
        "part": part,
        "texts": [collection.fingerprint(part), collection.fingerprint(split) if queries else None],
        "checkpoint": checkpoint_digest(encoder.checkpoint),
        "max_length": max_length,
        "precision": encoder.precision(part),
        "kind": encoder.config.kind,
        "idf": [artifact.require_manifest(encoder.idf, "idf")["digest"], encoder.config.idf_power]
        if encoder.idf
        else None,
    }
    if artifact.is_fresh(output, recipe):
        return output
    output.mkdir(parents=True, exist_ok=True)
    artifact.manifest_path(output).unlink(missing_ok=True)

    texts: Iterable[Document] = collection.documents()
    total = collection.size
    if queries:
        topics = collection.topics(split)
        texts, total = (Document(*topic) for topic in topics.items()), len(topics)
    number = -1
    recipe_digest = artifact.digest(recipe)
    with cli.progress(texts, total, f"encode {part}") as bar:
        for number, slice_ in enumerate(batched(texts, SHARD)):
            path = shard_path(output, number)
            if number % shard_num != shard_id or shard_facts(path, recipe_digest):
                bar.update(len(slice_))
                continue
            model = encoder.load(part)
            start = time.perf_counter()
            matrix = model.encode([text.contents for text in slice_], max_length, batch_size, bar.update)
            write_shard(path, Shard([text.id for text in slice_], matrix), recipe_digest, time.perf_counter() - start)

    shards = [shard_facts(shard_path(output, i), recipe_digest) for i in range(number + 1)]
    if all(shards):
        total_of = {key: sum(s[key] for s in shards if s) for key in ("rows", "nonzeros", "seconds")}
        facts = {
            "vectors": total_of["rows"],
            "shards": len(shards),
            "nonzeros": total_of["nonzeros"],
            "seconds": round(total_of["seconds"], 3),
        }
        for stale in sorted(output.glob("[0-9]" * 5 + ".npz"))[len(shards) :]:
            stale.unlink()
        artifact.write_manifest(output, recipe, facts)
    return output


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """--device, --precision and --batch-size."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto: cuda where there is one")
    parser.add_argument(
        "--precision",
        choices=["auto", "float32", "bfloat16"],
        default="auto",
        help="of the products; auto: bfloat16 where the hardware gains from it",
    )
    parser.add_argument("--batch-size", type=int, help="full-length texts a batch; default: 16 on a CPU, 256 on a GPU")


def main() -> None:
    parser = cli.parser(
        "Encode the documents or queries of a collection into raw vectors. Run again to go on where it stopped.",
        "python -m cai_pyserini.encode --collection hpo --encoder splade-tiny --output vectors",
    )
    cli.add_input_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--queries", metavar="SPLIT", help="encode the queries of this split instead of the documents")
    add_model_arguments(parser)
    parser.add_argument("--shard-id", type=int, default=0, help="of --shard-num processes, which one this is, from 0")
    parser.add_argument("--shard-num", type=int, default=1, help="how many processes encode into this folder")
    args = parser.parse_args()
    if not 0 <= args.shard_id < args.shard_num:
        raise cli.CaiError(f"--shard-id {args.shard_id} is not from 0 to {args.shard_num - 1}")
    collection = open_collection(load_index_config(args.collection))
    encoder = LazyEncoder(load_encoder(args.encoder), args.device, args.precision)
    part: Part = "queries" if args.queries else "documents"
    encode(collection, encoder, args.output, part, args.queries or "", args.batch_size, args.shard_id, args.shard_num)
    manifest = artifact.read_manifest(args.output)
    if manifest is None:
        print(f"{args.output}: the shards of process {args.shard_id} of {args.shard_num} are there, others are not yet")
    else:
        nonzeros = manifest["nonzeros"] / manifest["vectors"]
        rate = manifest["vectors"] / max(manifest["seconds"], 1e-3)
        precision = manifest["recipe"]["precision"]
        print(f"{args.output}: {manifest['vectors']:,} vectors, {nonzeros:.1f} non-zeros, {rate:,.0f}/s, {precision}")


if __name__ == "__main__":
    cli.run(main)
