"""Encode the documents of a collection on a Ray cluster, into a folder or object store that its machines share.

This machine reads the documents and sends them to the others, a shard at a time. Existing shards are kept: after an
interruption, or if a machine fails, only the missing ones are encoded.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cai_pyserini.collections.contract import Collection, Document
from cai_pyserini.core import artifact
from cai_pyserini.core.config import LOCATED, EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath
from cai_pyserini.models.device import Precision, resolve_device, resolve_precision
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.vectors import cluster
from cai_pyserini.vectors.encode import Shards, encode, encode_shard
from cai_pyserini.vectors.shards import shard_path, shard_stats


def encode_on_cluster(
    address: str,
    collection: Collection,
    encoder: EncoderConfig,
    output: Path,
    device: str = "auto",
    precision: Precision = "auto",
    batch_size: int | None = None,
) -> Path:
    """Encode the documents of a collection as encode.encode does, on the Ray cluster at `address`. With `device` auto,
    GPUs are used if the cluster has any; this machine, which reads the collection, needs none."""
    encoder = encoder.replace(**{key: _absolute(value) for key in LOCATED if (value := getattr(encoder, key))})
    with cluster.connected(address):
        gpus = device != "cpu" and cluster.has_gpus()
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        if precision == "auto":

            def resolve() -> Precision:
                return resolve_precision("auto", resolve_device(device))

            precision = cluster.on_gpu(resolve) if gpus else resolve()

        def encode_remotely(folder: Path, recipe: artifact.Recipe, shards: Shards) -> Iterator[int]:
            set_up = partial(
                shard_encoder, encoder, device, precision, recipe=recipe, batch_size=batch_size, output=folder
            )
            for number in cluster.share(set_up, shards, gpus):
                if not isinstance(folder, StorePath) and shard_path(folder, number) not in folder.iterdir():
                    raise _not_shared(folder)
                yield number

        local = Encoder(encoder, "cpu", precision)
        return encode(collection, local, output.absolute(), encode_remotely=encode_remotely)


def shard_encoder(
    config: EncoderConfig,
    device: str,
    precision: Precision,
    recipe: artifact.Recipe,
    batch_size: int | None,
    output: Path,
) -> cluster.Work[Sequence[Document]]:
    """Return a function that encodes a shard, given its number and documents. Paths are the same on all machines."""
    encoder, digest = Encoder(config, device, precision), artifact.digest(recipe)
    if encoder.identity("documents") != recipe["inputs"]["encoder"]:
        raise CaiError(f"{encoder.checkpoint} is not the same on all machines")

    def encode_documents(number: int, documents: Sequence[Document]) -> None:
        if not (output / artifact.UNFINISHED).exists():
            raise _not_shared(output)
        path = shard_path(output, number)
        if not shard_stats(path, digest):  # a machine may have failed after writing it
            encode_shard(encoder, "documents", documents, path, digest, batch_size, lambda count: None)

    return encode_documents


def _absolute(value: str) -> str:
    """The absolute path of an existing file or folder; other values, such as hub ids, stay as they are."""
    return str(Path(value).absolute()) if Path(value).exists() else value


def _not_shared(folder: Path) -> CaiError:
    return CaiError(f"{folder} is not the same folder on all machines: choose an output that they share")
