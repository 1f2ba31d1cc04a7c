"""What the systems of finished runs cost: non-zeros, size of the index, products a query, latency.

    FLOPS = Σ_v p_q(v) · p_d(v)                                (Formal et al. 2021, section 4)

p_q(v) and p_d(v) are the shares of queries and of documents that have term v: the number of products that the score of
a random query and a random document takes. What counts are the impacts that are in the index, and the quantized query.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cai_pyserini import artifact, cli, jvm
from cai_pyserini.analysis import output
from cai_pyserini.analysis.run import FinishedRun
from cai_pyserini.figure import figure
from cai_pyserini.systems import System

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SYSTEMS = ("bm25", "doct5query", "splade", "splade-doc", "splade-idf", "splade-doc-idf")
BINS = 20  # of the plot, each with the same number of documents


@dataclass(frozen=True)
class Distribution:
    """Of a number that every document or query has."""

    mean: float
    median: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[int] | np.ndarray) -> "Distribution":
        return cls(float(np.mean(values)), float(np.median(values)), float(np.percentile(values, 95)))


@dataclass(frozen=True)
class Cost:
    """What a system costs. `flops` are products a query and document."""

    system: str
    document_nonzeros: Distribution
    query_nonzeros: Distribution
    flops: float
    index_bytes: int
    bytes_per_document: float
    ms_per_query: float


def costs(run: FinishedRun) -> list[Cost]:
    """The cost of every system of a run that searches one Lucene index."""
    from cai_pyserini.impact import weighted

    found = []
    documents: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for system in map(System.parse, SYSTEMS):
        if not run.run_path(system).is_file():
            continue
        index = artifact.require_manifest(run.index(system), "index")
        if system.kind == "splade":
            if system.index not in documents:
                quantizer, weights = run.quantization(system)
                impacts = (quantizer.impacts(weighted(shard.matrix, weights)) for shard in run.document_vectors)
                documents[system.index] = activations(impacts)
            document_nonzeros, document_shares = documents[system.index]
            query_nonzeros, query_shares = activations([run.query_impacts(system)])
            flops = float(query_shares @ document_shares)
        else:
            document_nonzeros, query_nonzeros, flops = _words(run.index(system), run.topics.values())
        found.append(
            Cost(
                system.name,
                Distribution.of(document_nonzeros),
                Distribution.of(query_nonzeros),
                flops,
                index["bytes"],
                index["bytes"] / index["documents"],
                artifact.require_manifest(run.run_path(system), "search")["ms_per_query"],
            )
        )
    return found


def activations(matrices: "Iterable[csr_matrix]") -> tuple[np.ndarray, np.ndarray]:
    """The non-zeros of every row, (rows,), and the share of rows that have each column, (vocabulary,)."""
    nonzeros, counts = [], np.zeros(1)
    for matrix in matrices:
        nonzeros.append(np.diff(matrix.indptr))
        counts = counts + np.bincount(matrix.indices, minlength=matrix.shape[1])
    rows = np.concatenate(nonzeros)
    return rows, counts / len(rows)


def _words(index: Path, queries: Iterable[str]) -> tuple[np.ndarray, np.ndarray, float]:
    """Different terms of every document of a BM25 index and of every query, and FLOPS."""
    jvm.start()
    from pyserini.index.lucene import LuceneIndexReader

    reader = LuceneIndexReader(str(index))
    vectors = reader.reader.termVectors()
    found = (vectors.get(document, "contents") for document in range(reader.reader.maxDoc()))
    documents = np.array([terms.size() if terms else 0 for terms in found])
    analyzed = [set(reader.analyze(text)) for text in queries]
    term_of = jvm.java_class("org.apache.lucene.index.Term")
    counts = Counter(chain.from_iterable(analyzed))
    products = sum(count * reader.reader.docFreq(term_of("contents", term)) for term, count in counts.items())
    return documents, np.array([len(terms) for terms in analyzed]), products / (len(analyzed) * len(documents))


def by_length(run: FinishedRun) -> dict[str, list[float]]:
    """Means of documents' `word_pieces`, untruncated, and `nonzeros` of their raw vectors, by bins of equal size."""
    contents = [document.contents for document in run.collection.documents()]
    lengths = np.array([len(tokens) for tokens in run.tokenizer.encode(contents, None, special=False)])
    nonzeros, _ = activations(shard.matrix for shard in run.document_vectors)
    bins = np.array_split(np.argsort(lengths, kind="stable"), min(BINS, len(lengths)))
    return {
        name: [float(values[documents].mean()) for documents in bins]
        for name, values in (("word_pieces", lengths), ("nonzeros", nonzeros))
    }


def main() -> None:
    parser = cli.parser(
        "Sparsity and cost of the systems of finished runs: non-zeros, index size, expected products, latency.",
        "python -m cai_pyserini.analysis.cost --runs runs/hpo/splade-tiny runs/hpo/hpo --output analysis",
    )
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="folders of `python -m cai_pyserini.beir`")
    parser.add_argument("--output", type=Path, required=True, help="folder to write cost.json and cost.png into")
    args = parser.parse_args()
    from matplotlib.ticker import LogLocator, NullFormatter

    runs = [FinishedRun(folder) for folder in args.runs]
    plot, axes = figure("word pieces of a document (log scale)", "non-zeros of its raw vector")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:.0f}")
    header = "run and system,nnz/doc,median,95%,nnz/query,median,95%,FLOPS,index MB,bytes/doc,ms/query"
    rows = [header.split(",")]
    data: dict[str, Any] = {}
    for label, run in zip(output.labels(args.runs), cli.progress(runs, len(runs), "cost", "run"), strict=True):
        found, bins = costs(run), by_length(run)
        data[label] = {"systems": [asdict(cost) for cost in found], "by_length": bins}
        axes.plot(bins["word_pieces"], bins["nonzeros"], ".-", label=label)
        rows += [
            [
                f"{label} {cost.system}",
                *_cells(cost.document_nonzeros),
                *_cells(cost.query_nonzeros),
                f"{cost.flops:.3f}",
                f"{cost.index_bytes / 1e6:.1f}",
                f"{cost.bytes_per_document:.0f}",
                f"{cost.ms_per_query:.2f}",
            ]
            for cost in found
        ]
    axes.legend()
    output.write(args.output, "cost", rows, data, plot)


def _cells(values: Distribution) -> list[str]:
    return [f"{values.mean:.1f}", f"{values.median:.0f}", f"{values.p95:.0f}"]


if __name__ == "__main__":
    cli.run(main)
