"""Time and memory of the stages, for collections of different sizes.

Collections of any size are made of a real one: each document is one of its documents and half of another, of its words
in the text, of its terms in the vector; its dense vector is a mix of theirs, and its generated queries are the
beginnings of words of its text. The stages run as commands, index also with one process; their seconds are those of
their manifests, without imports. Memory is the private memory of a command and the processes it starts, sampled ten
times per second; files that are mapped into memory are left out, because the system can drop them. Search is one query
at a time, in one thread, after 1,000 queries as warm-up; bags of words need no model for queries. A service is asked
by 32 clients at a time, each its next query when it has the answer to the last, after 100 queries as a warm-up; it
encodes the queries.

`encode` is left out unless --stages asks for it.
"""

import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

from cai_pyserini.core.config import FAST

PRIVATE = "RssAnon"
ALL = "index, all processors"
FORWARD = "index, forward index, all processors"
STORED = "index, documents stored"
JOINT = "joint index, forward index, all processors"
STAGES = ["encode", "idf", "impact", "words", "near", "near-words", "joint impact", "index", STORED, ALL]
STAGES += [FORWARD, JOINT, "generated queries", "dense index", "search", "search, two steps"]
STAGES += ["search, bags of words", "joint search", "joint search, two steps"]
STAGES += ["serve", "serve, two steps", "serve joint", "serve joint, two steps"]
DENSE = "minilm"  # encoder of the dense vectors
QUERIES = 3  # generated for each document
CLIENTS = 32


