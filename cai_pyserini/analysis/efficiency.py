"""How fast and how effective is a system with pruned documents and queries?

Postings are those of the terms that find documents (in two steps, of the first), all of which a search without skipping
reads. In each of several rounds, all searchers take turns at every query. A percentile of latency is over the queries
of a round; its median, minimum and maximum are over rounds.

The proposal is chosen by one random half of the queries and reported on the other: measured by the queries that chose
it, the best of several would look better than it is.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from cai_pyserini.runs.compared import interval_text
from cai_pyserini.runs.measures import mean, measure_run
from cai_pyserini.runs.significance import compare
from cai_pyserini.runs.trec import removes_query
from cai_pyserini.vectors.weighting import write_impacts

CUTOFF = 10
MEASURE = f"nDCG@{CUTOFF}"
STOCK = "stock"
SEED = 42  # of the order of queries
FEW = 100  # with fewer queries, p99 is the slowest of them
ROUNDS = 5  # number of times each query is timed, after a warm-up
PERCENTILES = (50, 95, 99)
EXACT = "all"

logger = logging.getLogger(__name__)
Searcher = Callable[[str], object]  # searches for the query with an id


class Pruning(NamedTuple):
    """A pruning of documents and queries: its name, and the settings of an encoder for both."""

    name: str
    documents: dict[str, float]  # that shape impacts
    search: dict[str, float]  # of two steps; empty for one


class Spread(NamedTuple):
    """A percentile of latency, in ms: its median, smallest and largest value over rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Measured:
    """A pruning's costs, its values of MEASURE by query, and its times by hits, (rounds, queries) in ms."""

    name: str
    costs: dict[str, float]
    values: dict[str, float]
    times: dict[int, np.ndarray]


def efficiency(settings: EfficiencySettings) -> Report:
    """The cost, effectiveness and latency of every pruning, and the latency of stock LuceneImpactSearcher."""
    run, system = RunFolder(settings.run), parse_system(settings.system)
    if system.role != "splade":
        raise CaiError(f"{system.name}: only SPLADE systems have impacts and queries to prune")
    if not run.results.scored or not run.has(ranking_of(system, run).output):
        raise CaiError(f"{run.root} has no scores of {system.name}: {SEARCH_AGAIN}")
    queries = [query for query in run.topics if query in (run.qrels or {})]
    if len(queries) < 2:
        raise CaiError(f"{run.root} has {len(queries)} judged query: one half chooses a pruning, the other reports it")
    np.random.default_rng(SEED).shuffle(queries)  # those in even places choose, the others report
    timed = queries[: settings.queries]
    if len(timed) < FEW:
        logger.warning("%d queries are timed: with fewer than %d, p99 is that of the slowest", len(timed), FEW)
    systems = [PrunedSystem(run, system, pruning, settings.output) for pruning in prunings(settings)]
    milliseconds: dict[str, dict[int, np.ndarray]] = {}
    for hits in settings.hits:
        searchers = {STOCK: systems[0].stock_searcher(hits)}
        searchers |= {pruned.name: pruned.searcher(hits) for pruned in systems}
        for name, measured in times(searchers, timed, f"{hits:,} hits").items():
            milliseconds.setdefault(name, {})[hits] = measured
    found = [pruned.measure(run, milliseconds[pruned.name]) for pruned in systems]
    differences = compare(found[0].values, {each.name: each.values for each in found})
    latency = {name: {hits: spreads(ms) for hits, ms in by_hits.items()} for name, by_hits in milliseconds.items()}
    rows = [["", "impacts/doc", "index MB", "postings/query", MEASURE, f"minus {EXACT}", "95% interval"]]
    for each in found:
        impacts, size, postings = each.costs.values()
        row = [each.name, f"{impacts:.1f}", f"{size / 1e6:.1f}", f"{postings:,.0f}", f"{mean(each.values):.4f}"]
        difference, interval = differences[each.name].difference, differences[each.name].interval
        last = ["", ""] if each is found[0] else [f"{difference:+.4f}", interval_text(interval, "+")]
        rows.append([*row, *last])
    text, proposed = proposal(found, queries, settings)
    tables = [aligned(rows)]
    for hits in settings.hits:
        header = [f"ms, {hits:,} hits", *(f"p{percentile}" for percentile in PERCENTILES)]
        tables.append(aligned([header, *([name, *map(str, of[hits].values())] for name, of in latency.items())]))
    about = f"ms: median of {ROUNDS} rounds [smallest, largest], {len(timed):,} of {len(queries):,} queries"
    data = {
        "queries": len(queries),
        "timed": len(timed),
        "rounds": ROUNDS,
        "seed": SEED,
        "stock": latency[STOCK],
        "prunings": [
            {"name": each.name, **each.costs, "score": mean(each.values)}
            | {"difference": differences[each.name].difference, "interval": differences[each.name].interval}
            | {"latency": latency[each.name]}
            for each in found
        ],
        "proposal": proposed,
    }
    return Report("efficiency", "\n\n".join([*tables, about, text]), data)


