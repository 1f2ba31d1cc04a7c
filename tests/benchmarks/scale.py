import sys
from pathlib import Path
from typing import Any


def synthesize(run: str, documents: int, folder: str) -> dict[str, Any]:
    """Write a collection of `documents` documents, in BEIR's format, and their raw vectors.

    Each is a document of the run's collection with half of another: of its words in the text, of its terms in the
    vector.
    """
    import json

    import numpy as np
    from scipy.sparse import csr_matrix, vstack

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.encode.shards import SHARD, Shard, Vectors, shard_path, write_shard

    texts = [document.contents.split() for document in open_collection(load_index_config("hpo")).documents()]
    source = Vectors(Path(run, "vectors", "documents"))
    vectors = vstack([shard.vectors for shard in source], format="csr")
    recipe = source.manifest.recipe | {"documents": documents}
    draw = np.random.default_rng(documents)

    def write(output: Path) -> artifact.Stats:
        nonzeros = shards = 0
        with Path(folder, "corpus.jsonl").open("w", encoding="utf-8") as corpus:
            for shards, start in enumerate(range(0, documents, SHARD), 1):
                ids = [f"d{number:07d}" for number in range(start, min(start + SHARD, documents))]
                whole, half = draw.integers(len(texts), size=(2, len(ids)))
                for id, a, b in zip(ids, whole, half, strict=True):
                    text = " ".join(texts[a] + texts[b][: len(texts[b]) // 2])
                    corpus.write(json.dumps({"_id": id, "text": text}) + "\n")
                other: csr_matrix = vectors[half]
                other.data[draw.random(other.nnz) < 0.5] = 0
                made = vectors[whole].maximum(other)
                made.eliminate_zeros()
                nonzeros += made.nnz
                write_shard(shard_path(output, shards - 1), Shard(ids, made), artifact.digest(recipe), 0.0, 1)
        return {"vectors": documents, "shards": shards, "nonzeros": nonzeros}

    Path(folder).mkdir(parents=True)
    artifact.make(Path(folder, "vectors"), recipe, write)
    return {"documents": documents}


if __name__ == "__main__":
    print(synthesize(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
