"""What approximate search gains and loses in a large collection: ours in one and two steps, stock, other engines.

The collection is made of a real one, as in scale.py: each document is one of its documents, whose judgments it gets,
and half of another. All search the same impacts with the same encoded queries, one at a time, in one thread and a
process of their own, after 300 queries as a warm-up; the clock stops when Python has document ids and scores. BMP has
impacts of 8 bits, and is exact where alpha is 1; splade-index gets the vectors instead of a model.

Recall is the part of the documents that the exact search finds which another finds too, or others with the score of the
last of them. Two steps are named `terms in the first field / query terms / rescored`; Seismic, with its defaults when
building, by query_cut and heap_factor.
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

HITS = 10
Search = Callable[[harness.Impacts], list[tuple[str, float]]]
SEISMIC_SEARCHES = [(10, 0.8), (10, 0.7), (20, 0.7)]  # query_cut, heap_factor


def prepare(collection: str, encoder: str, documents: int, first: list[int], folder: str) -> harness.Result:
    """Make the collection, its impacts, and everybody's indexes. Returns the sizes in bytes."""
    from cai_pyserini.core.files import folder_bytes

    path, source = Path(folder), {"collection": collection, "encoder": encoder}
    harness.stage("stage encode", **source, output=path / "raw")
    harness.stage("stage idf", **source, output=path / "idf")
    harness.fresh(harness.write_queries, **source, limit=1000, output=f"{path}/queries.json")
    made: dict[str, Any] = {
        "collection": collection,
        "vectors": f"{path}/raw",
        "documents": documents,
        "folder": folder,
    }
    harness.fresh(scale.synthesize, **made, dense=False, generated=False)
    write_labels(collection, path)
    vectors = {"vectors": path / "vectors", "idf": path / "idf", "encoder": encoder}
    sizes = {}
    for bits in (10, 8):
        harness.stage("stage impact", **vectors, bits=bits, output=path / f"impacts{bits}")
        harness.stage("stage index", "impact", input=path / f"impacts{bits}", output=path / f"index{bits}")
        sizes[f"index{bits}"] = folder_bytes(path / f"index{bits}")
    for count in first:
        index = path / f"first{count}"
        harness.stage("stage index", "impact", input=path / "impacts10", first_terms=count, output=index)
        sizes[index.name] = folder_bytes(index)
    for build in (build_seismic, build_bmp):
        sizes |= harness.fresh(build, folder=folder)
    return sizes


def write_labels(collection: str, path: Path) -> None:
    """The judgments of the made documents: query -> number of the whole document -> grade."""
    opened, _, qrels = harness.opened(collection)
    numbers = {document.id: number for number, document in enumerate(opened.documents())}
    grades = {q: {numbers[d]: g for d, g in judged.items() if d in numbers and g > 0} for q, judged in qrels.items()}
    (path / "labels.json").write_text(json.dumps({query: judged for query, judged in grades.items() if judged}))


def build_seismic(folder: str) -> harness.Result:
    import seismic

    path = Path(folder)
    harness.stage("export", "seismic", impacts=path / "impacts10", output=path / "seismic")
    seismic.SeismicIndex.build(str(path / "seismic" / "documents.jsonl")).save(str(path / "built"))
    built = next(path.glob("built*")).rename(path / "index.seismic")
    return {"seismic": built.stat().st_size}


def build_bmp(folder: str) -> harness.Result:
    import bmp

    path = Path(folder)
    harness.stage("export", "ciff", impacts=path / "impacts8", output=path / "ciff")
    bmp.ciff2bmp(str(path / "ciff" / "index.ciff"), str(path / "index.bmp"), 8, False)
    return {"bmp": (path / "index.bmp").stat().st_size}


def open_lucene(folder: Path, index: str, terms: int | None = None, rescored: int | None = None) -> Search:
    from cai_pyserini.lucene.searcher import LuceneSearcher
    from cai_pyserini.vectors.queries import TwoStep

    searcher = LuceneSearcher(folder / index, two_step=TwoStep(terms, rescored) if rescored else None)
    return lambda query: searcher.search(query, HITS)


