"""What approximate search gains and loses in a large collection: ours in one and two steps, stock, other engines.

The collection is made of a real one, as in scale.py: each document is one of its documents, whose judgments it gets,
and half of another. All search the same impacts with the same encoded queries, one at a time, in one thread and a
process of their own, after 1,000 queries as a warm-up; the clock stops when Python has document ids and scores. BMP has
impacts of 8 bits, and is exact where alpha is 1; splade-index gets the vectors instead of a model.

Recall is the part of the documents that the exact search finds which another finds too, or others with the score of the
last of them. Two steps are named `mass of a query / rescored`; Seismic, with its defaults when building, by query_cut
and heap_factor. Bags of words need no model for queries.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deploy
import harness
import numpy as np
import scale

SEISMIC_SEARCHES = [(10, 0.8), (10, 0.7), (20, 0.7)]  # query_cut, heap_factor


def prepare(collection: str, encoder: str, documents: int, folder: str) -> harness.Result:
    """Make the collection, its impacts, and everybody's indexes. Returns the sizes in bytes."""
    from cai_pyserini.core.files import folder_bytes

    path, source = Path(folder), {"collection": collection, "encoder": encoder}
    harness.stage("stage encode", **source, output=path / "raw")
    harness.stage("stage idf", **source, output=path / "idf")
    harness.write_all_queries(path, **source)
    made: dict[str, Any] = {
        "collection": collection,
        "vectors": f"{path}/raw",
        "documents": documents,
        "folder": folder,
    }
    harness.fresh(scale.synthesize, **made, dense=None, generated=False)
    write_labels(collection, path)
    vectors = {"vectors": path / "vectors", "idf": path / "idf", "encoder": encoder}
    sizes = {}
    for bits in (10, 8):
        harness.stage("stage impact", **vectors, bits=bits, output=path / f"impacts{bits}")
        harness.stage("stage index", "impact", input=path / f"impacts{bits}", output=path / f"index{bits}")
        sizes[f"index{bits}"] = folder_bytes(path / f"index{bits}")
    harness.stage("stage index", "impact", input=path / "impacts10", forward_index=[], output=path / "forward")
    sizes["forward"] = folder_bytes(path / "forward")
    return sizes | harness.fresh(build_others, folder=folder)


def write_labels(collection: str, path: Path) -> None:
    """The judgments of the made documents, those of the documents that are whole in them."""
    opened, _, qrels = harness.opened(collection)
    copies: dict[str, list[str]] = {document.id: [] for document in opened.documents()}
    ids = [*copies]
    for number, whole in enumerate(np.load(path / "wholes.npy").tolist()):
        copies[ids[whole]].append(f"d{number:07d}")
    labels = {q: {copy: g for id, g in judged.items() for copy in copies.get(id, ())} for q, judged in qrels.items()}
    (path / "labels.json").write_text(json.dumps({query: judged for query, judged in labels.items() if judged}))


def build_others(folder: str) -> harness.Result:
    """Build the indexes of Seismic and BMP. Returns the sizes in bytes."""
    path = Path(folder)
    harness.stage("export", "seismic", impacts=path / "impacts10", output=path / "seismic")
    harness.stage("export", "ciff", impacts=path / "impacts8", output=path / "ciff8")
    deploy.build_seismic(path)
    deploy.build_bmp(path)
    return {name: (path / f"index.{name}").stat().st_size for name in ("seismic", "bmp")}


def open_lucene(folder: Path, index: str, mass: float | None = None, rescored: int | None = None) -> deploy.Search:
    from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
    from cai_pyserini.vectors.queries import TwoStep

    searcher = LuceneImpacts(folder / index, two_step=TwoStep(mass, rescored) if rescored else None)
    return lambda query: searcher.search(query, deploy.HITS)


def open_stock(folder: Path) -> deploy.Search:
    searcher = harness.open_stock(str(folder / "index10"), {})
    encoder = searcher.query_encoder
    encoder.encode = json.loads  # a query goes in as text
    return lambda query: [(hit.docid, hit.score) for hit in searcher.search(json.dumps(query), deploy.HITS)]


class Encoded:
    """Stands in for the model that splade-index encodes with."""

    def __init__(self, rows: Any, vocabulary: dict[str, int]):
        self._rows, self.vocabulary, self.tokenizer = rows, vocabulary, self

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def encode_document(self, *_: object, **__: object) -> Any:
        import torch

        rows = self._rows.tocoo()
        return torch.sparse_coo_tensor(np.vstack([rows.row, rows.col]), rows.data, rows.shape).coalesce()

    def encode_query(self, queries: list[str], **_: object) -> Any:
        import torch

        weights = {self.vocabulary[t]: float(w) for t, w in json.loads(queries[0]).items() if t in self.vocabulary}
        return [torch.sparse_coo_tensor([[*weights]], [*weights.values()], [len(self.vocabulary)])]


def open_splade_index(folder: Path) -> deploy.Search:
    from scipy.sparse import vstack
    from splade_index import SPLADE

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.vectors.shards import Vectors
    from cai_pyserini.vectors.weighting import open_impacts

    config = load_encoder(str(folder / "impacts10"))
    shards = [*open_impacts(Vectors(folder / "vectors"), config)]
    rows = vstack([shard.vectors for shard in shards], format="csr").astype(np.float32)
    terms = open_impacts(Vectors(folder / "vectors"), config).terms
    ids = [id for shard in shards for id in shard.ids]
    retriever = SPLADE(backend="numba")
    retriever.index(
        Encoded(rows, {t: n for n, t in enumerate(terms)}), ids, ids, show_progress=False, compile_numba_code=False
    )

    def search(query: harness.Impacts) -> deploy.Found:
        found = retriever.retrieve([json.dumps(query)], k=deploy.HITS, show_progress=False, n_threads=0)
        return list(zip(found.doc_ids[0].tolist(), found.scores[0].tolist(), strict=True))

    return search