def spreads(milliseconds: np.ndarray) -> dict[str, Spread]:
    """The percentiles over queries of times (rounds, queries)."""
    values = np.percentile(milliseconds, PERCENTILES, axis=1)  # (percentiles, rounds)
    found = zip(np.median(values, 1).tolist(), values.min(1).tolist(), values.max(1).tolist(), strict=True)
    return {f"p{percentile}": Spread(*each) for percentile, each in zip(PERCENTILES, found, strict=True)}


def proposal(found: Sequence[Measured], queries: Sequence[str], settings: EfficiencySettings) -> tuple[str, Any]:
    """The search to use, in words and as JSON: of those that lose little of the measure, the fastest at the first
    number of hits, by the queries in even places. It is reported on the others. The first is the exact search."""
    chooses, reports = queries[::2], queries[1::2]
    hits, exact = settings.hits[0], found[0]

    def score(each: Measured, queries: Sequence[str]) -> float:
        return mean({query: each.values[query] for query in queries})

    limit = score(exact, chooses) * (1 - settings.loss)
    good = [each for each in found if score(each, chooses) >= limit]
    best = min(good, key=lambda each: spreads(each.times[hits][:, ::2])["p50"])
    half = f"By {len(chooses):,} random queries (seed {SEED}), the fastest search for {hits:,} hits that loses at most "
    half += f"{settings.loss:.1%} of {MEASURE}: {best.name}"
    data: dict[str, Any] = {"name": best.name, "chosen_by": len(chooses), "reported_on": len(reports)}
    if best is exact:
        return f"{half}, so no pruning is proposed.", data
    values = {each.name: {query: each.values[query] for query in reports} for each in (exact, best)}
    difference = compare(values[exact.name], values)[best.name]
    own, others = (spreads(each.times[hits][:, 1::2])["p50"] for each in (best, exact))
    data |= {"score": mean(values[best.name]), "exact_score": mean(values[exact.name])}
    data |= {"difference": difference.difference, "interval": difference.interval}
    data |= {"p50": own, "exact_p50": others}
    (chosen,) = (pruning for pruning in prunings(settings) if pruning.name == best.name)
    lines = ", ".join(f"{key}: {json.dumps(value)}" for key, value in (chosen.documents | chosen.search).items())
    return (
        f"{half}\nOn the other {len(reports):,}, which had no part in the choice: {MEASURE} {data['score']:.4f}, "
        f"{difference.difference:+.4f}, 95% interval {interval_text(difference.interval, '+')}; p50 {own} ms, "
        f"{others.median / own.median:.1f} times as fast as {exact.name}\nIn the YAML file of the encoder: {lines}"
    ), data


def prunings(settings: EfficiencySettings) -> list[Pruning]:
    """All combinations of prunings of documents and of searches in one or two steps, the first of which is exact."""
    documents: dict[str, dict[str, float]] = {EXACT: {}}
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

    def measure(self, run: RunFolder, times: dict[int, np.ndarray]) -> Measured:
        """The cost and effectiveness, beside the times."""
        stats, index = self._stats, LuceneImpacts(self.index, two_step=self._two_step)
        document_frequency = cache(index.document_frequency)
        queries: list[Any] = list(self._queries.values())
        costs = {
            "impacts_per_document": stats["nonzeros"] / stats["documents"],
            "index_bytes": stats["bytes"],
            "postings_per_query": float(
                np.mean([sum(map(document_frequency, index.first_query(query))) for query in queries])
            ),
        }
        index.close()
        return Measured(self.name, costs, measure_run(run.qrels or {}, self._path, [MEASURE])[MEASURE], times)


def times(searchers: Mapping[str, Searcher], ids: Sequence[str], label: str) -> dict[str, np.ndarray]:
    """The times of every query with each searcher, (rounds, queries) in ms, without the first round."""
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
    return {name: milliseconds[1:, :, place] for place, name in enumerate(searchers)}
