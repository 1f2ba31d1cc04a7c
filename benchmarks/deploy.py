"""Sizes and speed of other engines, and whether they find the documents that our search of the Lucene index finds.

The impacts of joint are exported, once each, and every reader builds its index from its export. Each is then
searched in a process of its own, one thread, with the same encoded queries and 10 hits, after 1,000 queries as warm-up;
the clock stops when Python has document ids and scores. Sizes are those of the readers' own indexes on disk; of CIFF,
that of the exported file, which is no index yet. Recall is the part of a reader's 10 documents that are among our best
10, or have the score of the tenth. Scores are the same if they differ by less than 0.2 %: Seismic has weights in
float16. BMP has impacts and query weights of 8 bits, so it is compared with our search of impacts of 8 bits.
"""

import json
from collections.abc import Callable
from functools import partial
from math import isclose
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np

HITS = 10
DEEP = 1000
SEISMIC_BUILD = {"doc_cut": 1000, "summary_energy": 0.8}  # with its defaults, 15 and 0.4, it misses a fifth
SEISMIC_SEARCH = {"query_cut": 50, "heap_factor": 0.7}
SYSTEM = "joint-splade-idf"  # the name of its files
Found = list[tuple[str, float]]
Search = Callable[[harness.Impacts], Found]
HEADER = ("", "MB", "size / Lucene", f"recall@{HITS}", "queries with the same scores", "p50, ms", "p99, ms")
TOLERANCE = 2e-3  # relative, of scores: Seismic has weights in float16


def prepare(collection: str, encoder: str, folder: str) -> harness.Result:
    """Export the impacts, with 10 bits and with 8, and build the indexes of all readers. Returns sizes in bytes."""
    from cai_pyserini.core.files import folder_bytes

    path = Path(folder)
    run = path / "run"
    harness.stage("run", collection, "--no-raw", encoder=encoder, systems=SYSTEM, output=run)
    export: dict[str, Any] = {"impacts": run / "impacts" / SYSTEM, "collection": collection}
    for format in ("seismic", "ciff"):
        harness.stage("export", format, **export, output=path / format)
    harness.stage("export", "milvus", "--no-texts", **export, output=path / "milvus", uri=path / "milvus.db")
    build_seismic(path, **SEISMIC_BUILD)
    inputs = {"vectors": run / "vectors" / "documents", "idf": run / "idf", "words": run / "words", "encoder": encoder}
    harness.stage("stage impact", **inputs, bits=8, output=path / "impacts8")
    harness.stage("stage index", "impact", input=path / "impacts8", output=path / "index8")
    harness.stage("export", "ciff", impacts=path / "impacts8", collection=collection, output=path / "ciff8")
    build_bmp(path)
    for name in ("seismic", "milvus", "ciff8"):
        queries = [json.loads(line) for line in (path / name / "queries.jsonl").read_text().splitlines()]
        kept = {query["id"]: query["vector"] for query in queries if query["vector"]}
        (path / name / "searched.json").write_text(json.dumps(kept))
    return {
        "bytes": {
            "Lucene": folder_bytes(run / "indexes" / SYSTEM),
            "Milvus Lite": folder_bytes(path / "milvus.db"),
            "Seismic": (path / "index.seismic").stat().st_size,
            "Lucene, 8 bits": folder_bytes(path / "index8"),
            "BMP, 8 bits": (path / "index.bmp").stat().st_size,
            "CIFF file": (path / "ciff" / "index.ciff").stat().st_size,
        }
    }


def build_seismic(path: Path, **settings: float) -> None:
    """Make index.seismic of the export in `seismic`."""
    import seismic

    seismic.SeismicIndex.build(str(path / "seismic" / "documents.jsonl"), **settings).save(str(path / "built"))
    next(path.glob("built*")).rename(path / "index.seismic")


def build_bmp(path: Path) -> None:
    """Make index.bmp of the export in `ciff8`."""
    import bmp

    bmp.ciff2bmp(str(path / "ciff8" / "index.ciff"), str(path / "index.bmp"), 8, False)


def measure(reader: str, folder: str) -> harness.Result:
    """Milliseconds per query, and what each query finds."""
    queries_of, opener = READERS[reader]
    queries = json.loads(Path(folder, queries_of, "searched.json").read_text())
    milliseconds, found = harness.timed(opener(Path(folder)), queries)
    return {"milliseconds": milliseconds, "found": found}


