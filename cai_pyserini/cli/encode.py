from typing import Literal

from cai_pyserini.core.flags import BATCH_SIZE, COLLECTION, DEVICE, DOCUMENT_PRECISION, ENCODER, OUTPUT_OR_URL, Sharded
from cai_pyserini.core.settings import Argv, PathOrUrl, flag, parse


class EncodeSettings(Sharded):
    """Encode the documents or queries of a collection into raw vectors.

    If interrupted, run the same command again: it continues with the first missing shard.
    """

    example = "cai-pyserini stage encode --collection hpo --encoder splade-tiny --output vectors"
    collection: str = COLLECTION
    encoder: str = ENCODER
    output: PathOrUrl = OUTPUT_OR_URL
    split: str | None = flag(None, "encode the queries of this split, such as test, instead of the documents")
    device: str = DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = DOCUMENT_PRECISION
    batch_size: int | None = BATCH_SIZE


def main(argv: Argv = None) -> None:
    settings = parse(EncodeSettings, argv, "cai-pyserini stage encode")

    from cai_pyserini.collections.readers import load_collection
    from cai_pyserini.core.artifact import read_manifest
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.encoder import Encoder, Role
    from cai_pyserini.vectors.encode import encode

    collection, config = load_collection(settings.collection), load_encoder(settings.encoder)
    encoder, output = Encoder(config, settings.device, settings.precision), settings.output
    role: Role = "queries" if settings.split else "documents"
    encoder.require_loadable(role)
    options = settings.model_dump(include={"batch_size", "shard_id", "shard_num"})
    encode(collection, encoder, output, role, split=settings.split or "", **options)
    manifest = read_manifest(output)
    if manifest is None:
        process = f"process {settings.shard_id} of {settings.shard_num}"
        print(f"{output}: the shards of {process} are finished, others are missing")
        return
    stats, vectors, seconds = manifest.stats, manifest.stats["vectors"], manifest.stats["encoding_seconds"]
    found = f", {stats['found']:,} of them encoded before" if stats["found"] else ""
    print(
        f"{settings.output}: {vectors:,} vectors, {stats['nonzeros'] / vectors:.1f} non-zeros per vector, "
        f"{vectors / max(seconds, 1e-3):,.0f} per second, {manifest.recipe['inputs']['encoder']['precision']}{found}"
    )