def open_stock(folder: Path) -> Search:
    searcher = harness.open_stock(str(folder / "index10"), {})
    encoder = searcher.query_encoder
    encoder.encode = json.loads  # a query goes in as text
    return lambda query: [(hit.docid, hit.score) for hit in searcher.search(json.dumps(query), HITS)]


def open_seismic(folder: Path, query_cut: int, heap_factor: float) -> Search:
    import seismic

    index, text = seismic.SeismicIndex.load(str(folder / "index.seismic")), seismic.get_seismic_string()

    def search(query: harness.Impacts) -> list[tuple[str, float]]:
        terms, weights = np.array([*query], text), np.array([*query.values()], np.float32)
        found = index.search("q", terms, weights, k=HITS, query_cut=query_cut, heap_factor=heap_factor)
        return [(id, score) for _, score, id in found]

    return search


def open_bmp(folder: Path, alpha: float) -> Search:
    import bmp

    searcher = bmp.Searcher(str(folder / "index.bmp"))
    return lambda query: list(zip(*searcher.search(query, HITS, alpha, 1.0), strict=True))


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


def open_splade_index(folder: Path) -> Search:
    from scipy.sparse import vstack
    from splade_index import SPLADE

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.impacts.weighting import open_impacts
    from cai_pyserini.vectors.shards import Vectors

    config = load_encoder(str(folder / "impacts10"))
    shards = [*open_impacts(Vectors(folder / "vectors"), config)]
    rows = vstack([shard.vectors for shard in shards], format="csr").astype(np.float32)
    terms = open_impacts(Vectors(folder / "vectors"), config).terms
    ids = [id for shard in shards for id in shard.ids]
    retriever = SPLADE(backend="numba")
    retriever.index(
        Encoded(rows, {t: n for n, t in enumerate(terms)}), ids, ids, show_progress=False, compile_numba_code=False
    )

    def search(query: harness.Impacts) -> list[tuple[str, float]]:
        found = retriever.retrieve([json.dumps(query)], k=HITS, show_progress=False, n_threads=0)
        return list(zip(found.doc_ids[0].tolist(), found.scores[0].tolist(), strict=True))

    return search


def measure(opener: str, folder: str, **arguments: Any) -> harness.Result:
    """Milliseconds per query, and what each query finds."""
    search = globals()[opener](Path(folder), **arguments)
    milliseconds, found = harness.timed(search, json.loads(Path(folder, "queries.json").read_text()))
    return {"milliseconds": milliseconds, "found": found}


def exact(folder: str) -> harness.Result:
    """The scores of the best documents of every query."""
    from cai_pyserini.lucene.searcher import LuceneSearcher

    searcher, queries = LuceneSearcher(Path(folder, "index10")), json.loads(Path(folder, "queries.json").read_text())
    return {"scores": {id: dict(searcher.search(query, deploy.DEEP)) for id, query in queries.items()}}


def ndcg(found: dict[str, list[tuple[str, float]]], folder: Path) -> float:
    """Mean nDCG@10 of the made documents, which have the judgments of the documents that are whole in them."""
    wholes, labels = np.load(folder / "wholes.npy"), json.loads((folder / "labels.json").read_text())
    copies, discounts, values = np.bincount(wholes), 1 / np.log2(np.arange(HITS) + 2), []
    for query in labels.keys() & found.keys():
        judged = {int(document): grade for document, grade in labels[query].items()}
        gains = [2 ** judged.get(int(wholes[int(id[1:])]), 0) - 1 for id, _ in found[query]]
        grades = [grade for document, grade in judged.items() for _ in range(min(HITS, copies[document]))]
        best = [2**grade - 1 for grade in sorted(grades, reverse=True)[:HITS]]
        if best:
            values.append(discounts[: len(gains)] @ np.array(gains) / (discounts[: len(best)] @ np.array(best)))
    return float(np.mean(values))