def exact(index: str, queries: str) -> harness.Result:
    """The scores of the best documents of every query."""
    search = open_lucene(Path(index), DEEP)
    return {id: dict(search(vector)) for id, vector in json.loads(Path(queries).read_text()).items()}


def open_lucene(index: Path, hits: int = HITS) -> Search:
    from cai_pyserini.indexes.engines import open_searcher

    searcher, stats = open_searcher(index), harness.stats(index)
    scale = stats["document_scale"] * stats["query_scale"]
    return lambda vector: [(id, score * scale) for id, score in searcher.search(vector, hits)]


def open_milvus(folder: Path) -> Search:
    from cai_pyserini.indexes.milvus import FIELD, connect

    client = connect(str(folder / "milvus.db"))
    client.load_collection("cai")

    def search(vector: harness.Impacts) -> Found:
        keys = {int(key): float(weight) for key, weight in vector.items()}
        (hits,) = client.search("cai", [keys], anns_field=FIELD, limit=HITS, output_fields=["id"])
        return [(hit["id"], hit["distance"]) for hit in hits]

    return search


def open_seismic(folder: Path, **settings: float) -> Search:
    import seismic

    index, text = seismic.SeismicIndex.load(str(folder / "index.seismic")), seismic.get_seismic_string()

    def search(vector: harness.Impacts) -> Found:
        terms, weights = np.array([*vector], text), np.array([*vector.values()], np.float32)
        return [(id, score) for _, score, id in index.search("q", terms, weights, k=HITS, **settings)]

    return search


def open_bmp(folder: Path, alpha: float = 1.0) -> Search:
    import bmp

    searcher = bmp.Searcher(str(folder / "index.bmp"))
    return lambda vector: list(zip(*searcher.search(vector, HITS, alpha, 1.0), strict=True))


READERS: dict[str, tuple[str, Callable[[Path], Search]]] = {  # the folder with a reader's queries, and how to open it
    "Lucene": ("seismic", lambda folder: open_lucene(folder / "run" / "indexes" / SYSTEM)),
    "Milvus Lite": ("milvus", open_milvus),
    "Seismic": ("seismic", partial(open_seismic, **SEISMIC_SEARCH)),
    "Lucene, 8 bits": ("ciff8", lambda folder: open_lucene(folder / "index8")),
    "BMP, 8 bits": ("ciff8", open_bmp),
}


def agreement(found: dict[str, Found], scores: dict[str, dict[str, float]]) -> tuple[float, int]:
    """The mean recall, and the number of queries whose hits all have the scores that they have in Lucene.

    Documents that are as good as Lucene's last hit are right, since the order of equal scores is not defined.
    """
    recalls, same = [], 0
    for id, hits in found.items():
        best = [*scores[id].values()][:HITS]
        right = sum(scores[id].get(document, 0) >= best[-1] for document, _ in hits[: len(best)]) if best else 0
        recalls.append(right / len(best) if best else 1.0)
        same += all(isclose(score, scores[id].get(document, 0), rel_tol=TOLERANCE) for document, score in hits)
    return mean(recalls), same


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    with TemporaryDirectory() as folder:
        prepared = harness.fresh(prepare, collection=args.collection, encoder=args.encoder, folder=folder)
        peers = {reader: partial(harness.fresh, measure, reader=reader, folder=folder) for reader in READERS}
        results = harness.rounds(args.repeats, peers)
        scores = {
            "": harness.fresh(exact, index=f"{folder}/run/indexes/{SYSTEM}", queries=f"{folder}/seismic/searched.json"),
            "8 bits": harness.fresh(exact, index=f"{folder}/index8", queries=f"{folder}/ciff8/searched.json"),
        }
    sizes = prepared["bytes"]
    rows = []
    for name, size in sizes.items():
        row = [name, f"{size / 1e6:.1f}", f"{size / sizes['Lucene']:.2f}"]
        if name in results:
            recall, same = agreement(results[name][0]["found"], scores["8 bits" if name.endswith("8 bits") else ""])
            times = [np.percentile(result["milliseconds"], [50, 99]) for result in results[name]]
            row += [f"{recall:.4f}", f"{same:,}", *(f"{value:.2f}" for value in np.median(times, axis=0))]
        rows.append(row + ["–"] * (len(HEADER) - len(row)))
    queries = len(results["Lucene"][0]["found"])
    title = f"joint on {Path(args.collection).name}, {queries:,} queries, {HITS} hits, medians of {args.repeats}"
    harness.show(title, HEADER, rows)


if __name__ == "__main__":
    main()
