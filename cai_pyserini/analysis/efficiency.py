"""How fast is a system, and how good, with pruned documents and queries?

Postings are those of the terms that documents are found with: what a search without skipping reads. Latency is the
median of several rounds for each query; in a round, every query goes to all searchers in turn.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from cai_pyserini.analysis.finished_run import FinishedRun
from cai_pyserini.analysis.output import Report
from cai_pyserini.analysis.settings import EfficiencySettings
from cai_pyserini.beir.systems import System, parse_system
from cai_pyserini.core import artifact, jvm
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Query, TwoStep, pruned
from cai_pyserini.evaluate.measures import mean, measure_run
from cai_pyserini.impact.impacts import bm25_of_index, write_impacts
from cai_pyserini.index.impact import index_impacts
from cai_pyserini.retrieval.lucene import LuceneIndex, LuceneSearcher
from cai_pyserini.retrieval.search import removes_query, search

CUTOFF = 10
MEASURE = f"nDCG@{CUTOFF}"
LOSS = 0.01  # of the measure, relative: the most that a faster search may cost
AIM = 2.0  # times as fast as stock
STOCK = "stock"

Latencies = dict[int, tuple[float, float]]  # hits -> median and 99th percentile over queries, in ms


class Pruning(NamedTuple):
    """Settings of an encoder."""

    keep_mass: float | None = None
    keep_terms: int | None = None
    keep_query_terms: int | None = None
    rescore: int | None = None

    @property
    def documents(self) -> str:
        """How the documents are pruned."""
        if self.keep_mass is not None:
            return f"mass {self.keep_mass:g}"
        return "all" if self.keep_terms is None else f"{self.keep_terms} terms"

    @property
    def name(self) -> str:
        queries = "" if self.keep_query_terms is None else f", {self.keep_query_terms} query terms"
        rescored = "" if self.rescore is None else f", {self.rescore} rescored"
        return f"{self.documents}{queries}{rescored}"


class Search(NamedTuple):
    """The queries by id, and how they are searched for."""

    queries: dict[str, Query]
    two_step: TwoStep | None


@dataclass(frozen=True)
class Efficiency:
    """What a system costs and achieves with a pruning."""

    name: str
    impacts_per_document: float
    index_bytes: int
    postings_per_query: float
    score: float  # MEASURE
    latency: Latencies


def efficiency(settings: EfficiencySettings) -> Report:
    """The cost, effectiveness and latency of every pruning, and whether the aim is met."""
    run = FinishedRun(settings.run_folder)
    system = _searched(run, settings.system)
    indexes: dict[Pruning, Path] = {}
    searches: dict[Pruning, Search] = {}
    found: dict[Pruning, Efficiency] = {}
    for pruning in prunings(settings):
        indexes[pruning] = _index(run, system, pruning, settings.output)
        searches[pruning], path = _run(run, system, pruning, indexes[pruning], settings.output)
        found[pruning] = _measured(run, pruning, indexes[pruning], searches[pruning], path)
    timed = list(run.topics)[: settings.queries]
    latencies: dict[str, Latencies] = {}
    for hits in settings.hits:
        searchers = {STOCK: _stock(indexes[Pruning()], searches[Pruning()], hits)}
        searchers |= {pruning.name: _searcher(indexes[pruning], searches[pruning], hits) for pruning in found}
        for name, of_queries in times(searchers, timed, settings.rounds, f"{hits:,} hits").items():
            p50, p99 = np.percentile(of_queries, [50, 99]).tolist()
            latencies.setdefault(name, {})[hits] = (p50, p99)
    stock = latencies.pop(STOCK)
    rows = [replace(row, latency=latencies[row.name]) for row in found.values()]
    text = "\n\n".join([aligned(_table(rows, stock)), "\n".join(aims(rows, stock))])
    data = {"stock": stock, "queries": len(timed), "prunings": [asdict(row) for row in rows]}
    return Report("efficiency", text, data, {"efficiency.png": plot(rows, stock)})


def prunings(settings: EfficiencySettings) -> list[Pruning]:
    """All combinations of pruned documents and pruned queries; first the one that changes nothing."""
    masses = [Pruning(keep_mass=share) for share in settings.keep_mass]
    documents = [Pruning(), *masses, *(Pruning(keep_terms=count) for count in settings.keep_terms)]
    queries = [(None, None), *product(settings.keep_query_terms, (None, *settings.rescore))]
    return [
        pruning._replace(keep_query_terms=count, rescore=rescored)
        for pruning, (count, rescored) in product(documents, queries)
    ]


def times(
    searchers: Mapping[str, Callable[[str], object]], ids: Sequence[str], rounds: int, label: str
) -> dict[str, np.ndarray]:
    """The median time of every query with each searcher, (queries,) in ms; a first round is not counted."""
    measured = np.zeros((rounds + 1, len(ids), len(searchers)))
    calls = list(searchers.values())
    for turn in progress(range(measured.shape[0] * len(ids)), measured.shape[0] * len(ids), label, "query"):
        number, query = divmod(turn, len(ids))
        for place in range(len(calls)):
            searcher = (place + turn) % len(calls)  # each is first as often as any other
            start = time.perf_counter()
            calls[searcher](ids[query])
            measured[number, query, searcher] = 1000 * (time.perf_counter() - start)
    return dict(zip(searchers, np.median(measured[1:], axis=0).T, strict=True))


def aims(rows: Sequence[Efficiency], stock: Latencies) -> list[str]:
    """For each number of hits, whether a pruning is as much faster as it should be, and the one that comes nearest."""
    good = [row for row in rows if row.score >= (1 - LOSS) * rows[0].score]
    lines = []
    for hits, theirs in stock.items():
        speedups = {row.name: [t / o for t, o in zip(theirs, row.latency[hits], strict=True)] for row in good}
        name, (p50, p99) = max(speedups.items(), key=lambda item: min(item[1]))
        verdict = "met" if min(p50, p99) >= AIM else "MISSED"
        lines.append(
            f"{verdict}: {AIM:g} times as fast as {STOCK} at {hits:,} hits, losing at most {LOSS:.0%} of {MEASURE}: "
            f"{name}: {p50:.2f} times (median), {p99:.2f} times (99th percentile)"
        )
    return lines


def plot(rows: Sequence[Efficiency], stock: Latencies) -> Figure:
    """The measure by median latency, a panel per number of hits; stock is a cross."""
    made = Figure(figsize=(4 * len(stock) + 2, 4), layout="constrained")
    for axes, (hits, (p50, _)) in zip(made.subplots(1, len(stock), squeeze=False)[0], stock.items(), strict=True):
        for row in rows:
            axes.plot([row.latency[hits][0]], [row.score], marker="o", linestyle="none", label=row.name)
        axes.plot([p50], [rows[0].score], marker="x", linestyle="none", color="black", label=STOCK)
        axes.set(xlabel=f"median latency, ms, {hits:,} hits", ylabel=MEASURE, xlim=(0, None))
        axes.grid(alpha=0.3)
    made.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return made


def _searched(run: FinishedRun, name: str) -> System:
    """The system of this name. Raises CaiError for one whose searches are not of impacts alone, or not in the run."""
    system = parse_system(name)
    if system.kind != "splade":
        raise CaiError(f"{name}: only SPLADE systems have impacts and queries to prune")
    if not run.has(system) or not run.collection.has_qrels(run.split):
        raise CaiError(f"{run.layout.folder} has no scores of {name}")
    return system


def _index(run: FinishedRun, system: System, pruning: Pruning, folder: Path) -> Path:
    """The index of pruned documents, made again from the raw vectors."""
    config = load_encoder(str(run.layout.index(system)))
    bm25 = bm25_of_index(config, run.layout.words, run.layout.expansion(system))
    if bm25 and config.joint:
        bm25 = replace(bm25, alpha=config.joint.alpha["bow" if system.bow else "splade"])
    config = config.replace(keep_mass=pruning.keep_mass, keep_terms=pruning.keep_terms)
    name = f"{system.name}-{_file_name(pruning.documents)}"
    return index_impacts(
        write_impacts(run.vectors(system), config, folder / "impacts" / name, bm25), folder / "indexes" / name
    )


def _run(run: FinishedRun, system: System, pruning: Pruning, index: Path, folder: Path) -> tuple[Search, Path]:
    """The pruned queries, and their TREC run."""
    queries = run.queries(system)
    assert queries.encoder  # a SPLADE system has one
    settings = {"keep_query_terms": pruning.keep_query_terms, "rescore": pruning.rescore}
    queries = replace(queries, encoder=Encoder(queries.encoder.config.replace(**settings)))
    path = folder / "runs" / f"{system.name}-{_file_name(pruning.name)}.trec"
    remove_query = removes_query(run.config.remove_query, run.collection.qrels(run.split))
    search(index, queries, path, hits=CUTOFF, remove_query=remove_query, passages=run.passages, tag=system.name)
    encoded, _ = queries.for_search(artifact.require(index, "index").stats["query_scale"])
    return Search(encoded, queries.two_step), path


def _file_name(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _measured(run: FinishedRun, pruning: Pruning, index: Path, of: Search, path: Path) -> Efficiency:
    """Cost and effectiveness, without latency."""
    stats = artifact.require(index, "index").stats
    opened = LuceneIndex(index)
    frequency = cache(opened.document_frequency)
    queries: list[Any] = list(of.queries.values())
    if of.two_step:
        queries = [pruned(query, of.two_step.terms) for query in queries]
    postings = [sum(frequency(term) for term in query) for query in queries]
    opened.close()
    return Efficiency(
        pruning.name,
        stats["nonzeros"] / stats["documents"],
        stats["bytes"],
        float(np.mean(postings)),
        mean(measure_run(run.collection.qrels(run.split), path, [MEASURE])[MEASURE]),
        {},
    )


def _searcher(index: Path, of: Search, hits: int) -> Callable[[str], object]:
    """A function that searches for the query of an id."""
    searcher = LuceneSearcher(index, two_step=of.two_step)
    return lambda id: searcher.search(of.queries[id], hits)


def _stock(index: Path, of: Search, hits: int) -> Callable[[str], object]:
    """The same with Pyserini's own searcher, which takes the ids of encoded queries for queries."""
    jvm.start()
    from pyserini.encode import QueryEncoder  # imports the JVM, which has to be running
    from pyserini.search.lucene import LuceneImpactSearcher

    encoder = QueryEncoder()
    encoder.embedding = of.queries
    searcher = LuceneImpactSearcher(str(index), encoder, min_idf=-1)
    return lambda id: [(hit.docid, hit.score) for hit in searcher.search(id, hits)]


def _table(rows: Sequence[Efficiency], stock: Latencies) -> list[list[str]]:
    header = ["", "impacts/doc", "index MB", "postings/query", MEASURE]
    header += [f"{percentile}, {hits:,} hits" for hits in stock for percentile in ("p50", "p99")]
    table = [header, [STOCK, *[""] * 4, *_cells(stock)]]
    for row in rows:
        costs = [f"{row.impacts_per_document:.1f}", f"{row.index_bytes / 1e6:.1f}", f"{row.postings_per_query:,.0f}"]
        table.append([row.name, *costs, f"{row.score:.4f}", *_cells(row.latency)])
    return table


def _cells(latency: Latencies) -> list[str]:
    return [f"{value:.2f}" for pair in latency.values() for value in pair]
