"""Claim: indexing impacts is at least 5 times as fast as Anserini's JsonVectorCollection with impacts of 8 bits, and 15
times at Pyserini's own resolution (256 / 5 = 51.2 per unit of weight), thread for thread, with the same results.

Both index the same JSON vectors, IDF-weighted impacts of a collection, which are repeated under new ids until there are
at least 30,000, so that the JVM's warm-up weighs little on either side. Ours is `python -m cai_pyserini.index impact`
with one process (scale.py measures more); Anserini's is IndexCollection -impact -pretokenized -optimize, with one
thread and with one per processor, on 16 files. Every measurement is a process of its own. The clock runs over the whole
of indexing, commit and merge into one segment included, and not over the start of the JVM: ours by the seconds in its
manifest, Anserini by its log, from "Starting to index" to "Total … documents indexed".

Same results: Pyserini's LuceneImpactSearcher finds the same documents with the same scores in both indexes, 1,000 hits
per query.
"""

import json
import math
import os
import re
import shutil
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import inputs

DOCUMENTS = 30_000
FILES = 16  # each is a unit of work for Anserini's threads
RESOLUTION = 256 / 5
TARGETS = {"8 bits": 5, "51.2 per unit": 15}
LOGGED = re.compile(r"^(\S+ \S+) INFO .*?(Starting to index|Total [\d,]+ documents indexed)", re.MULTILINE)


def repeat(impacts: str, copies: int | None, output: str) -> dict[str, Any]:
    """Write JSON vectors `copies` times (None: DOCUMENTS at least), each time with new ids, in FILES files."""
    lines = [line for file in sorted(Path(impacts).glob("*.jsonl")) for line in file.open(encoding="utf-8")]
    copies = copies or -(-DOCUMENTS // len(lines))
    Path(output).mkdir()
    for number in range(FILES):
        with Path(output, f"{number:02d}.jsonl").open("w", encoding="utf-8") as file:
            for i in range(number, copies * len(lines), FILES):
                copy, line = divmod(i, len(lines))
                file.write(lines[line].replace('"id": "', f'"id": "{copy}-', 1))
    return {"documents": copies * len(lines), "copies": copies}


def ours(vectors: str, index: str) -> harness.Result:
    """Index with this package."""
    shutil.rmtree(index, ignore_errors=True)
    peak = harness.stage("index", "impact", input=vectors, threads=1, output=index)
    return {"seconds": json.loads(Path(index, "manifest.json").read_text())["stats"]["seconds"], "peak": peak}


def anserini(vectors: str, index: str, threads: int) -> harness.Result:
    """Index with Anserini."""
    from cai_pyserini.core import jvm

    shutil.rmtree(index, ignore_errors=True)
    java = jvm.find_java()
    command = [java.command, *jvm.options(java), "-cp", str(jvm.anserini_jar()), "io.anserini.index.IndexCollection"]
    command += ["-collection", "JsonVectorCollection", "-generator", "DefaultLuceneDocumentGenerator", "-impact"]
    command += ["-pretokenized", "-optimize", "-input", vectors, "-index", index, "-threads", str(threads)]
    log, peak = harness.run(command, merge=True)
    start, end = (datetime.fromisoformat(time.replace(",", ".")) for time, _ in LOGGED.findall(log))
    return {"seconds": (end - start).total_seconds(), "peak": peak}


def compare(first: str, second: str, queries: str) -> dict[str, Any]:
    """How many queries have the same documents and scores in two indexes."""
    encoded = json.loads(Path(queries).read_text())
    searchers = [inputs.open_stock(index, encoded) for index in (first, second)]
    same = 0
    for query in encoded:
        a, b = ([(hit.docid, hit.score) for hit in searcher.search(query, 1000)] for searcher in searchers)
        same += a == b
    return {"same": same, "queries": len(encoded)}


def prepare(collection: str, encoder: str, copies: int | None, queries: int | None, folder: str) -> harness.Result:
    """Write `queries.json`, and the JSON vectors of each resolution in a folder of its name. Returns their number."""
    settings = {"collection": collection, "encoder": encoder}
    eight = inputs.write_impacts(**settings, folder=folder, name="impacts of 8", bits=8)
    largest = 255 / json.loads(Path(eight, "manifest.json").read_text())["stats"]["document_scale"]
    bits = math.ceil(largest * RESOLUTION).bit_length()  # so that nothing is cut
    range_ = (2**bits - 1) / RESOLUTION
    fine = inputs.write_impacts(**settings, folder=folder, name="impacts at 51.2", bits=bits, range=range_)
    harness.fresh(inputs.write_queries, **settings, limit=queries, output=f"{folder}/queries.json")
    for name, impacts in zip(TARGETS, (eight, fine), strict=True):
        result = harness.fresh(repeat, impacts=impacts, copies=copies, output=f"{folder}/{name}")
    return result


def main() -> None:
    parser = harness.parser(__doc__, "index")
    parser.add_argument("--copies", type=int, help=f"of every document; default: for at least {DOCUMENTS:,} in all")
    parser.add_argument("--queries", type=int, help="how many are compared; default: all")
    args = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    outcomes: list[tuple[str, str, bool]] = []
    with TemporaryDirectory() as folder:
        size = prepare(args.collection, args.encoder, args.copies, args.queries, folder)
        for name, factor in TARGETS.items():
            vectors, a, b = (f"{folder}/{part}" for part in (name, "ours", "anserini"))
            peers = {"ours": partial(ours, vectors, a)}
            for threads in sorted({1, os.cpu_count() or 1}):
                peers[f"Anserini, {threads} thread{'s' * (threads > 1)}"] = partial(anserini, vectors, b, threads)
            results = harness.rounds(args.repeats, peers)
            for peer, result in results.items():
                rate = size["documents"] / harness.middle(result, "seconds")
                speedup = harness.times(result, results["ours"])
                rows.append((name, peer, f"{rate:,.0f}", f"{speedup:.1f}x", harness.gigabytes(result)))
            speedup = harness.times(results["Anserini, 1 thread"], results["ours"])
            outcomes.append(
                (f"at least {factor} times Anserini, thread for thread, {name}", f"{speedup:.1f}", speedup >= factor)
            )
            same = harness.fresh(compare, first=a, second=b, queries=f"{folder}/queries.json")
            measured = f"{same['same']:,} of {same['queries']:,} queries"
            outcomes.append((f"same documents and scores, {name}", measured, same["same"] == same["queries"]))
    title = f"Indexing {size['documents']:,} documents ({Path(args.collection).name}, {size['copies']} times)"
    harness.show(title, ("impacts", "", "documents/s", "ours is faster by", "peak memory, GB"), rows)
    print(f"Medians of {args.repeats} repetitions, side by side; with commit and merge, without the JVM's start.\n")
    for outcome in outcomes:
        harness.target(*outcome)


if __name__ == "__main__":
    main()
