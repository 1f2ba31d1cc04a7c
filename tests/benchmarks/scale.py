"""Claim: what follows encoding is linear in the number of documents, and needs no more memory for more of them.

Collections of any size are made of a real one: each document is one of its documents and half of another, of its words
in the text, of its terms in the vector; its dense vector is random, and its generated queries are the beginnings of
words of its text. The stages run as commands, index also with one process; their seconds are
those of their manifests, without imports. Memory is the private memory of a command and the processes it starts,
sampled ten times per second; files that are mapped into memory are left out, because the system can drop them. Search
is one query at a time, in one thread, 100 hits, after 300 queries as a warm-up.

No more memory: at most a tenth more for each stage, from one size to the next, of 100,000 documents at least. This is
not asked of indexing with all processors, since the number of its processes depends on the size of the collection.
Of BM25 with generated queries, what is measured is all but Anserini, whose JVM has a heap of 2 GB.
"""

import json
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import inputs

HITS = 100
WARM_UP = 300
LARGE = 100_000  # documents of the smallest collection whose memory is compared
PRIVATE = "RssAnon"
ALL = "index, all processors"
STORED = "index, documents stored"
STAGES = ["idf", "impact", "words", "joint impact", "index", STORED, ALL]
STAGES += ["generated queries", "dense index", "search"]
WIDTH = 384  # of dense vectors
QUERIES = 3  # generated for each document

Row = dict[str, Any]  # documents, stage, seconds, memory, bytes; of search: documents, stage, p50, p99, memory


