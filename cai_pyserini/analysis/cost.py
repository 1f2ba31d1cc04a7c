"""What do systems cost? Non-zeros, index size, products per query-document pair, latency.

    products = Σ_v p_q(v) · p_d(v)                             (Formal et al. 2021, section 4, who call them FLOPS)

p_q(v) and p_d(v) are the fractions of queries and documents that contain term v, so this is the mean number of weights
that a query and a document share: the multiplications of a search that scores every document. They are counted in the
index and in the quantized queries. (The FLOPS regularizer of training has mean weights in place of fractions.)
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.analysis.settings import SEARCH_AGAIN, CostSettings, Report
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import adapted
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import SINGLE
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.lucene_text import LuceneText

SPLADE = [system for system in SINGLE.values() if system.role == "splade"]
SYSTEMS = [SINGLE["bm25"], SINGLE["doct5query"], *SPLADE, *map(adapted, SPLADE)]
HEADER = ["nnz/doc", "nnz/query", "products", "index MB", "bytes/doc", "ms/query"]


@dataclass(frozen=True)
class Cost:
    """The cost of a system. `nonzeros` are means; `products` are per pair of a query and a document."""

    system: str
    document_nonzeros: float
    query_nonzeros: float
    products: float
    index_bytes: int
    bytes_per_document: float
    ms_per_query: float


def cost(settings: CostSettings) -> Report:
    """The cost of every system with one Lucene index, in all runs."""
    by_run = {str(path): costs(RunFolder(path)) for path in settings.runs}
    rows = [["run and system", *HEADER]]
    for name, systems in by_run.items():
        rows += [[f"{name} {cost.system}", *_cells(cost)] for cost in systems]
    data = {name: [asdict(cost) for cost in systems] for name, systems in by_run.items()}
    legend = "products: multiplications of weights per query and document; ms/query: encoding and search, in batches"
    return Report("cost", f"{aligned(rows)}\n\n{legend}", data)


def costs(run: RunFolder) -> list[Cost]:
    """The cost of every system of a run that searches one Lucene index once. Raises CaiError if there is none."""
    run.results  # noqa: B018 - raises CaiError for a folder without a run
    results = []
    documents: dict[str, tuple[float, np.ndarray]] = {}
    for system in [system for system in SYSTEMS if run.has(ranking_of(system, run).output)]:
        opened = index_of(system, run)
        folder = run.require(opened.output)
        index = artifact.require(folder, "index").stats
        if impacts := opened.open_impacts():
            if opened.title not in documents:
                documents[opened.title] = activations(shard.vectors for shard in impacts)
            document_nonzeros, document_shares = documents[opened.title]
            query_nonzeros, query_shares = activations([impacts.queries(opened.queries(system.query))])
            products = float(query_shares @ document_shares)
        else:
            document_nonzeros, query_nonzeros, products = _bm25_nonzeros(folder, run.topics.values())
        results.append(
            Cost(
                system=system.name,
                document_nonzeros=document_nonzeros,
                query_nonzeros=query_nonzeros,
                products=products,
                index_bytes=index["bytes"],
                bytes_per_document=index["bytes"] / index["documents"],
                ms_per_query=artifact.require(ranking_of(system, run).output, "search").stats["ms_per_query"],
            )
        )
    if not results:
        raise CaiError(f"{run.root} has no runs of bm25 or SPLADE: {SEARCH_AGAIN}")
    return results


def activations(matrices: Iterable[csr_matrix]) -> tuple[float, np.ndarray]:
    """The mean number of non-zeros per row, and the fraction of rows with a non-zero in each column, (vocabulary,)."""
    rows, counts = 0, np.zeros(1)
    for matrix in matrices:
        rows += matrix.shape[0]
        counts = counts + np.bincount(matrix.indices, minlength=matrix.shape[1])
    return float(counts.sum()) / rows, counts / rows


def _bm25_nonzeros(folder: Path, queries: Iterable[str]) -> tuple[float, float, float]:
    """The mean numbers of distinct terms of a BM25 index's documents and of queries, and products."""
    index = LuceneText(folder)
    analyze = Analyzer(index.language)
    documents = index.distinct_terms()
    analyzed = [set(analyze(text)) for text in queries]
    counts = Counter(chain.from_iterable(analyzed))
    products = sum(count * index.document_frequency(term) for term, count in counts.items())
    return float(documents.mean()), counts.total() / len(analyzed), products / (len(analyzed) * len(documents))


def _cells(cost: Cost) -> list[str]:
    cells = [f"{cost.document_nonzeros:.1f}", f"{cost.query_nonzeros:.1f}", f"{cost.products:.3f}"]
    return [*cells, f"{cost.index_bytes / 1e6:.1f}", f"{cost.bytes_per_document:.0f}", f"{cost.ms_per_query:.2f}"]
