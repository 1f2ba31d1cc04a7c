"""How fast and how effective is a system with pruned documents and queries?

Postings are those of the terms that find documents (in two steps, of the first), all of which a search without skipping
reads. The latency of a query is its median over several rounds; in each round, all searchers take turns at every query.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cai_pyserini.analysis.settings import SEARCH_AGAIN, EfficiencySettings, Report
from cai_pyserini.core import artifact
from cai_pyserini.core.config import FAST, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
from cai_pyserini.indexes.retrieve import search
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.plugin import hook
from cai_pyserini.runs.measures import mean, measure_run
from cai_pyserini.runs.trec import removes_query
from cai_pyserini.vectors.weighting import write_impacts

CUTOFF = 10
MEASURE = f"nDCG@{CUTOFF}"
STOCK = "stock"
ROUNDS = 3  # number of times each query is timed, after a warm-up

Latencies = dict[int, tuple[float, float]]  # hits -> median and 99th percentile over queries, in ms
Searcher = Callable[[str], object]  # searches for the query with an id


class Pruning(NamedTuple):
    """A pruning of documents and queries: its name, and the settings of an encoder for both."""

    name: str
    documents: dict[str, float]  # that shape impacts
    search: dict[str, float]  # of two steps; empty for one


def efficiency(settings: EfficiencySettings) -> Report:
    """The cost, effectiveness and latency of every pruning, and the latency of stock LuceneImpactSearcher."""
    run, system = RunFolder(settings.run), parse_system(settings.system)
    if system.role != "splade":
        raise CaiError(f"{system.name}: only SPLADE systems have impacts and queries to prune")
    if not run.results.scored or not run.has(ranking_of(system, run).output):
        raise CaiError(f"{run.root} has no scores of {system.name}: {SEARCH_AGAIN}")
    systems = [PrunedSystem(run, system, pruning, settings.output) for pruning in prunings(settings)]
    timed = list(run.topics)[: settings.queries]
    latencies: dict[str, Latencies] = {}
    for hits in settings.hits:
        searchers = {STOCK: systems[0].stock_searcher(hits)}
        searchers |= {pruned.name: pruned.searcher(hits) for pruned in systems}
        for name, query_times in times(searchers, timed, f"{hits:,} hits").items():
            p50, p99 = np.percentile(query_times, [50, 99]).tolist()
            latencies.setdefault(name, {})[hits] = (p50, p99)
    rows = [pruned.measure(run, latencies[pruned.name]) for pruned in systems]
    percentiles = [f"{percentile}, {hits:,} hits" for hits in settings.hits for percentile in ("p50", "p99")]
    table = [["", "impacts/doc", "index MB", "postings/query", MEASURE, *percentiles]]
    table.append([STOCK, *[""] * 4, *_milliseconds(latencies[STOCK])])
    for row in rows:
        costs = [f"{row['impacts_per_document']:.1f}", f"{row['index_bytes'] / 1e6:.1f}"]
        costs += [f"{row['postings_per_query']:,.0f}", f"{row['score']:.4f}"]
        table.append([row["name"], *costs, *_milliseconds(row["latency"])])
    text, proposed = proposal(rows, settings)
    data = {"stock": latencies[STOCK], "queries": len(timed), "prunings": rows, "proposal": proposed}
    return Report("efficiency", f"{aligned(table)}\n\n{text}", data)


def proposal(rows: Sequence[Mapping[str, Any]], settings: EfficiencySettings) -> tuple[str, str]:
    """The search to use, in words, and its name: of those that lose little of the measure, the fastest at the first
    number of hits. The first row is the exact search."""
    exact, hits = rows[0], settings.hits[0]
    good = [row for row in rows if row["score"] >= exact["score"] * (1 - settings.loss)]
    best = min(good, key=lambda row: row["latency"][hits])
    limit = f"{MEASURE} at most {settings.loss:.1%} below {exact['score']:.4f}"
    if best is exact:
        return f"No other search is faster with {limit}.", best["name"]
    ratio = exact["latency"][hits][0] / best["latency"][hits][0]
    (chosen,) = (pruning for pruning in prunings(settings) if pruning.name == best["name"])
    values = ", ".join(f"{key}: {json.dumps(value)}" for key, value in (chosen.documents | chosen.search).items())
    return (
        f"Fastest with {limit}: {best['name']}, {ratio:.1f} times as fast as {exact['name']} for {hits:,} hits. In the "
        f"YAML file of the encoder: {values}"
    ), best["name"]


def _milliseconds(latency: Latencies) -> list[str]:
    return [f"{milliseconds:.2f}" for pair in latency.values() for milliseconds in pair]


def prunings(settings: EfficiencySettings) -> list[Pruning]:
    """All combinations of prunings of documents and of searches in one or two steps, the first of which is exact."""
    documents: dict[str, dict[str, float]] = {"all": {}}
    documents |= {f"mass {share:g}": {"keep_mass": share} for share in settings.keep_mass}
    searches: dict[str, dict[str, float]] = {"": {}} | {
        f", query mass {mass:g}, {number} rescored": FAST | {"keep_query_mass": mass, "rescore": number}
        for mass, number in product(settings.keep_query_mass, settings.rescore)
    }
    return [Pruning(d + s, documents[d], searches[s]) for d, s in product(documents, searches)]


class PrunedSystem:
    """A system with a pruning: its index, its queries and its run."""

    def __init__(self, run: RunFolder, system: System, pruning: Pruning, folder: Path):
        self.name = pruning.name
        index = index_of(system, run)
        impacts, config = index.open_impacts(), load_encoder(str(index.output))
        assert impacts  # a SPLADE system has them
        bm25 = impacts.bm25
        if bm25 and config.joint:
            bm25 = replace(bm25, alpha=config.joint.alpha[system.query or "splade"])
        name = "-".join([system.name, *(f"{key}-{value:g}" for key, value in pruning.documents.items())])
        pruned = config.unpruned().replace(**pruning.documents)
        written = write_impacts(impacts.vectors, pruned, folder / "impacts" / name, bm25)
        name += "-forward" if pruning.search else ""
        self.index = index_impacts(written, folder / "indexes" / name, forward_index=bool(pruning.search))
        self._stats = artifact.require(self.index, "index").stats

        queries = index.queries(system.query)
        assert queries.encoder  # a SPLADE system has one
        config = queries.encoder.config.replace(**{"keep_query_mass": None, "rescore": None} | pruning.search)
        queries = replace(queries, encoder=EncoderModel(config))
        self._path = folder / "runs" / f"{system.name}-{self.name}.trec".replace(",", "").replace(" ", "-")
        search(
            self.index,
            queries,
            self._path,
            hits=CUTOFF,
            remove_query=removes_query(run.experiment.collection.remove_query, run.qrels),
            passages=bool(run.experiment.collection.passages),
            tag=system.name,
        )
        self._two_step = queries.two_step
        self._queries, _ = queries.for_search(self._stats["query_scale"])

    def searcher(self, hits: int) -> Searcher:
        searcher = LuceneImpacts(self.index, two_step=self._two_step)
        return lambda id: searcher.search(self._queries[id], hits)

    def stock_searcher(self, hits: int) -> Searcher:
        """Pyserini's own searcher; its query encoder looks up encoded queries by id."""
        hook.register()
        from pyserini.encode import QueryEncoder  # starts the JVM
        from pyserini.search.lucene import LuceneImpactSearcher

        encoder = QueryEncoder()
        encoder.encode = self._queries.__getitem__
        searcher = LuceneImpactSearcher(str(self.index), encoder, min_idf=-1)
        return lambda id: [(hit.docid, hit.score) for hit in searcher.search(id, hits)]

    def measure(self, run: RunFolder, latency: Latencies) -> dict[str, Any]:
        """The cost and effectiveness, beside the latencies."""
        stats, index = self._stats, LuceneImpacts(self.index, two_step=self._two_step)
        document_frequency = cache(index.document_frequency)
        queries: list[Any] = list(self._queries.values())
        postings = float(np.mean([sum(map(document_frequency, index.first_query(query))) for query in queries]))
        index.close()
        return {
            "name": self.name,
            "impacts_per_document": stats["nonzeros"] / stats["documents"],
            "index_bytes": stats["bytes"],
            "postings_per_query": postings,
            "score": mean(measure_run(run.qrels or {}, self._path, [MEASURE])[MEASURE]),
            "latency": latency,
        }


def times(searchers: Mapping[str, Searcher], ids: Sequence[str], label: str) -> dict[str, np.ndarray]:
    """The median time of every query with each searcher, (queries,) in ms, without the first round."""
    milliseconds = np.zeros((ROUNDS + 1, len(ids), len(searchers)))
    calls = list(searchers.values())
    turns = (ROUNDS + 1) * len(ids)
    for turn in progress(range(turns), turns, label, "queries"):
        round_number, query = divmod(turn, len(ids))
        for offset in range(len(calls)):
            searcher = (turn + offset) % len(calls)  # each is first equally often
            start = time.perf_counter()
            calls[searcher](ids[query])
            milliseconds[round_number, query, searcher] = 1000 * (time.perf_counter() - start)
    return dict(zip(searchers, np.median(milliseconds[1:], axis=0).T, strict=True))
