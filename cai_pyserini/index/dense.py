"""Index dense vectors with Faiss, for exact search by dot product."""

from pathlib import Path

import faiss

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.shards import Vectors


def index_dense(vectors: Vectors, output: Path) -> Path:
    """Index dense vectors in the format of Pyserini's FaissSearcher: a file `index` and a file `docid`.

    Raises CaiError for sparse vectors.
    """
    if vectors.kind != "dense":
        raise CaiError(f"{vectors.folder} has sparse vectors: make impacts of them, and index those")

    def write(folder: Path) -> artifact.Stats:
        index = faiss.IndexFlatIP(vectors.width)
        with (folder / "docid").open("w", encoding="utf-8") as ids:
            for shard in progress(vectors, vectors.shards, f"index {output.name}", "shard"):
                index.add(shard.vectors)
                ids.writelines(f"{id}\n" for id in shard.ids)
        faiss.write_index(index, str(folder / "index"))
        return {
            "documents": len(vectors),
            "bytes": artifact.folder_bytes(folder),
            "checkpoint": vectors.manifest.recipe["checkpoint"],
        }

    recipe = {**artifact.made_by(__name__, "index"), "kind": "dense", "source": vectors.manifest.digest}
    return artifact.make(output, recipe, write)
