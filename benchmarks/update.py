"""What an update costs, beside a run from scratch: of every SLICE documents one is changed, one deleted and one added.

Each run is a command of its own. The run from scratch has an empty cache of vectors; the run that is updated was made
with another one, which the update then finds. A step's seconds are those of its outputs that the command has made, so
"all" has more: imports, models, and finding out what is up to date. The update is without evaluation, as by default;
`--evaluate` adds it. Scores of both runs are compared for all queries.

With --documents, the collection is a made one of this size, without queries: each document is the first words of one of
the collection's documents and of another. It is compared with the first run, of the collection before its change.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

SLICE = 300  # documents of which one each is changed, deleted and added, so that 1% is
WORDS = 15  # of each of the two documents in a made one


def write(collection: str, output: str, nights: int, slice_: int = SLICE, made: int | None = None) -> harness.Result:
    """Write a collection, or a made one of its documents, as it is after so many nights, with other documents changed,
    deleted and added each night; in the place of what is there."""
    found, topics, qrels = harness.opened(collection)
    originals: Iterable[Any] = found.records()
    if made:
        originals, topics = recombined(list(originals), made), {}
    third = slice_ // 3
    records: list[Any] = []
    for number, record in enumerate(originals):
        kind, night = divmod(number % slice_, third)  # a slice has `third` documents for each kind of change
        if night >= nights or kind > 2:
            records.append(record)
        elif kind == 0:
            records.append(record._replace(text=f"{record.text} (revised)"))
        elif kind == 2:
            records += [record._replace(id=f"{record.id}-new", text=f"{record.text} (new)"), record]
    return {"documents": harness.write_folder(Path(output), records, topics, {} if made else {"test": qrels})}


def recombined(records: Sequence[Any], count: int) -> Iterator[Any]:
    import numpy as np

    texts = [f"{record.title} {record.text}".split()[:WORDS] for record in records]
    pairs = np.random.default_rng(0).integers(len(texts), size=(count, 2)).tolist()
    for number, (first, second) in enumerate(pairs):
        yield records[first]._replace(id=f"d{number:07d}", title="", text=" ".join(texts[first] + texts[second]))


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
    from cai_pyserini.experiments.run_folder import RunFolder
    from cai_pyserini.runs.trec import read_run, scores_by_query

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


def in_words(difference: harness.Result) -> str:
    return (
        f"\nThe best ten documents are the same for {difference['same']:.2%} of the queries; their scores differ by at "
        f"most {difference['score']:.4f}, nDCG@10 by at most {difference['measure']:.4f}."
    )


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--dense", help="with the systems of a dense encoder too, such as minilm")
    parser.add_argument("--systems", nargs="+", help="systems of the run (default: those of run_beir.sh)")
    parser.add_argument("--documents", type=int, help="the size of a made collection")
    parser.add_argument("--slice", type=int, default=SLICE, help="documents of which three are changed")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        collection, run, scratch = (f"{folder}/{name}" for name in ("collection", "run", "scratch"))
        chosen = {"encoder": args.encoder, "dense": args.dense, "systems": args.systems}
        how = {name: value for name, value in chosen.items() if value}
        source = {"collection": args.collection, "output": collection, "slice_": args.slice, "made": args.documents}
        harness.fresh(write, nights=0, **source)
        measured = {"first run": command("run", collection, cache=f"{folder}/cache", output=run, **how)}
        results = {"first run": by_stage(run, measured["first run"])}
        documents = harness.fresh(write, nights=1, **source)["documents"]
        if not args.documents:
            measured = {"from scratch": command("run", collection, cache=f"{folder}/other", output=scratch, **how)}
            results = {"from scratch": by_stage(scratch, measured["from scratch"])}
        for name in ("update", "update --evaluate")[: 1 if args.documents else 2]:
            measured[name] = command(*name.split(), run, cache=f"{folder}/cache")
            results[name] = by_stage(run, measured[name])
        difference = None if args.documents else harness.fresh(largest_difference, first=run, second=scratch)
    stages = list(dict.fromkeys(stage for seconds in results.values() for stage in seconds if stage != "all"))
    rows = [[stage, *(f"{seconds.get(stage, 0):.1f}" for seconds in results.values())] for stage in [*stages, "all"]]
    rows.append(["peak memory, GB", *(f"{result['peak'] / 1e9:.2f}" for result in measured.values())])
    title = f"{documents:,} documents, {3 / args.slice:.1%} of them changed: seconds"
    harness.show(title, ["stage", *results], rows)
    if difference:
        print(in_words(difference))


if __name__ == "__main__":
    main()
