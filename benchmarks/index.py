"""Indexing impacts by our indexer and by Anserini's JsonVectorCollection: with impacts of 8 bits, and at Pyserini's own
resolution (256 / 5 = 51.2 per unit of weight).

Both index the same JSON vectors, IDF-weighted impacts of a collection, which are repeated under new ids until there are
at least 30,000, so that the JVM's warm-up weighs little on either side. Ours is `cai-pyserini stage index impact`
with one process (scale.py measures more); Anserini's is IndexCollection -impact -pretokenized -optimize, with one
thread and with one per processor, on 16 files. Every measurement is a process of its own. The clock runs over the whole
of indexing, commit and merge into one segment included, and not over the start of the JVM: ours by the seconds in its
manifest, Anserini by its log, from "Starting to index" to "Total … documents indexed".

Same results: Pyserini's LuceneImpactSearcher finds the same documents with the same scores in both indexes, 1,000 hits
per query.
"""

import math
import re
import shutil
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

from cai_pyserini.core.processes import processors

DOCUMENTS = 30_000
FILES = 16  # each is a unit of work for Anserini's threads
RESOLUTION = 256 / 5
LOGGED = re.compile(r"^(\S+ \S+) INFO .*?(Starting to index|Total [\d,]+ documents indexed)", re.MULTILINE)


def repeat(impacts: str, output: str) -> harness.Result:
    """Write JSON vectors again and again, DOCUMENTS at least, each time with new ids, in FILES files."""
    lines = [line for file in sorted(Path(impacts).glob("*.jsonl")) for line in file.open(encoding="utf-8")]
    copies = -(-DOCUMENTS // len(lines))
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
    return harness.stage("stage index", "impact", input=vectors, threads=1, output=index) | harness.stats(index)


def anserini(vectors: str, index: str, threads: int) -> harness.Result:
    """Index with Anserini."""
    from cai_pyserini.indexes import jvm

    shutil.rmtree(index, ignore_errors=True)
    java = jvm.find_java()
    command = [str(java.home / "bin" / "java"), *jvm.options(java), "-cp", str(jvm.anserini_jar())]
    command.append("io.anserini.index.IndexCollection")
    command += ["-collection", "JsonVectorCollection", "-generator", "DefaultLuceneDocumentGenerator", "-impact"]
    command += ["-pretokenized", "-optimize", "-input", vectors, "-index", index, "-threads", str(threads)]
    log, peak = harness.run(command, merge=True)
    start, end = (datetime.fromisoformat(time.replace(",", ".")) for time, _ in LOGGED.findall(log))
    return {"seconds": (end - start).total_seconds(), "peak": peak}


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    rows, agreement = [], []
    with TemporaryDirectory() as folder:
        settings = {"collection": args.collection, "encoder": args.encoder}
        eight = harness.write_impacts(**settings, folder=folder, name="impacts of 8", bits=8)
        largest = 255 / harness.stats(eight)["document_scale"]
        bits = math.ceil(largest * RESOLUTION).bit_length()  # so that nothing is cut
        fine = {"bits": bits, "range": (2**bits - 1) / RESOLUTION}
        impacts = {
            "8 bits": eight,
            "51.2 per unit": harness.write_impacts(**settings, folder=folder, name="fine", **fine),
        }
        queries = f"{folder}/queries.json"
        harness.fresh(harness.write_queries, **settings, limit=None, output=queries)
        for name, source in impacts.items():
            vectors, a, b = (f"{folder}/{part}" for part in (name, "ours", "anserini"))
            size = harness.fresh(repeat, impacts=source, output=vectors)
            peers = {"ours": partial(ours, vectors, a)}
            for threads in sorted({1, processors()}):
                peers[f"Anserini, {threads} thread{'s' * (threads > 1)}"] = partial(anserini, vectors, b, threads)
            results = harness.rounds(args.repeats, peers)
            for peer, result in results.items():
                rate = size["documents"] / harness.middle(result)
                speedup = harness.times(result, results["ours"])
                rows.append((name, peer, f"{rate:,.0f}", speedup, harness.gigabytes(result)))
            agreement.append((name, harness.fresh(harness.same_hits, first=a, second=b, queries=queries)))
    title = f"Indexing {size['documents']:,} documents ({Path(args.collection).name}, {size['copies']} times)"
    header = ("impacts", "", "documents/s", "speed-up of ours", "peak memory, GB")
    harness.show(f"{title}, medians of {args.repeats}", header, rows)
    for name, same in agreement:
        print(f"same documents and scores, {name}: {same['same']:,} of {same['queries']:,} queries")


if __name__ == "__main__":
    main()