def plot(rows: list[list[Any]], path: str) -> harness.Result:
    """Plot nDCG@10 against the median latency."""
    from matplotlib.figure import Figure

    from cai_pyserini.core.figures import save

    made = Figure(figsize=(8, 5), layout="constrained")
    axes = made.add_subplot()
    for name, _, score, _, p50, _ in rows:
        marker = {"S": "s", "B": "^", "s": "x"}.get(name[0], "o")
        axes.plot([p50], [score], marker=marker, linestyle="none", label=name)
    axes.set(xscale="log", xlabel="median latency, ms", ylabel="nDCG@10")
    axes.grid(alpha=0.3)
    made.legend(loc="outside right upper", fontsize="small")
    save(made, Path(path))
    return {}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, nargs="+", default=[32, 64, 96], help="terms in fields of the first step")
    parser.add_argument("--query-terms", type=int, nargs="+", default=[5, 8, 16], help="of the first step")
    parser.add_argument("--rescored", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--plot", help="PNG file to write")
    parser.add_argument("--folder", type=Path, help="where everything is kept (default: a temporary folder)")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        sizes_file = folder / "sizes.json"
        if not sizes_file.exists():
            made = {"encoder": args.encoder, "documents": args.documents, "first": args.first, "folder": str(folder)}
            sizes_file.write_text(json.dumps(harness.fresh(prepare, collection=args.collection, **made)))
        sizes = json.loads(sizes_file.read_text())
        peers: dict[str, tuple[str | None, str, dict[str, Any]]] = {
            "stock Pyserini": ("index10", "open_stock", {}),
            "exact": ("index10", "open_lucene", {"index": "index10"}),
            "exact, 8 bits": ("index8", "open_lucene", {"index": "index8"}),
        }
        for count in args.first:
            for terms in args.query_terms:
                for rescored in args.rescored:
                    settings = {"index": f"first{count}", "terms": terms, "rescored": rescored}
                    peers[f"{count} / {terms} / {rescored}"] = f"first{count}", "open_lucene", settings
        for cut, factor in SEISMIC_SEARCHES:
            settings = {"query_cut": cut, "heap_factor": factor}
            peers[f"Seismic, {cut}, {factor}"] = "seismic", "open_seismic", settings
        peers |= {f"BMP, 8 bits, alpha {alpha}": ("bmp", "open_bmp", {"alpha": alpha}) for alpha in (1.0, 0.8)}
        peers["splade-index"] = None, "open_splade_index", {}
        calls = {
            name: partial(harness.fresh, measure, opener=opener, folder=str(folder), **settings)
            for name, (_, opener, settings) in peers.items()
        }
        results = harness.rounds(args.repeats, calls)
        scores = harness.fresh(exact, folder=str(folder))["scores"]
        rows = []
        for name, (size, _, _) in peers.items():
            found = results[name][0]["found"]
            recall, _ = deploy.agreement(found, scores)
            times = [np.percentile(result["milliseconds"], [50, 99]) for result in results[name]]
            size_mb = f"{sizes[size] / 1e6:,.0f}" if size else "in memory"
            rows.append([name, size_mb, ndcg(found, folder), recall, *np.median(times, axis=0).tolist()])
        queries = len(scores)
    title = f"{args.documents:,} documents of {Path(args.collection).name}, {queries:,} queries, {HITS} hits"
    header = ("", "MB", "nDCG@10", f"recall@{HITS}", "p50, ms", "p99, ms")
    cells = [
        [name, mb, f"{score:.4f}", f"{recall:.3f}", *(f"{ms:.2f}" for ms in times)]
        for name, mb, score, recall, *times in rows
    ]
    harness.show(title, header, cells)
    if args.plot:
        harness.fresh(plot, rows=rows, path=args.plot)


if __name__ == "__main__":
    main()
