"""Index dense vectors with Faiss, for exact search by dot product."""

import struct
from pathlib import Path

import faiss

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.vectors.shards import Vectors

COUNT = struct.Struct("<Q")  # of floats: the last field of the header


def index_dense(vectors: Vectors, output: Path) -> Path:
    """Index dense vectors in the format of Pyserini's FaissSearcher: a file `index` and a file `docid`.

    The vectors go to the file shard by shard. Raises CaiError for sparse vectors.
    """
    if vectors.kind != "dense":
        raise CaiError(f"{vectors.folder} has sparse vectors: make impacts of them, and index those")

    def write(folder: Path) -> artifact.Stats:
        empty = faiss.IndexFlatIP(width := vectors.width)
        empty.ntotal = len(vectors)
        header = faiss.serialize_index(empty).tobytes()[: -COUNT.size] + COUNT.pack(len(vectors) * width)
        with (folder / "docid").open("w", encoding="utf-8") as ids, (folder / "index").open("wb") as file:
            file.write(header)
            for shard in progress(vectors, vectors.shards, f"index {output.name}", "shard"):
                file.write(shard.vectors.astype("<f4").tobytes())
                ids.writelines(f"{id}\n" for id in shard.ids)
            if file.tell() != len(header) + 4 * len(vectors) * width:
                raise CaiError(f"{vectors.folder} has not the {len(vectors):,} vectors of its manifest: encode again")
        return {
            "kind": "dense",
            "raw": False,
            "documents": len(vectors),
            "bytes": files.folder_bytes(folder),
            "checkpoint": vectors.encoder["checkpoint"],
            "idf": vectors.encoder["idf"],
        }

    recipe = artifact.recipe("index", {"vectors": vectors.manifest.digest}, kind="dense")
    return artifact.make(output, recipe, write)
