"""Index impacts with Lucene.

Several processes index some of the files each, and the parts are merged in order to a single segment, so the index does
not depend on the number of processes. Threads would not help: calls into Java go one at a time, see indexes.jvm.
"""

import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, batched, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.values import SeenIds
from cai_pyserini.core import artifact
from cai_pyserini.core.config import encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import folder_bytes, write_text
from cai_pyserini.core.identity import same_documents
from cai_pyserini.core.processes import processes_for, spread
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.fields import add_metadata
from cai_pyserini.indexes.forward_index import ForwardWriter, merge_forward
from cai_pyserini.indexes.index_shards import require_room, shard_settings
from cai_pyserini.indexes.writer import document_adder, ids_are_unique, merge, raw_documents, writing
from cai_pyserini.vectors.json_vectors import WRITERS, parse_checked, read_vectors

MIN_BYTES = 100_000_000  # of JSON vectors per process, as its JVM takes seconds to warm up
COPIED_STATS = ("document_scale", "settings", "encoder", "documents_digest", "made_from")  # from the impacts' manifest
BATCH = 1024  # documents per step of the progress bar


class Part(NamedTuple):
    """Some of the files, and the folders for their index, and for their forward index, if there is one."""

    files: list[Path]
    folder: Path
    forward: Path | None


def index_impacts(
    impacts: Path,
    output: Path,
    collection: Collection | None = None,
    threads: int = 0,
    *,
    shard_id: int = 0,
    shard_num: int = 1,
    forward_index: bool | None = None,
) -> Path:
    """Index JSON vectors, from the impact stage or any other tool; with `collection`, also store its documents.

    With `shard_num`, indexes only files whose number modulo `shard_num` is `shard_id`. Runs at most `threads` processes
    (0: one per processor). `forward_index` overrides the encoder's.

    Raises CaiError for a line that is not {"id": string, "vector": {term: positive integer, …}}, for a document that
    the collection lacks or has in another order, for more shards than files, and for an unfinished or damaged folder of
    the impact stage.
    """
    ours = artifact.require_if_ours(impacts, *WRITERS)
    files = _files(impacts, ours, shard_num)
    inputs: dict[str, Any] = {"impacts": ours.digest if ours else [artifact.file_digest(file) for file in files]}
    if collection:
        inputs |= {"documents": collection.fingerprint("documents"), "metadata": collection.metadata_fingerprint}
    config = load_encoder(str(impacts / "encoder.yaml")) if ours else None
    if forward_index is None and config:
        forward_index = config.forward_index
    optional = shard_settings(shard_id, shard_num) | ({"forward_index": True} if forward_index else {})
    recipe = artifact.recipe("index", inputs, kind="impact", **optional)
    whole_stats = ours.stats if ours and shard_num == 1 else {}
    if collection and ours and not same_documents(ours.stats["documents_digest"], collection.documents_digest):
        raise CaiError(f"{impacts} was made of other documents than {collection.name} has now: make its vectors again")

    def write(folder: Path) -> artifact.Stats:
        start = time.perf_counter()
        parts = _divide(files[shard_id::shard_num], folder, bool(forward_index), threads)
        documents = _write_index(parts, folder, whole_stats.get("vectors"), partial(_write_part, collection))
        artifact.require_count(impacts, documents, whole_stats.get("vectors", documents))
        metadata = add_metadata(folder, collection) if collection else {}
        if forward := [part.forward for part in parts if part.forward]:
            merge_forward(forward, folder)
        stats: artifact.Stats = {
            "kind": "impact",
            "raw": collection is not None,
            "documents": documents,
            "seconds": round(time.perf_counter() - start, 3),
            **metadata,
        }
        if ours and config:  # needed to encode queries for this index, and to scale its scores
            write_text(folder / "encoder.yaml", encoder_yaml(config, output))
            stats |= {"query_scale": config.query_scale}
            stats |= {key: ours.stats[key] for key in COPIED_STATS}
            if whole_stats:
                stats["nonzeros"] = whole_stats["nonzeros"]
        return stats | {"bytes": folder_bytes(folder)}

    artifact.make(output, recipe, write)
    if config:
        artifact.renew(output / "encoder.yaml", encoder_yaml(config, output))
    return output


def _files(impacts: Path, ours: artifact.Manifest | None, shard_num: int) -> list[Path]:
    """The files of JSON vectors. Raises CaiError if there are none, and for more shards or documents than can be."""
    paths = (impacts / name for name in ours.files) if ours else impacts.glob("*.jsonl")
    files = sorted(path for path in paths if path.suffix == ".jsonl")
    if not files:
        raise CaiError(f"{impacts}: no *.jsonl; make JSON vectors with `cai-pyserini stage impact`")
    if shard_num > 1 and not ours:
        raise CaiError(f"{impacts} was not made by `cai-pyserini stage impact`, and cannot be indexed in shards")
    if len(files) < shard_num:
        raise CaiError(f"{impacts} has {len(files)} files, too few for {shard_num} shards")
    if ours:
        require_room(ours.stats["vectors"] // shard_num, impacts)
    return files


def _write_index(
    parts: list[Part], folder: Path, total: int | None, write_part: Callable[[Part], Generator[int]]
) -> int:
    """Write a Lucene index of JSON vectors with one segment, and the parts of a forward index, and return the number of
    documents."""
    files = [file for part in parts for file in part.files]
    with spread(write_part, parts) as counts:
        added = (document for count in counts for document in range(count))
        documents = sum(1 for _ in progress(added, total, "index impacts"))
    if not documents:
        raise CaiError(f"{files[0].parent}: the JSON vectors are empty")
    with jvm.using_java(f"indexing {files[0].parent}"):
        merge([part.folder for part in parts], folder)
        if not ids_are_unique(folder):
            raise _duplicate_id(files)
    return documents


def _divide(files: list[Path], folder: Path, forward_index: bool, threads: int) -> list[Part]:
    """Parts of consecutive files of about equal size, one per process."""
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes) + 1
    count = processes_for(total, MIN_BYTES, threads)
    middles = [end - size // 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    numbered = zip([middle * count // total for middle in middles], files, strict=True)
    groups = [[file for _, file in group] for _, group in groupby(numbered, itemgetter(0))]
    return [
        Part(
            group,
            folder / f"part {number}" if len(groups) > 1 else folder,
            folder / f"forward {number}" if forward_index else None,
        )
        for number, group in enumerate(groups)
    ]


def _write_part(collection: Collection | None, part: Part) -> Generator[int]:
    """Write the index of a part, and yield the number of documents of each batch."""
    using_java = partial(jvm.using_java, f"indexing {part.files[0].parent}")
    with writing(part.folder) as writer, ForwardWriter(part.forward) if part.forward else nullcontext() as forward:
        with using_java():
            add = document_adder(writer, raw_documents(collection) if collection else None)
        for batch in batched(read_vectors(part.files), BATCH):
            with using_java():
                for where, line, id, contents in batch:
                    try:
                        add(id, contents)
                    except jvm.start().JavaException:
                        parse_checked(line, where)  # raises a clear error if the line is at fault
                        raise
            if forward:
                forward.add([id for _, _, id, _ in batch], [contents for *_, contents in batch])
            yield len(batch)


def _duplicate_id(files: list[Path]) -> CaiError:
    """The error for the first duplicate id."""
    seen = SeenIds()
    where, id = next((where, id) for where, _, id, _ in read_vectors(files) if seen.add(id))
    return CaiError(f"{where}: document id {id!r} occurs twice")
