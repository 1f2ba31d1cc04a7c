"""The search stage: write the TREC run of an index and queries, and the time per query."""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from cai_pyserini.core import artifact
from cai_pyserini.core.config import BM25, Bm25Parameters, EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import processors
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.engines import SearchOptions, kind_of, open_searcher
from cai_pyserini.indexes.filters import BadFilter, parse_filter
from cai_pyserini.indexes.passages import FIRST
from cai_pyserini.indexes.passages import search_many as search_passages
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.trec import Ranking, run_of, top, without_query, write_parts
from cai_pyserini.vectors.queries import Queries, Query, Representation, WordQueries

WARM_UP = 256  # queries to search before timing, so that the JVM compiles the code

type SearchMany = Callable[[dict[str, Query], int, int], Iterator[dict[str, Ranking]]]  # of queries, hits and threads

logger = logging.getLogger(__name__)


def search(
    index: Path,
    queries: Queries,
    output: Path,
    *,
    hits: int = 1000,
    remove_query: bool = False,
    bm25: Bm25Parameters = BM25,
    threads: int = 0,
    tag: str = "cai_pyserini",
    passages: bool = False,
    filter: str | None = None,
) -> Path:
    """Write the run of all queries, with at most `hits` documents per query.

    `filter` limits the documents, see indexes.filters. `remove_query` removes the hit with the query's own id. With
    `passages`, the index holds passages and the run documents, each with the score of its best passage. Raises CaiError
    if the queries' encoder is not the one that the index was built with, and BadFilter for a filter on an index without
    metadata.
    """
    manifest = artifact.require(index, "index")
    if queries.encoder:
        require_same_encoder(index, queries.encoder, queries.words.config if queries.words else None)
    inputs = {"index": manifest.digest, "queries": queries.identity}
    depth = hits + remove_query
    candidates = queries.two_step and queries.two_step.candidates(depth * (FIRST if passages else 1))
    settings: dict[str, Any] = bm25._asdict() if manifest.stats["kind"] == "bm25" else {}
    settings |= {"hits": hits, "remove_query": remove_query, "passages": passages, "filter": filter}
    recipe = artifact.recipe("search", inputs, manifest.stats["kind"], candidates=candidates, **settings)

    def write(path: Path) -> artifact.Stats:
        searcher = open_searcher(index, SearchOptions(bm25, queries.two_step))
        if filter is not None:
            if not searcher.can_filter:
                raise BadFilter(f"{index} has no metadata: filter a system of a run folder that has a Lucene index too")
            searcher = searcher.filtered(parse_filter(filter, searcher.metadata))
        encoded, seconds = queries.for_search(searcher.query_scale)

        def parts() -> Iterator[Rankings]:
            nonlocal seconds
            search_many = partial(search_passages, searcher) if passages else searcher.search_many
            for run, search_seconds in timed_search(search_many, encoded, depth, threads, f"search {tag}"):
                seconds += search_seconds
                yield top(without_query(run), hits) if remove_query else run

        write_parts(parts(), path, tag)
        searcher.close()
        stats = {"queries": len(queries.topics), "ms_per_query": 1000 * seconds / len(queries.topics)}
        return stats | {"documents_digest": manifest.stats.get("documents_digest")}

    return artifact.make(output, recipe, write, folder=False)


def word_queries(config: EncoderConfig) -> WordQueries | None:
    """How queries get words for a joint index with this encoder; None for other indexes."""
    return WordQueries(Analyzer(config.joint.language), config) if config.joint else None


def queries_for(
    index: Path,
    topics: dict[str, str],
    encoder: str | EncoderConfig | None = None,
    query: Representation | None = None,
    device: str = "auto",
) -> Queries:
    """The topics in the representation that an index takes. `encoder` defaults to an impact index's own; raises
    CaiError for a dense index without one."""
    manifest = artifact.require(index, "index", "export")
    kind, query = kind_of(index, manifest), query or manifest.stats.get("query")
    if kind == "bm25":
        return Queries(topics)
    if kind == "dense" and not encoder:
        raise CaiError(f"{index} is a dense index, which does not name the encoder of its queries: give one")
    config = encoder if isinstance(encoder, EncoderConfig) else load_encoder(encoder or str(index))
    config = config.replace(kind="dense") if kind == "dense" else config  # like --dense of beir
    return Queries(topics, EncoderModel(config, device), query, words=word_queries(config))


def timed_search(
    search_many: SearchMany, queries: dict[str, Query], hits: int, threads: int, label: str
) -> Iterator[tuple[Rankings, float]]:
    """After a warm-up, yield the run of all queries in parts, in the order of ids, with the seconds of each part."""
    threads = threads or processors()
    warm_up = {str(i): query for i, query in enumerate(islice(cycle(queries.values()), WARM_UP))}
    for _ in search_many(warm_up, hits, threads):
        pass
    with progress(range(0), len(queries), label, "queries") as bar:
        start = time.perf_counter()
        for batch in search_many(queries, hits, threads):
            yield run_of(batch), time.perf_counter() - start
            bar.update(len(batch))
            start = time.perf_counter()


def require_same_encoder(index: Path, encoder: EncoderModel, joint: EncoderConfig | None) -> None:
    """Raise CaiError if an index was not built with the queries' encoder, or weights BM25's words differently. `joint`
    is the encoder config that weights these words in queries, if any."""
    stats = artifact.require(index, "index", "export").stats
    if "encoder" not in stats:
        raise CaiError(
            f"{index} was not built with a cai_pyserini encoder; build one with `cai-pyserini stage index impact`"
        )
    remedy = f"search it with the encoder {index}" if "settings" in stats else "encode and index the documents again"
    encoder.require_identity(stats["encoder"], index, remedy)
    if "settings" not in stats:
        return
    if bool(joint) != bool(stats["settings"]["joint"]):
        mismatch = "no joint index, but the encoder adds" if joint else "a joint index, but the encoder does not add"
        raise CaiError(f"{index} is {mismatch} the words of BM25 to queries: {remedy}")
    word_settings = ("bits", "range", "joint")  # they determine the weights of words in queries
    if joint and any(joint.shaping("impacts", defaults=True)[key] != stats["settings"][key] for key in word_settings):
        raise CaiError(f"{index} and the encoder {joint.name} weight the words of BM25 differently: {remedy}")
