from collections.abc import Mapping

from cai_pyserini.core.flags import COLLECTION, DENSE_METHOD, NO_RAW, OR_URL, THREADS, VECTORS, DenseMethod, Sharded
from cai_pyserini.core.settings import Argv, PathOrUrl, Settings, flag, parse

OUTPUT = flag(help=f"output folder for the index, {OR_URL}")


class ImpactIndex(Sharded):
    """Index JSON vectors, from the impact stage or pyserini.encode, in Lucene.

    With --shard-num, index one shard of the impact stage's files; search treats all shards as one index.
    """

    example = "cai-pyserini stage index impact --input impacts --collection hpo --output index"
    input: PathOrUrl = flag(help=f"folder of JSON vectors, *.jsonl, {OR_URL}")
    output: PathOrUrl = OUTPUT
    collection: str | None = flag(None, "also store the documents of this collection, so that searches can show them")
    forward_index: bool | None = flag(
        None, "also store impacts by document, for a search in two steps (default: as the encoder's settings say)"
    )
    threads: int = THREADS


class Bm25Index(Sharded):
    """Index the text of a collection for BM25, with Anserini.

    With --shard-num, index one shard of it; search treats all shards as one index.
    """

    example = "cai-pyserini stage index bm25 --collection hpo --output index"
    collection: str = COLLECTION
    output: PathOrUrl = OUTPUT
    threads: int = THREADS
    generated: str | None = flag(None, "BEIR folder of generated queries to append to their documents (docT5query)")
    no_raw: bool = NO_RAW


class DenseIndex(Settings):
    """Index dense vectors with Faiss or Lucene.

    Graphs built by several threads, or by Lucene, differ from build to build. With --threads 1, Faiss always builds the
    same index from the same vectors.
    """

    example = "cai-pyserini stage index dense --vectors vectors --method hnsw --output index"
    vectors: PathOrUrl = VECTORS
    output: PathOrUrl = OUTPUT
    method: DenseMethod = DENSE_METHOD
    threads: int = THREADS


def main(argv: Argv = None) -> None:
    kinds: Mapping[str, type[Settings]] = {"impact": ImpactIndex, "bm25": Bm25Index, "dense": DenseIndex}
    settings: ImpactIndex | Bm25Index | DenseIndex = parse(
        kinds, argv, "cai-pyserini stage index", "Write an index that Pyserini opens."
    )

    from cai_pyserini.collections.readers import load_collection
    from cai_pyserini.core import artifact

    shared = settings.model_dump(include={"threads", "shard_id", "shard_num"})
    if isinstance(settings, ImpactIndex):
        from cai_pyserini.indexes.impact_index import index_impacts

        collection = load_collection(settings.collection) if settings.collection else None
        index_impacts(settings.input, settings.output, collection, forward_index=settings.forward_index, **shared)
    elif isinstance(settings, DenseIndex):
        from cai_pyserini.indexes.dense_index import index_dense
        from cai_pyserini.vectors.shards import Vectors

        index_dense(Vectors(settings.vectors), settings.output, settings.method, settings.threads)
    else:
        from cai_pyserini.indexes.text_index import index_bm25

        generated = load_collection(settings.generated) if settings.generated else None
        raw, collection = not settings.no_raw, load_collection(settings.collection)
        index_bm25(collection, settings.output, generated=generated, raw=raw, **shared)
    stats = artifact.require(settings.output, "index").stats
    size = f"{stats['documents']:,} documents, {stats['bytes'] / 1e6:.2f} MB"
    recalls = "".join(f", {name} {value:.3f}" for name, value in stats.items() if name.startswith("recall"))
    print(f"{settings.output}: {size}, in {stats['seconds']:.1f} s{recalls}")
