"""The settings of each analysis, and its report. Nothing slow is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cai_pyserini.core.files import json_text, write_text
from cai_pyserini.core.flags import COLLECTION, OUTPUT_ANALYSIS, RUN_FOLDER, SPLIT
from cai_pyserini.core.settings import AnyPath, InputFile, Settings, flag

SEARCH_AGAIN = "search with `cai-pyserini run`, after an update with `cai-pyserini update --evaluate`"


@dataclass(frozen=True)
class Report:
    """The output of an analysis: text for the terminal, <name>.json, and other `files`, texts by file name."""

    name: str
    text: str
    data: dict[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> list[str]:
        """Write <name>.json and the files, each atomically, and return their names."""
        files = {f"{self.name}.json": json_text(self.data, ensure_ascii=False), **self.files}
        for name, content in files.items():
            write_text(folder / name, content)
        return list(files)


class CostSettings(Settings):
    """Show what systems cost: non-zeros, index size, products per query-document pair, latency."""

    example = "cai-pyserini analyse cost runs/hpo/splade-tiny runs/hpo/adapted --output analysis"
    runs: list[AnyPath] = flag(help="run folders, written by `cai-pyserini run`", positional=True)
    output: AnyPath = OUTPUT_ANALYSIS


class EfficiencySettings(Settings):
    """Show how fast and how effective a system is with pruned documents and queries, and propose the fastest search.

    It builds the indexes in the output folder, where later calls find them, and compares their searches with stock
    LuceneImpactSearcher on the unpruned index: one thread, with encoded queries. A random half of the queries chooses
    the proposed search; its scores and latency are reported on the other half.
    """

    example = "cai-pyserini analyse efficiency runs/hpo/splade-tiny --output analysis"
    run: AnyPath = RUN_FOLDER
    output: AnyPath = OUTPUT_ANALYSIS
    system: str = flag("splade-idf", "a SPLADE system with an index and qrels")
    keep_mass: list[float] = flag([0.9], "shares of a document's total impact to keep, largest impacts first")
    keep_query_mass: list[float] = flag(
        [0.55], "in two steps: shares of a query's weights times IDF that the first keeps"
    )
    rescore: list[int] = flag([400], "in two steps: numbers of documents that the whole query scores")
    loss: float = flag(
        0.01, "share of nDCG@10 that the proposed search may lose, by the queries that choose it", ge=0, lt=1
    )
    hits: list[int] = flag([10, 1000], "hits per query")
    queries: int = flag(300, "number of queries to time, drawn at random; all are evaluated", ge=2)


class ExplainSettings(Settings):
    """Explain the scores of documents for a query, term by term, in the systems of a finished run.

    It explains the best documents of each system, and relevant documents at any rank.
    """

    example = "cai-pyserini analyse explain runs/hpo/splade-tiny --query q7 --output analysis"
    run: AnyPath = RUN_FOLDER
    query: str = flag(help="id of a query")
    output: AnyPath = OUTPUT_ANALYSIS
    systems: list[str] = flag(["bm25", "splade-idf", "hybrid-splade-idf"], "systems, named as in the table of results")
    depth: int = flag(5, "number of best documents of each system to explain", ge=0)
    relevant: int = flag(3, "number of relevant documents to explain as well, highest grades first", ge=0)
    documents: list[str] = flag([], "explain the documents with these ids instead")
    terms: int = flag(10, "number of terms to show per document; explain.json has all of them", ge=1)


class OverlapSettings(Settings):
    """Measure vocabulary overlap: how similar the word frequencies of collections are.

    The measure is weighted Jaccard similarity.
    """

    example = "cai-pyserini analyse overlap hpo scifact --output analysis"
    collections: list[str] = flag(
        help="names in index_configs/, YAML files, folders in BEIR's layout, files of documents (.jsonl, .parquet, "
        ".csv), or .txt files (one text per line)",
        positional=True,
        min_length=2,
    )
    output: AnyPath = OUTPUT_ANALYSIS


class RsjSettings(Settings):
    """Show which query words runs overestimate or underestimate, by their RSJ weight and IDF."""

    example = "cai-pyserini analyse rsj --collection hpo --trec splade.trec splade-idf.trec --output analysis"
    collection: str = COLLECTION
    trec: list[InputFile] = flag(help="TREC runs to compare; -: standard input")
    output: AnyPath = OUTPUT_ANALYSIS
    split: str | None = SPLIT
    depth: int = flag(100, "number of best documents per query that the run is taken to consider relevant", ge=1)


ANALYSES: dict[str, type[Settings]] = {
    "cost": CostSettings,
    "efficiency": EfficiencySettings,
    "explain": ExplainSettings,
    "overlap": OverlapSettings,
    "rsj": RsjSettings,
}
