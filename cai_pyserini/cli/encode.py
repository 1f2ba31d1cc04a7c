from typing import Literal, Self

from pydantic import model_validator

from cai_pyserini.core.flags import BATCH_SIZE, COLLECTION, DEVICE, DOCUMENT_PRECISION, ENCODER, OUTPUT_OR_URL, Sharded
from cai_pyserini.core.settings import Argv, PathOrUrl, flag, parse
from cai_pyserini.vectors.cluster import LOCAL


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
    ray: str | None = flag(
        None,
        "share the work among the machines of the Ray cluster whose head is at this host:port; without an address, "
        "among the processors or GPUs of this machine",
        bare=LOCAL,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ray and self.shard_num > 1:
            raise ValueError("--ray distributes the shards itself: leave out --shard-id and --shard-num")
        if self.ray and self.split:
            raise ValueError("--ray is for documents only: leave it out for queries, which are few")
        return self


def main(argv: Argv = None) -> None:
    settings = parse(EncodeSettings, argv, "cai-pyserini stage encode")

    from cai_pyserini.collections.readers import load_collection
    from cai_pyserini.core.artifact import read_manifest
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.encoder import Encoder, Role
    from cai_pyserini.vectors.encode import encode
    from cai_pyserini.vectors.on_ray import encode_on_cluster

    collection, config = load_collection(settings.collection), load_encoder(settings.encoder)
    output, batch_size = settings.output, settings.batch_size
    encoder = Encoder(config, "cpu" if settings.ray else settings.device, settings.precision)
    role: Role = "queries" if settings.split else "documents"
    encoder.require_loadable(role)
    if settings.ray:
        encode_on_cluster(settings.ray, collection, config, output, settings.device, settings.precision, batch_size)
    else:
        shard_id, shard_num, split = settings.shard_id, settings.shard_num, settings.split or ""
        encode(collection, encoder, output, role, split, batch_size, shard_id=shard_id, shard_num=shard_num)
    manifest = read_manifest(output)
    if manifest is None:
        process = f"process {settings.shard_id} of {settings.shard_num}"
        print(f"{output}: the shards of {process} are finished, others are missing")
        return
    # Manifests of earlier versions have only "seconds".
    stats = {"found": 0, "encoding_seconds": manifest.stats["seconds"]} | manifest.stats
    vectors, seconds = stats["vectors"], stats["encoding_seconds"]
    found = f", {stats['found']:,} of them encoded before" if stats["found"] else ""
    print(
        f"{settings.output}: {vectors:,} vectors, {stats['nonzeros'] / vectors:.1f} non-zeros per vector, "
        f"{vectors / max(seconds, 1e-3):,.0f} per second, {manifest.recipe['inputs']['encoder']['precision']}{found}"
    )
