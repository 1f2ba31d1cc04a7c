"""What an update costs, beside a run from scratch: of every 300 documents one is changed, one deleted and one added.

Each run is a command of its own. The run from scratch has an empty cache of vectors; the run that is updated was made
with another one, which the update then finds. A step's seconds are those of its outputs that the command has made, so
"all" has more: imports, models, and finding out what is up to date. The update is without evaluation, as by default;
`--evaluate` adds it. Scores of both runs are compared for all queries.
"""

import json
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

SLICE = 300  # documents of which one each is changed, deleted and added


def write(collection: str, output: str, later: bool) -> harness.Result:
    """Write a collection as it is, or as it is later."""
    found, topics, qrels = harness.opened(collection)
    records: list[Any] = []
    for number, record in enumerate(found.records()):
        if later and number % SLICE == 0:
            record = record._replace(text=f"{record.text} (revised)")
        if later and number % SLICE == 200:
            records.append(record._replace(id=f"{record.id}-new", text=f"{record.text} (new)"))
        if not later or number % SLICE != 100:
            records.append(record)
    return {"documents": harness.write_folder(Path(output), records, topics, {"test": qrels})}


def command(name: str, *words: str, cache: str, **options: object) -> harness.Result:
    """Run a command with this cache of vectors: its seconds, peak memory, and when it began."""
    os.environ["CAI_PYSERINI_VECTORS"] = cache
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"began": began} | harness.stage(name, *words, **options)


def by_stage(run: str, result: harness.Result) -> dict[str, float]:
    """Stage -> seconds of what the command has made in a run folder."""
    seconds: dict[str, float] = {}
    for path in Path(run).rglob("*manifest.json"):
        manifest = json.loads(path.read_text())
        if manifest["created"] >= result["began"]:
            stage = manifest["recipe"]["stage"].split()[0]
            seconds[stage] = seconds.get(stage, 0.0) + manifest["stats"]["seconds"]
    return seconds | {"all": result["seconds"]}


def largest_difference(first: str, second: str) -> harness.Result:
    """Of all systems: the share of queries whose best ten documents are the same, and the largest differences of their
    scores and of nDCG@10."""
    from cai_pyserini.beir.run_folder import RunFolder
    from cai_pyserini.core.trec import read_run, scores_by_query

    same = queries = 0
    score = 0.0
    runs = [RunFolder(Path(folder)) for folder in (first, second)]
    for path in sorted(runs[0].folder.glob("runs/*.trec")):
        ours, theirs = (scores_by_query(read_run(run.folder / "runs" / path.name)) for run in runs)
        for query, hits in ours.items():
            queries += 1
            same += list(hits)[:10] == list(theirs[query])[:10]
            score = max(score, *(abs(hits[id] - theirs[query].get(id, hits[id])) for id in list(hits)[:10]))
    systems = [run.results.systems for run in runs]
    measure = max(abs(row["nDCG@10"] - systems[1][name]["nDCG@10"]) for name, row in systems[0].items())
    return {"same": same / queries, "score": score, "measure": measure}


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--dense", help="with the systems of a dense encoder too, such as minilm")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        collection, run, scratch = (f"{folder}/{name}" for name in ("collection", "run", "scratch"))
        how = {"encoder": args.encoder} | ({"dense": args.dense} if args.dense else {})
        harness.fresh(write, collection=args.collection, output=collection, later=False)
        command("beir", collection, cache=f"{folder}/cache", output=run, **how)
        shutil.rmtree(collection)
        documents = harness.fresh(write, collection=args.collection, output=collection, later=True)["documents"]
        results = {}
        spent = command("beir", collection, cache=f"{folder}/other", output=scratch, **how)
        results["from scratch"] = by_stage(scratch, spent)
        results["update"] = by_stage(run, command("update", run, cache=f"{folder}/cache"))
        results["then update --evaluate"] = by_stage(run, command("update", run, "--evaluate", cache=f"{folder}/cache"))
        difference = harness.fresh(largest_difference, first=run, second=scratch)
    stages = list(dict.fromkeys(stage for seconds in results.values() for stage in seconds if stage != "all"))
    rows = [[stage, *(f"{seconds.get(stage, 0):.1f}" for seconds in results.values())] for stage in [*stages, "all"]]
    harness.show(f"{documents:,} documents, 1% changed: seconds", ["stage", *results], rows)
    print(
        f"\nThe best ten documents are the same for {difference['same']:.2%} of the queries; their scores differ by at "
        f"most {difference['score']:.4f}, nDCG@10 by at most {difference['measure']:.4f}."
    )


if __name__ == "__main__":
    main()
