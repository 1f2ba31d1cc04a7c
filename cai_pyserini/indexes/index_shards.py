"""Shards of an index: each has some of the documents of a collection, and all are searched as one index.

Scores equal those of the whole index: impacts are computed before they are divided, and Lucene adds up BM25's
statistics, numbers of documents and words, over all shards that are opened together.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm

MOST_DOCUMENTS = 2_147_483_519  # limit of a Lucene index, and of shards that are opened together (IndexWriter.MAX_DOCS)

type Index = Path | Sequence[Path]  # the folder of an index, or those of all its shards


def shard_settings(shard_id: int, shard_num: int) -> dict[str, Any]:
    """The recipe settings of a shard; none for a whole index."""
    return {"shard": [shard_id, shard_num]} if shard_num > 1 else {}


def require_room(documents: int, place: object) -> None:
    """Raise CaiError for more documents than an index or a shard can hold."""
    if documents > MOST_DOCUMENTS:
        raise CaiError(
            f"{place} has {documents:,} documents for one Lucene index, which can hold {MOST_DOCUMENTS:,}: divide it "
            "into more shards, and search each alone"
        )


def folders(index: Index) -> list[Path]:
    """The folders of an index: one, or one per shard."""
    return [index] if isinstance(index, Path) else [*index]


def require_index(index: Index, *stages: str) -> artifact.Manifest:
    """The manifest of an index, made by one of `stages` (default: index); for shards, the first one's, with the recipe
    of the whole index.

    Raises CaiError for a folder that is not an index, and for folders that are not all shards of one index.
    """
    manifests = [(folder, artifact.require(folder, *(stages or ["index"]))) for folder in folders(index)]
    first, manifest = manifests[0]
    if len(manifests) == 1:
        return manifest
    recipe = manifest.recipe
    shards: dict[int, Path] = {}
    for folder, other in manifests:
        if "shard" not in other.recipe["settings"]:
            raise CaiError(f"{folder} is a whole index: only the shards of one index can be searched together")
        number, count = other.recipe["settings"]["shard"]
        if _without_shard(recipe) != _without_shard(other.recipe) or recipe["settings"]["shard"][1] != count:
            raise CaiError(
                f"{folder} and {first} are not shards of one index: they were made of different documents, or with "
                "different encoders, statistics or settings"
            )
        if number in shards:
            raise CaiError(f"{folder} and {shards[number]} are the same shard: give each shard once")
        shards[number] = folder
    if missing := set(range(count)) - shards.keys():
        raise CaiError(f"shard {min(missing)} is missing: give all {count} shards of the index")
    whole = _without_shard(recipe)
    return replace(manifest, recipe=whole, digest=artifact.digest(whole))


def by_index(places: Sequence[Path]) -> list[list[Path]]:
    """The folders of each index: its shards, or the only one, in the order of the first ones."""
    together: dict[str, list[Path]] = {}
    for number, folder in enumerate(places):
        manifest = artifact.read_manifest(folder)
        is_shard = manifest is not None and "shard" in manifest.recipe["settings"]
        index = artifact.digest(_without_shard(manifest.recipe)) if manifest and is_shard else str(number)
        together.setdefault(index, []).append(folder)
    return [*together.values()]


def _without_shard(recipe: artifact.Recipe) -> artifact.Recipe:
    """The recipe of a shard's whole index."""
    return recipe | {"settings": {key: value for key, value in recipe["settings"].items() if key != "shard"}}


def open_reader(index: Index) -> Any:
    """A Lucene reader of an index or all its shards. Raises CaiError if documents are missing."""
    with jvm.using_java("opening an index"):
        open_one = jvm.java_class("io.anserini.index.IndexReaderUtils").getReader
        readers = []
        for folder in folders(index):
            with jvm.using_java(f"opening {folder}"):
                readers.append(open_one(str(folder.absolute())))  # the JVM has the working directory it began in
            documents = artifact.require(folder, "index").stats["documents"]
            artifact.require_count(folder, readers[-1].numDocs(), documents)
        reader = jvm.java_class("org.apache.lucene.index.MultiReader")(*readers)
        return jvm.start().cast("org.apache.lucene.index.IndexReader", reader)  # or pyjnius picks the wrong methods