def synthesize(collection: str, vectors: str, documents: int, folder: str) -> Row:
    """Write `corpus.jsonl`, `vectors`, `dense` and `generated`, made of a collection and its raw vectors."""
    import numpy as np
    from scipy.sparse import vstack

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.vectors.shards import SHARD, Shard, Vectors, shard_path, write_shard

    texts = [document.contents.split() for document in open_collection(load_index_config(collection)).documents()]
    source = Vectors(Path(vectors))
    rows = vstack([shard.vectors for shard in source], format="csr")
    recipe = source.manifest.recipe | {"documents": documents}
    draw = np.random.default_rng(documents)

    def write(output: Path) -> artifact.Stats:
        starts = range(0, documents, SHARD)
        nonzeros = 0
        with Path(folder, "corpus.jsonl").open("w", encoding="utf-8") as corpus:
            for number, start in enumerate(starts):
                ids = [f"d{document:07d}" for document in range(start, min(start + SHARD, documents))]
                whole, half = draw.integers(len(texts), size=(2, len(ids)))
                for id, a, b in zip(ids, whole, half, strict=True):
                    text = " ".join(texts[a] + texts[b][: len(texts[b]) // 2])
                    corpus.write(json.dumps({"_id": id, "text": text}) + "\n")
                other = rows[half]
                other.data[draw.random(other.nnz) < 0.5] = 0
                made = rows[whole].maximum(other)
                nonzeros += made.nnz
                write_shard(shard_path(output, number), Shard(ids, made), artifact.digest(recipe), 0.0, 1)
        return {"vectors": documents, "shards": len(starts), "nonzeros": nonzeros}

    artifact.make(Path(folder, "vectors"), recipe, write)

    def write_dense(output: Path) -> artifact.Stats:
        starts = range(0, documents, SHARD)
        for number, start in enumerate(starts):
            ids = [f"d{document:07d}" for document in range(start, min(start + SHARD, documents))]
            rows = draw.standard_normal((len(ids), WIDTH), np.float32)
            write_shard(shard_path(output, number), Shard(ids, rows), artifact.digest(recipe), 0.0, 1)
        return {"vectors": documents, "shards": len(starts)}

    artifact.make(Path(folder, "dense"), recipe | {"kind": "dense"}, write_dense)
    qrels = Path(folder, "generated", "qrels")
    qrels.mkdir(parents=True)
    with (qrels / "train.tsv").open("w") as judged, (qrels.parent / "queries.jsonl").open("w") as queries:
        for document in range(documents):
            words = texts[document % len(texts)]
            for number in range(QUERIES):
                id = f"d{document:07d}-{number}"
                queries.write(json.dumps({"_id": id, "text": " ".join(words[number : number + 6])}) + "\n")
                judged.write(f"{id}\td{document:07d}\t1\n")
    return {}


def staging(corpus: str, generated: str, folder: str) -> Row:
    """Prepare documents and their generated queries for Anserini: seconds, private memory at the end, bytes."""
    from cai_pyserini.collection.beir_folder import BeirFolder
    from cai_pyserini.index.bm25 import _stage_json, queries_of_documents

    start = time.perf_counter()
    output = Path(folder, "staged")
    output.mkdir()
    appended = queries_of_documents(BeirFolder(Path(generated), "generated"), Path(folder, "generated queries"))
    _stage_json(BeirFolder(Path(corpus), "corpus"), output, appended, 0, 1)
    memory = harness.memory("self", PRIVATE)
    written = sum(path.stat().st_size for path in output.iterdir())
    seconds = time.perf_counter() - start
    return {"stage": "generated queries", "seconds": seconds, "memory": memory, "bytes": written}


def searching(index: str, queries: str) -> Row:
    """Percentiles of the milliseconds of a query, and the private memory afterwards."""
    import numpy as np

    from cai_pyserini.retrieval.search import open_searcher

    searcher = open_searcher(Path(index))
    encoded: list[dict[str, int]] = list(json.loads(Path(queries).read_text()).values())
    milliseconds = []
    for query in encoded[:WARM_UP] + encoded:
        start = time.perf_counter()
        searcher.search(query, HITS)
        milliseconds.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(milliseconds[WARM_UP:], [50, 99]).tolist()
    return {"stage": "search", "p50": p50, "p99": p99, "memory": harness.memory("self", PRIVATE)}


def measure(name: str, stage: list[str], folder: str, **options: object) -> Row:
    """Run a stage: its seconds, its memory, and the bytes it wrote."""
    output = Path(folder, name)
    flags = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, "-m", f"cai_pyserini.{stage[0]}", *stage[1:], *flags, "--output", str(output)]
    _, memory = harness.run(command, memory_of=PRIVATE)
    seconds = json.loads((output / "manifest.json").read_text())["stats"]["seconds"]
    written = sum(path.stat().st_size for path in output.iterdir())
    return {"stage": name, "seconds": seconds, "memory": memory, "bytes": written}


def stages(args: Any, documents: int, vectors: str, queries: str) -> list[Row]:
    """Make a collection and run the stages on it."""
    with TemporaryDirectory(dir=args.folder) as folder:
        print(f"{documents:,} documents", file=sys.stderr)
        harness.fresh(synthesize, collection=args.collection, vectors=vectors, documents=documents, folder=folder)
        names = ("corpus.jsonl", "idf", "vectors", "impact")
        corpus, idf, raw, impacts = (f"{folder}/{name}" for name in names)
        encoder = {"encoder": args.encoder}
        measures = {
            "idf": partial(measure, "idf", ["idf"], folder, collection=corpus, **encoder),
            "impact": partial(measure, "impact", ["impact"], folder, vectors=raw, idf=idf, **encoder),
            "words": partial(measure, "words", ["words"], folder, collection=corpus),
            "joint impact": partial(
                measure, "joint impact", ["impact"], folder, vectors=raw, words=f"{folder}/words", alpha=1, **encoder
            ),
            "index": partial(measure, "index", ["index", "impact"], folder, input=impacts, threads=1),
            STORED: partial(measure, STORED, ["index", "impact"], folder, input=impacts, collection=corpus, threads=1),
            ALL: partial(measure, ALL, ["index", "impact"], folder, input=impacts),
            "generated queries": partial(
                harness.fresh, staging, corpus=corpus, generated=f"{folder}/generated", folder=folder
            ),
            "dense index": partial(measure, "dense index", ["index", "dense"], folder, vectors=f"{folder}/dense"),
            "search": partial(harness.fresh, searching, index=f"{folder}/index", queries=queries),
        }
        rows = [run() for stage, run in measures.items() if stage in args.stages]
    return [{"documents": documents} | row for row in rows]


def plot(rows: list[Row], path: str) -> Row:
    """Plot seconds and memory of each stage against the number of documents."""
    from matplotlib.figure import Figure

    from cai_pyserini.core.figures import save

    made = Figure(figsize=(9, 4), layout="constrained")
    seconds, memory = made.subplots(1, 2)
    for stage in dict.fromkeys(row["stage"] for row in rows):
        of_stage = [row for row in rows if row["stage"] == stage]
        sizes = [row["documents"] for row in of_stage]
        memory.plot(sizes, [row["memory"] / 1e6 for row in of_stage], marker=".", label=stage)
        if stage != "search":
            seconds.plot(sizes, [row["seconds"] for row in of_stage], marker=".", label=stage)
    for axes, label in ((seconds, "seconds"), (memory, "private memory, MB")):
        axes.set(xscale="log", yscale="log", xlabel="documents", ylabel=label)
        axes.grid(alpha=0.3)
    memory.set_ylim(10, 10_000)
    memory.legend(fontsize="small")
    save(made, Path(path))
    return {}


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    size, memory = f"{row['documents']:,}", f"{row['memory'] / 1e6:,.0f}"
    if row["stage"] == "search":
        return size, "search", f"p50 {row['p50']:.1f} ms, p99 {row['p99']:.1f} ms", "", memory, ""
    rate = f"{row['documents'] / row['seconds']:,.0f}"
    return size, row["stage"], rate, f"{row['seconds']:.1f}", memory, f"{row['bytes'] / row['documents']:,.0f}"


def main() -> None:
    parser = harness.parser(__doc__, "scale")
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="sizes")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="after those that they need")
    parser.add_argument("--vectors", help="the collection's raw vectors, if they have been encoded")
    parser.add_argument("--folder", help="where the collections are made; a million documents take 9 GB")
    parser.add_argument("--plot", help="PNG file to write")
    args = parser.parse_args()
    rows: list[Row] = []
    with TemporaryDirectory(dir=args.folder) as folder:
        settings = {"collection": args.collection, "encoder": args.encoder}
        vectors, queries = args.vectors or f"{folder}/vectors", f"{folder}/queries.json"
        if not args.vectors:
            harness.stage("encode", **settings, output=vectors)
        harness.fresh(inputs.write_queries, **settings, limit=1000, output=queries)
        for documents in sorted(args.documents):
            rows += stages(args, documents, vectors, queries)
    header = ("documents", "stage", "documents per second", "seconds", "private memory, MB", "bytes per document")
    harness.show(f"Stages after encoding ({Path(args.collection).name}, recombined)", header, [*map(cells, rows)])
    found = {(row["documents"], row["stage"]): row for row in rows}
    size = max(args.documents)
    if {"index", ALL} <= {*args.stages}:
        speedup = found[size, "index"]["seconds"] / found[size, ALL]["seconds"]
        print(f"- {ALL}: {speedup:.2f} times as fast as with one process, {size:,} documents")
    for small, large in pairwise(size for size in sorted(args.documents) if size >= LARGE):
        for stage in dict.fromkeys(stage for _, stage in found if stage != ALL):
            growth = found[large, stage]["memory"] / found[small, stage]["memory"] - 1
            claim = f"{stage}: at most 10 % more memory for {large:,} than for {small:,} documents"
            harness.target(claim, f"{growth:+.1%}", growth <= 0.1)
    if args.plot:
        harness.fresh(plot, rows=rows, path=args.plot)


if __name__ == "__main__":
    main()
