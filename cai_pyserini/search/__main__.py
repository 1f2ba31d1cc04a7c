from collections.abc import Sequence
from typing import ClassVar, Literal

from cai_pyserini.core import terminal
from cai_pyserini.core.flags import COLLECTION, DEVICE, OUTPUT_RUN, SPLIT, STRICT, THREADS
from cai_pyserini.core.settings import AnyPath, Settings, flag, parse


class SearchSettings(Settings):
    """Search an index with the queries of a collection and write a TREC run."""

    example: ClassVar[str] = "python -m cai_pyserini.search --index index --collection hpo --output run.trec"
    index: AnyPath = flag(help="folder written by the index stage")
    collection: str = COLLECTION
    output: AnyPath = OUTPUT_RUN
    split: str | None = SPLIT
    strict: bool | None = STRICT
    encoder: str | None = flag(
        None, "query encoder; required for a dense index (default: the one an impact index was built with)"
    )
    query: Literal["splade", "bow"] | None = flag(
        None, "SPLADE queries, or bags of words, which need no model (default: the encoder's setting)"
    )
    device: str = DEVICE
    feedback: AnyPath | None = flag(
        None, "expand SPLADE queries by feedback: folder with the raw vectors that the index was made from"
    )
    feedback_documents: int = flag(10, "with --feedback: use this many best documents of a first search", ge=1)
    feedback_weight: float = flag(0.25, "with --feedback: their share of the new query", gt=0, lt=1)
    feedback_terms: int = flag(64, "with --feedback: terms of the new query, at least as many as it has", ge=1)
    k1: float | None = flag(None, "k1 of BM25 (default: the collection's, usually 0.9)", ge=0)
    b: float | None = flag(None, "b of BM25 (default: the collection's, usually 0.4)", ge=0, le=1)
    hits: int | None = flag(None, "hits per query (default: the collection's, usually 1000)", ge=1)
    remove_query: Literal["auto", "always", "never"] | None = flag(
        None,
        "whether to remove a hit that has the id of its query; auto: if the qrels judge no such hit relevant "
        "(default: the collection's, usually auto)",
    )
    threads: int = THREADS


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(SearchSettings, argv, "python -m cai_pyserini.search")

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.artifact import require
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.search.feedback import Feedback
    from cai_pyserini.search.search import queries_for, removes_query, search

    changes = settings.model_dump(include={"k1", "b", "hits", "split", "remove_query", "strict"}, exclude_none=True)
    config = load_index_config(settings.collection).replace(**changes)
    collection = open_collection(config)
    qrels = collection.qrels(config.split) if collection.has_qrels(config.split) else None
    search(
        settings.index,
        queries_for(settings.index, collection.topics(config.split), settings.encoder, settings.query, settings.device),
        settings.output,
        hits=config.hits,
        remove_query=removes_query(config.remove_query, qrels),
        k1=config.k1,
        b=config.b,
        threads=settings.threads,
        feedback=Feedback(
            settings.feedback, settings.feedback_documents, settings.feedback_weight, settings.feedback_terms
        )
        if settings.feedback
        else None,
        passages=config.passages is not None,
    )
    stats = require(settings.output, "search").stats
    print(f"{settings.output}: {stats['queries']:,} queries, {stats['ms_per_query']:.2f} ms per query")


if __name__ == "__main__":
    terminal.run(main)
