"""Index impacts with Lucene, from files of JSON vectors, of which each process takes some."""

from collections.abc import Generator
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, batched, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.values import SeenIds
from cai_pyserini.core import artifact
from cai_pyserini.core.config import encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import folder_bytes, write_text
from cai_pyserini.core.identity import same_documents
from cai_pyserini.core.processes import processes_for
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.forward_index import merge_forward, writing_forward
from cai_pyserini.indexes.writer import (
    BATCH,
    DocumentAdder,
    Part,
    ids_are_unique,
    raw_documents,
    stats_of,
    write_index,
    writing,
)
from cai_pyserini.vectors.json_vectors import WRITERS, parse_checked, read_vectors

MIN_BYTES = 100_000_000  # of JSON vectors per process, as its JVM takes seconds to warm up
COPIED_STATS = ("document_scale", "settings", "encoder", "documents_digest", "made_from")  # from the impacts' manifest


def index_impacts(
    impacts: Path,
    output: Path,
    collection: Collection | None = None,
    threads: int = 0,
    *,
    forward_index: bool | None = None,
) -> Path:
    """Index JSON vectors, from the impact stage or any other tool; with `collection`, also store its documents.

    Runs at most `threads` processes (0: one per processor). `forward_index` overrides the encoder's. Raises CaiError
    for a line that is not {"id": string, "vector": {term: positive integer, …}}, for a document that the collection
    lacks or has in another order, and for an unfinished or damaged folder of the impact stage.
    """
    ours = artifact.require_if_ours(impacts, *WRITERS)
    paths = [impacts / name for name in ours.files] if ours else impacts.glob("*.jsonl")
    if not (files := sorted(path for path in paths if path.suffix == ".jsonl")):
        raise CaiError(f"{impacts}: no *.jsonl; make JSON vectors with `cai-pyserini stage impact`")
    inputs: dict[str, Any] = {"impacts": ours.digest if ours else [artifact.file_digest(file) for file in files]}
    if collection:
        inputs |= {"documents": collection.fingerprint("documents"), "metadata": collection.metadata_fingerprint}
    config = load_encoder(str(impacts / "encoder.yaml")) if ours else None
    if forward_index is None and config:
        forward_index = config.forward_index
    recipe = artifact.recipe("index", inputs, kind="impact", forward_index=forward_index)
    total = ours.stats["vectors"] if ours else None
    if collection and ours and not same_documents(ours.stats["documents_digest"], collection.documents_digest):
        raise CaiError(f"{impacts} was made of other documents than {collection.name} has now: make its vectors again")

    def write(folder: Path) -> artifact.Stats:
        groups, kinds = _divided(files, threads), collection.metadata if collection else {}
        write_part = partial(_write_part, collection, groups, bool(forward_index))
        documents = write_index(folder, len(groups), write_part, kinds, total=total, label="index impacts")
        if not documents:
            raise CaiError(f"{impacts}: the JSON vectors are empty")
        if total is not None:
            artifact.require_count(impacts, documents, total)
        if not ids_are_unique(folder):
            raise _duplicate_id(files)
        if forward_index:
            merge_forward([folder / f"forward {number}" for number in range(len(groups))], folder)
        stats: artifact.Stats = {"kind": "impact", "raw": collection is not None, "documents": documents}
        stats |= stats_of(collection) if collection else {}
        if ours and config:  # needed to encode queries for this index, and to scale its scores
            write_text(folder / "encoder.yaml", encoder_yaml(config, output))
            stats |= {"query_scale": config.query_scale, "nonzeros": ours.stats["nonzeros"]}
            stats |= {key: ours.stats[key] for key in COPIED_STATS}
        return stats | {"bytes": folder_bytes(folder)}

    artifact.make(output, recipe, write)
    if config:
        artifact.renew(output / "encoder.yaml", encoder_yaml(config, output))
    return output


def _divided(files: list[Path], threads: int) -> list[list[Path]]:
    """Groups of consecutive files of about equal size, one per process."""
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes) + 1
    count = processes_for(total, MIN_BYTES, threads)
    middles = [end - size // 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    numbered = zip([middle * count // total for middle in middles], files, strict=True)
    return [[file for _, file in group] for _, group in groupby(numbered, itemgetter(0))]


def _write_part(
    collection: Collection | None, groups: list[list[Path]], forward_index: bool, part: Part
) -> Generator[int]:
    """Write the index of a group of files, with its forward index, and yield the number of documents of each batch."""
    files = groups[part.number]
    using_java = partial(jvm.using_java, f"indexing {files[0].parent}")
    raw_of = raw_documents(collection) if collection else None
    with (
        writing(part.folder) as writer,
        writing_forward(part.whole / f"forward {part.number}") if forward_index else nullcontext() as add_forward,
    ):
        with using_java():
            kinds = collection.metadata if collection else {}
            add = DocumentAdder(writer, kinds, is_text=False, stores_raw=collection is not None)
        for batch in batched(read_vectors(files), BATCH):
            with using_java():
                for where, line, id, contents in batch:
                    try:
                        add(id, contents, raw_of(id) if raw_of else "")
                    except jvm.start().JavaException:
                        parse_checked(line, where)  # raises a clear error if the line is at fault
                        raise
            if add_forward:
                add_forward([id for _, _, id, _ in batch], [contents for *_, contents in batch])
            yield len(batch)


def _duplicate_id(files: list[Path]) -> CaiError:
    """The error for the first duplicate id."""
    seen = SeenIds()
    where, id = next((where, id) for where, _, id, _ in read_vectors(files) if seen.add(id))
    return CaiError(f"{where}: document id {id!r} occurs twice")