OPENERS: dict[str, Callable[..., deploy.Search]] = {
    "stock": open_stock,
    "Lucene": open_lucene,
    "Seismic": deploy.open_seismic,
    "BMP": deploy.open_bmp,
    "splade-index": open_splade_index,
}


def measure(opener: str, folder: str, queries: str = "queries", **arguments: Any) -> harness.Result:
    """Milliseconds per query, and what each query finds."""
    search = OPENERS[opener](Path(folder), **arguments)
    milliseconds, found = harness.timed(search, json.loads(Path(folder, f"{queries}.json").read_text()))
    return {"milliseconds": milliseconds, "found": found}


def ndcg(found: dict[str, deploy.Found], labels: dict[str, dict[str, int]]) -> float:
    """Mean nDCG@10 of the queries that have judgments."""
    from cai_pyserini.runs.measures import mean
    from cai_pyserini.runs.measures import measure as measures
    from cai_pyserini.runs.trec import run_of

    judged = {query: labels[query] for query in found if query in labels}
    hits = {query: [(id, score) for id, score in ranking] for query, ranking in found.items()}
    return mean(measures(judged, run_of(hits), ["nDCG@10"])["nDCG@10"])


def plot(rows: list[list[Any]], path: str) -> harness.Result:
    """Plot nDCG@10 against the median latency."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    from cai_pyserini.core.figures import save

    made = Figure(figsize=(8, 5), layout="constrained")
    axes = made.add_subplot()
    for name, _, score, _, p50, _ in rows:
        marker = {"S": "s", "B": "^", "s": "x", "b": "+"}.get(name[0], "o")
        axes.plot([p50], [score], marker=marker, linestyle="none", label=name)
    axes.set(xscale="log", xlabel="median latency, ms", ylabel="nDCG@10")
    axes.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    made.legend(loc="outside right upper", fontsize="small")
    save(made, Path(path))
    return {}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--query-mass", type=float, nargs="+", default=[0.5, 0.6, 0.7], help="of the first step")
    parser.add_argument("--rescored", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--plot", help="PNG file to write")
    parser.add_argument("--folder", type=Path, help="where everything is kept (default: a temporary folder)")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        sizes_file = folder / "sizes.json"
        if not sizes_file.exists():
            made = {"encoder": args.encoder, "documents": args.documents, "folder": str(folder)}
            sizes_file.write_text(json.dumps(harness.fresh(prepare, collection=args.collection, **made)))
        sizes = json.loads(sizes_file.read_text())
        peers: dict[str, tuple[str | None, str, dict[str, Any]]] = {
            "stock Pyserini": ("index10", "stock", {}),
            "exact": ("index10", "Lucene", {"index": "index10"}),
            "exact, 8 bits": ("index8", "Lucene", {"index": "index8"}),
        }
        for name, index in (("", "index10"), (", forward index", "forward")):
            for mass in args.query_mass:
                for rescored in args.rescored:
                    settings = {"index": index, "mass": mass, "rescored": rescored}
                    peers[f"{mass} / {rescored}{name}"] = index, "Lucene", settings
        for cut, factor in SEISMIC_SEARCHES:
            settings = {"query_cut": cut, "heap_factor": factor}
            peers[f"Seismic, {cut}, {factor}"] = "seismic", "Seismic", settings
        peers |= {f"BMP, 8 bits, alpha {alpha}": ("bmp", "BMP", {"alpha": alpha}) for alpha in (1.0, 0.8)}
        peers["splade-index"] = None, "splade-index", {}
        peers["bags of words, exact"] = "index10", "Lucene", {"index": "index10", "queries": "bags"}
        calls = {
            name: partial(harness.fresh, measure, opener=opener, folder=str(folder), **settings)
            for name, (_, opener, settings) in peers.items()
        }
        results = harness.rounds(args.repeats, calls)
        labels = json.loads((folder / "labels.json").read_text())
        scores = {
            queries: harness.fresh(deploy.exact, index=f"{folder}/index10", queries=f"{folder}/{queries}.json")
            for queries in harness.QUERIES
        }
        rows = []
        for name, (size, _, settings) in peers.items():
            found = results[name][0]["found"]
            recall, _ = deploy.agreement(found, scores[settings.get("queries", "queries")])
            times = [np.percentile(result["milliseconds"], [50, 99]) for result in results[name]]
            size_mb = f"{sizes[size] / 1e6:,.0f}" if size else "in memory"
            rows.append([name, size_mb, ndcg(found, labels), recall, *np.median(times, axis=0).tolist()])
        queries = len(results["exact"][0]["found"])
    title = f"{args.documents:,} documents of {Path(args.collection).name}, {queries:,} queries, {deploy.HITS} hits"
    header = ("", "MB", "nDCG@10", f"recall@{deploy.HITS}", "p50, ms", "p99, ms")
    cells = [
        [name, mb, f"{score:.4f}", f"{recall:.3f}", *(f"{ms:.2f}" for ms in times)]
        for name, mb, score, recall, *times in rows
    ]
    harness.show(title, header, cells)
    if args.plot:
        harness.fresh(plot, rows=rows, path=args.plot)


if __name__ == "__main__":
    main()