def synthesize(
    collection: str, vectors: str, documents: int, folder: str, dense: str | None, generated: bool
) -> harness.Result:
    """Write `corpus.jsonl`, `vectors`, and `dense` and `generated` if wanted, made of a collection, its raw vectors and
    its dense ones, and the numbers of the documents that are whole in them, `wholes.npy`."""
    import numpy as np
    from scipy.sparse import vstack

    from cai_pyserini.vectors.shards import SHARD, Vectors

    texts = [document.contents.split() for document in harness.opened(collection)[0].documents()]
    source = Vectors(Path(vectors))
    rows = vstack([shard.vectors for shard in source], format="csr")
    draw = np.random.default_rng(documents)
    sizes = [min(SHARD, documents - start) for start in range(0, documents, SHARD)]
    corpus, pairs = Path(folder, "corpus.jsonl"), []

    def mixed(start: int, size: int) -> Any:
        whole, half = draw.integers(len(texts), size=(2, size))
        pairs.append((whole, half))
        with corpus.open("a", encoding="utf-8") as file:
            for number, a, b in zip(range(start, start + size), whole, half, strict=True):
                text = " ".join(texts[a] + texts[b][: len(texts[b]) // 2])
                file.write(json.dumps({"_id": f"d{number:07d}", "text": text}) + "\n")
        other = rows[half]
        other.data[draw.random(other.nnz) < 0.5] = 0
        return rows[whole].maximum(other)

    harness.write_vectors(Path(folder, "vectors"), source, documents, map(mixed, range(0, documents, SHARD), sizes))
    np.save(Path(folder, "wholes.npy"), np.concatenate([whole for whole, _ in pairs]))
    if dense:
        encoded = Vectors(Path(dense))
        real = np.vstack([shard.vectors for shard in encoded]).astype(np.float32)
        sums = (real[whole] + real[half] / 2 for whole, half in pairs)
        mixes = (mix / np.linalg.norm(mix, axis=1, keepdims=True) for mix in sums)
        harness.write_vectors(Path(folder, "dense"), encoded, documents, mixes)
    if generated:
        write_generated(texts, documents, Path(folder, "generated"))
    return {}


def write_generated(texts: list[list[str]], documents: int, output: Path) -> None:
    (output / "qrels").mkdir(parents=True)
    with (output / "qrels" / "train.tsv").open("w") as judged, (output / "queries.jsonl").open("w") as queries:
        for document in range(documents):
            words = texts[document % len(texts)]
            for number in range(QUERIES):
                id = f"d{document:07d}-{number}"
                queries.write(json.dumps({"_id": id, "text": " ".join(words[number : number + 6])}) + "\n")
                judged.write(f"{id}\td{document:07d}\t1\n")


def searching(index: str, queries: str, two_step: list[Any], hits: int) -> harness.Result:
    """Percentiles of the milliseconds of a query, and the private memory afterwards."""
    import numpy as np

    from cai_pyserini.indexes.engines import SearchOptions, open_searcher
    from cai_pyserini.vectors.queries import TwoStep

    searcher = open_searcher(Path(index), SearchOptions(two_step=TwoStep(*two_step) if two_step else None))
    milliseconds, _ = harness.timed(partial(searcher.search, hits=hits), json.loads(Path(queries).read_text()))
    p50, p99 = np.percentile(milliseconds, [50, 99]).tolist()
    return {"p50": p50, "p99": p99, "memory": harness.memory("self", PRIVATE)}


def joint_searching(collection: str, index: str, folder: str, two_step: list[Any], hits: int) -> harness.Result:
    """`searching` with queries for this joint index."""
    queries = f"{folder}/joint queries.json"
    harness.fresh(harness.write_queries, collection=collection, encoder=index, limit=1000, output=queries)
    return harness.fresh(searching, index=index, queries=queries, two_step=two_step, hits=hits)


def serving(collection: str, index: str, two_step: list[Any]) -> harness.Result:
    """Serve a link to an index, with these settings of its encoder: requests per second, percentiles of their
    milliseconds, errors, and the private memory afterwards."""
    import serve

    from cai_pyserini.core.config import encoder_yaml, load_encoder

    texts = [*dict.fromkeys(harness.opened(collection)[1].values())]
    with TemporaryDirectory() as folder:
        served = Path(folder, "served")
        served.mkdir()
        for path in Path(index).iterdir():
            if path.name != "encoder.yaml":
                (served / path.name).symlink_to(path)
        config = load_encoder(index).replace(**dict(zip(("keep_query_mass", "rescore"), two_step, strict=False)))
        (served / "encoder.yaml").write_text(encoder_yaml(config, served))
        with serve.ours(served) as (pid, port):
            result = serve.measured(port, "served", texts, CLIENTS)
            return result | {"memory": harness.memory(pid, PRIVATE)}


def measure(name: str, stage: str, folder: str, **options: object) -> harness.Result:
    """Run a stage: its seconds, its memory, and the bytes it wrote."""
    output = Path(folder, name)
    peak = harness.stage(f"stage {stage}", memory_of=PRIVATE, **options, output=output)["peak"]
    written = sum(path.stat().st_size for path in output.iterdir())
    return {"seconds": harness.stats(output)["seconds"], "memory": peak, "bytes": written}


def stages(
    args: Any, documents: int, vectors: str, real_dense: str | None, folder_of_queries: str, idf: str
) -> list[harness.Result]:
    """Make a collection and run the stages on it; impacts have the IDF of the real one."""
    with TemporaryDirectory() as folder:
        print(f"{documents:,} documents", file=sys.stderr)
        source = {"collection": args.collection, "vectors": vectors, "documents": documents, "folder": folder}
        optional = {"dense": real_dense, "generated": "generated queries" in args.stages}
        harness.fresh(synthesize, **source, **optional)
        names = ("corpus.jsonl", "vectors", "impact", "joint impact", "words", "near", "generated", "dense")
        corpus, raw, impacts, joint, words, near, generated, dense = (f"{folder}/{name}" for name in names)
        text, encoder = {"collection": corpus}, {"encoder": args.encoder}
        runs: dict[str, tuple[str, dict[str, Any]]] = {
            "encode": ("encode", text | encoder),
            "idf": ("idf", text | encoder),
            "impact": ("impact", {"vectors": raw, "idf": idf} | encoder),
            "words": ("words", text),
            "near": ("near", {"vectors": dense}),
            "near-words": ("near-words", {"words": words, "vectors": dense, "near": near, "encoder": DENSE}),
            "joint impact": ("impact", {"vectors": raw, "words": words, "alpha": 1} | encoder),
            "index": ("index impact", {"input": impacts, "threads": 1}),
            STORED: ("index impact", {"input": impacts, "threads": 1} | text),
            ALL: ("index impact", {"input": impacts}),
            FORWARD: ("index impact", {"input": impacts, "forward_index": []}),
            JOINT: ("index impact", {"input": joint, "forward_index": []}),
            "generated queries": ("index bm25", {"generated": generated} | text),
            "dense index": ("index dense", {"vectors": dense}),
        }
        measures = {name: partial(measure, name, stage, folder, **options) for name, (stage, options) in runs.items()}
        steps = [args.query_mass, args.rescored]
        for name, index, queries, two_step in (
            ("search", ALL, "queries", []),
            ("search, two steps", FORWARD, "queries", steps),
            ("search, bags of words", ALL, "bags", []),
        ):
            searched = {"index": f"{folder}/{index}", "queries": f"{folder_of_queries}/{queries}.json"}
            call = partial(harness.fresh, searching, **searched, two_step=two_step, hits=args.hits)
            measures[name] = call
        for suffix, two_step in (("", []), (", two steps", steps)):
            given = {"collection": args.collection, "two_step": two_step}
            joint_index = f"{folder}/{JOINT}"
            measures[f"joint search{suffix}"] = partial(
                joint_searching, **given, index=joint_index, folder=folder, hits=args.hits
            )
            for name, index in (("serve", f"{folder}/{FORWARD}"), ("serve joint", joint_index)):
                measures[name + suffix] = partial(harness.fresh, serving, **given, index=index)
        return [{"documents": documents, "stage": name} | measures[name]() for name in STAGES if name in args.stages]


def plot(rows: list[harness.Result], path: str) -> harness.Result:
    """Plot seconds and memory of each stage against the number of documents."""
    from matplotlib.figure import Figure

    from cai_pyserini.core.figures import save

    made = Figure(figsize=(9, 4), layout="constrained")
    seconds, memory = made.subplots(1, 2)
    for stage in dict.fromkeys(row["stage"] for row in rows):
        of_stage = [row for row in rows if row["stage"] == stage]
        sizes = [row["documents"] for row in of_stage]
        memory.plot(sizes, [row["memory"] / 1e6 for row in of_stage], marker=".", label=stage)
        if "seconds" in of_stage[0]:
            seconds.plot(sizes, [row["seconds"] for row in of_stage], marker=".", label=stage)
    for axes, label in ((seconds, "seconds"), (memory, "private memory, MB")):
        axes.set(xscale="log", yscale="log", xlabel="documents", ylabel=label)
        axes.grid(alpha=0.3)
    memory.set_ylim(10, 10_000)
    memory.legend(fontsize="small")
    save(made, Path(path))
    return {}


def cells(row: harness.Result) -> tuple[str, ...]:
    """A row of the table."""
    size, memory = f"{row['documents']:,}", f"{row['memory'] / 1e6:,.0f}"
    if "p50" in row:
        rate = f"{row['rate']:,.0f} requests per second, {row['errors']} errors, " if "rate" in row else ""
        return size, row["stage"], f"{rate}p50 {row['p50']:.1f} ms, p99 {row['p99']:.1f} ms", "", memory, ""
    rate = f"{row['documents'] / row['seconds']:,.0f}"
    return size, row["stage"], rate, f"{row['seconds']:.1f}", memory, f"{row['bytes'] / row['documents']:,.0f}"


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="sizes")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES[1:], help="after those that they need")
    parser.add_argument("--hits", type=int, default=100, help="of a search")
    parser.add_argument("--query-mass", type=float, default=FAST["keep_query_mass"], help="in two steps: of a query")
    parser.add_argument("--rescored", type=int, default=FAST["rescore"], help="in two steps: documents")
    parser.add_argument("--plot", help="PNG file to write")
    args = parser.parse_args()
    rows: list[harness.Result] = []
    with TemporaryDirectory() as folder:
        settings = {"collection": args.collection, "encoder": args.encoder}
        vectors, idf = f"{folder}/vectors", f"{folder}/idf"
        harness.stage("stage idf", **settings, output=idf)
        harness.stage("stage encode", **settings, output=vectors)
        dense = f"{folder}/dense" if {"near", "dense index"} & {*args.stages} else None
        if dense:
            harness.stage("stage encode", collection=args.collection, encoder=DENSE, output=dense)
        harness.write_all_queries(folder, **settings)
        for documents in sorted(args.documents):
            rows += stages(args, documents, vectors, dense, folder, idf)
    header = ("documents", "stage", "documents per second", "seconds", "private memory, MB", "bytes per document")
    harness.show(f"Stages ({Path(args.collection).name}, recombined)", header, map(cells, rows))
    if args.plot:
        harness.fresh(plot, rows=rows, path=args.plot)


if __name__ == "__main__":
    main()
