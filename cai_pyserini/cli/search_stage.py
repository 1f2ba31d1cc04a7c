"""`cai-pyserini stage search`."""

from typing import Literal

from cai_pyserini.core import flags
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse

INDEX = f"folder written by the index stage, {flags.OR_URL}"


class SearchStageSettings(Settings):
    """Search an index with the queries of a collection, and write the TREC run."""

    example = "cai-pyserini stage search --index index --collection hpo --output run.trec"
    index: list[PathOrUrl] = flag(help=f"{INDEX}; repeat it for each shard", repeated=True, min_length=1)
    collection: str = flags.COLLECTION
    output: AnyPath = flags.OUTPUT_RUN
    split: str | None = flags.SPLIT
    strict: bool | None = flags.STRICT
    hits: int | None = flag(None, "hits per query (default: the collection's, usually 1000)", ge=1)
    filter: str | None = flags.FILTER
    encoder: str | None = flag(None, "query encoder; a dense index needs it (default: that of the impact index)")
    query: Literal["splade", "bow"] | None = flags.QUERY
    k1: float | None = flag(None, "k1 of BM25 (default: the collection's, usually 0.9)", ge=0)
    b: float | None = flag(None, "b of BM25 (default: the collection's, usually 0.4)", ge=0, le=1)
    remove_query: Literal["auto", "always", "never"] | None = flags.REMOVE_QUERY
    device: str = flags.DEVICE
    threads: int = flags.THREADS


def main(argv: Argv = None) -> None:
    settings = parse(SearchStageSettings, argv, "cai-pyserini stage search")

    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.artifact import require
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.indexes.cached import index_here
    from cai_pyserini.indexes.retrieve import queries_for, search
    from cai_pyserini.runs.trec import removes_query

    index = [index_here(folder) for folder in settings.index]
    changes = settings.model_dump(include={"k1", "b", "hits", "split", "remove_query", "strict"}, exclude_none=True)
    config = load_index_config(settings.collection).replace(**changes)
    collection, split = open_collection(config), config.split
    qrels = collection.qrels(split) if collection.has_qrels(split) else None
    run = search(
        index,
        queries_for(index[0], collection.topics(split), settings.encoder, settings.query, settings.device),
        settings.output,
        hits=config.hits,
        remove_query=removes_query(config.remove_query, qrels),
        k1=config.k1,
        b=config.b,
        threads=settings.threads,
        passages=bool(config.passages),
        filter=settings.filter,
    )
    stats = require(run, "search").stats
    print(f"{settings.output}: {stats['queries']:,} queries, {stats['ms_per_query']:.2f} ms per query")
