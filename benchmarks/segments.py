"""An index of impacts that is changed in place, beside one that is built anew.

Of every SLICE documents one is deleted, and added again as changed under another id, by Lucene's IndexWriter: the old
segment stays, with marks for what is deleted, and a new one is added. Impacts of IDF-weighted documents all change with
every document, so this needs impacts without IDF; here the others are simply left as they are. Every measurement is a
process of its own; the clock runs without the start of the JVM. Scores of all queries are compared.
"""

import json
import shutil
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

SLICE = 100


def change(impacts: str, output: str) -> harness.Result:
    """Write JSON vectors as changed: `all` of them, those that are `new`, and the ids of those that are not there."""
    new, old, kept = [], [], []
    for number, line in enumerate(line for file in sorted(Path(impacts).glob("*.jsonl")) for line in file.open()):
        if number % SLICE:
            kept.append(line)
        else:
            old.append(json.loads(line)["id"])
            new.append(line.replace('"id": "', '"id": "new-', 1))
    for name, lines in {"all": kept + new, "new": new}.items():
        Path(output, name).mkdir()
        Path(output, name, "vectors.jsonl").write_text("".join(lines))
    Path(output, "old.json").write_text(json.dumps(old))
    return {"documents": len(kept) + len(new)}


def anew(folder: str, output: str) -> harness.Result:
    from cai_pyserini.indexes import jvm
    from cai_pyserini.indexes.impact_index import index_impacts

    with jvm.using_java("a benchmark"):
        start = time.perf_counter()
    shutil.rmtree(output, ignore_errors=True)
    index_impacts(Path(folder, "all"), Path(output), threads=1)
    return {"seconds": time.perf_counter() - start}


def in_place(folder: str, before: str, output: str) -> harness.Result:
    from cai_pyserini.indexes import jvm
    from cai_pyserini.indexes.writer import DocumentAdder, writing
    from cai_pyserini.vectors.json_vectors import read_vectors

    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(before, output)
    old = json.loads(Path(folder, "old.json").read_text())
    with jvm.using_java("a benchmark"):
        start = time.perf_counter()
        bytes_of = jvm.java_class("org.apache.lucene.util.BytesRef")
        ids = jvm.java_class("java.util.ArrayList")()
        for id in old:
            ids.add(bytes_of(id.encode()))
        with writing(Path(output)) as writer:
            add = DocumentAdder(writer, {}, is_text=False, stores_raw=False)
            writer.deleteDocuments(jvm.java_class("org.apache.lucene.search.TermInSetQuery")("id", ids))
            for _, _, id, contents in read_vectors([Path(folder, "new", "vectors.jsonl")]):
                add(id, contents, "")
        return {"seconds": time.perf_counter() - start}


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    with TemporaryDirectory() as folder:
        settings = {"collection": args.collection, "encoder": args.encoder}
        vectors, impacts, before, rebuilt, changed, queries = (
            f"{folder}/{part}" for part in ("vectors", "impacts", "before", "anew", "in place", "queries.json")
        )
        harness.stage("stage encode", **settings, output=vectors)
        harness.stage("stage impact", vectors=vectors, encoder=args.encoder, output=impacts)
        harness.stage("stage index", "impact", input=impacts, output=before)
        documents = harness.fresh(change, impacts=impacts, output=folder)["documents"]
        harness.fresh(harness.write_queries, **settings, limit=1000, output=queries)
        peers = {
            "built anew": partial(harness.fresh, anew, folder=folder, output=rebuilt),
            "changed in place": partial(harness.fresh, in_place, folder=folder, before=before, output=changed),
        }
        results = harness.rounds(args.repeats, peers)
        inputs = {"first": rebuilt, "second": changed, "queries": queries}
        agreement = harness.fresh(harness.same_hits, **inputs, whole=False)
    rows = [(name, f"{harness.middle(measured):.2f}") for name, measured in results.items()]
    harness.show(f"{documents:,} documents, 1% deleted and added, medians of {args.repeats}", ("index", "s"), rows)
    print(f"same documents and scores: {agreement['same']:,} of {agreement['queries']:,} queries")


if __name__ == "__main__":
    main()
