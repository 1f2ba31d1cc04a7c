"""Encode the documents of a collection on the machines of a Ray cluster, into a folder or object store that they share.

A machine encodes one shard after another, and reads only their documents. Existing shards are kept: after an
interruption, or if a machine fails, only missing ones are encoded.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.collection.slices import Slice, SliceReader, cut
from cai_pyserini.core import artifact, cluster
from cai_pyserini.core.config import LOCATED, EncoderConfig, IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encode import encode_shard, finished_stats, recipe
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.models.device import Precision, resolve_device, resolve_precision
from cai_pyserini.vectors.shards import NAMES, SHARD, shard_path, shard_stats, stats_of_shards


def encode_on_cluster(
    address: str,
    collection: IndexConfig,
    encoder: EncoderConfig,
    output: Path,
    device: str = "auto",
    precision: Precision = "auto",
    batch_size: int | None = None,
) -> Path:
    """Encode the documents of a collection as encode.encode does, on the Ray cluster at `address`.

    `device` auto uses GPUs if the cluster has any. This machine, which checks the collection, does not need one.
    """
    output = output.absolute()
    collection = collection.replace(source=_absolute(collection.source))
    encoder = encoder.replace(**{key: _absolute(value) for key in LOCATED if (value := getattr(encoder, key))})
    opened = open_collection(collection)
    with cluster.connected(address):
        gpus = device != "cpu" and cluster.has_gpus()
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        if precision == "auto":
            ask = partial(_precision, device)
            precision = cluster.on_gpu(ask) if gpus else ask()
        opened_encoder = Encoder(encoder, "cpu", precision)
        made_from = recipe(opened, opened_encoder)
        digest = artifact.digest(made_from)

        def write(folder: Path) -> artifact.Stats | None:
            slices = cut(opened, SHARD)
            paths = [shard_path(folder, number) for number in range(len(slices))]
            # Asked for single files, NFS would remember that they are missing.
            there = sorted(set(folder.iterdir()).intersection(paths))
            done = dict(zip(there, stats_of_shards(there, digest), strict=True))
            missing = [number for number, path in enumerate(paths) if not done.get(path)]
            settings = (encoder, device, precision, made_from, batch_size)
            set_up = partial(shard_encoder, collection, slices, *settings, folder)
            total = sum(part.size for part in slices)
            with progress(range(0), total, "encode documents") as bar:
                bar.update(total - sum(slices[number].size for number in missing))
                for number in cluster.share(set_up, missing, gpus):
                    if not isinstance(folder, StorePath) and paths[number] not in folder.iterdir():
                        raise _not_shared(folder)
                    bar.update(slices[number].size)
            return finished_stats(folder, len(slices), digest, opened_encoder, "documents")

        return artifact.make(output, made_from, write, resumable=True, names=NAMES)


def shard_encoder(
    collection: IndexConfig,
    slices: Sequence[Slice],
    encoder: EncoderConfig,
    device: str,
    precision: Precision,
    recipe: artifact.Recipe,
    batch_size: int | None,
    output: Path,
) -> cluster.Work:
    """A function for one of the machines, which encodes the slice with a number. Paths are the same on all machines."""
    reader, opened = SliceReader(open_collection(collection)), Encoder(encoder, device, precision)
    if opened.identity("documents") != recipe["inputs"]["encoder"]:
        raise CaiError(f"{opened.checkpoint} is not the same on all machines")
    digest = artifact.digest(recipe)

    def encode_slice(number: int) -> None:
        if not (output / artifact.UNFINISHED).exists():
            raise _not_shared(output)
        path = shard_path(output, number)
        if not shard_stats(path, digest):  # else a machine that failed afterwards has written it
            documents = reader.read(slices[number])
            encode_shard(opened, "documents", documents, path, digest, batch_size, lambda count: None)

    return encode_slice


def _absolute(value: str) -> str:
    """The absolute path of a file or folder; names of other things stay as they are."""
    return str(Path(value).absolute()) if Path(value).exists() else value


def _precision(device: str) -> Precision:
    return resolve_precision("auto", resolve_device(device))


def _not_shared(folder: Path) -> CaiError:
    return CaiError(f"{folder} is not the same folder on all machines: choose an --output that they share")
