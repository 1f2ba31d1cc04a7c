"""Reading, fusing and evaluating TREC runs, with this package and with Pyserini's TrecRun, pyserini.fusion and
ir_measures on DataFrames.

Two runs of random documents and scores, as large as those of a test collection, are read, the best 100 hits of each
query fused (each run's scores scaled to [0, 1] and added), and nDCG@10, R@100 and RR@10 computed. Every repetition of
either side is a process of its own; imports and the start of the JVM, which importing Pyserini needs, are not timed.

Same: equal documents in equal order and scores to 1e-9; every query's measures to 1e-9.
"""

import json
import time
from functools import partial
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

QUERIES = HITS = 1000
DEPTH = 100
MEASURES = ["nDCG@10", "R@100", "RR@10"]
STAGES = ("reading", "fusing", "evaluating")


def write_inputs(folder: str) -> harness.Result:
    """Two runs, of 10,000 documents, and qrels."""
    qrels = harness.write_runs(folder, QUERIES, HITS, 10_000, judged=20)
    Path(folder, "qrels.json").write_text(json.dumps(qrels))
    return {}


def ours(folder: str, output: str) -> harness.Result:
    """read_run, fuse_runs and measure."""
    from cai_pyserini.runs.fuse import fuse_runs
    from cai_pyserini.runs.measures import measure
    from cai_pyserini.runs.trec import read_run

    qrels = json.loads(Path(folder, "qrels.json").read_text())
    clock = [time.perf_counter()]
    runs = [read_run(Path(folder, f"{name}.trec")) for name in ("first", "second")]
    clock.append(time.perf_counter())
    fused = fuse_runs(runs, "minmax", DEPTH)
    clock.append(time.perf_counter())
    values = measure(qrels, fused, MEASURES)
    clock.append(time.perf_counter())
    return _result(clock, output, list(fused), values)


def stock(folder: str, output: str) -> harness.Result:
    """TrecRun, pyserini.fusion.normalize and ir_measures.iter_calc."""
    import ir_measures
    import pandas as pd

    from cai_pyserini.plugin import hook

    hook.register()
    from pyserini.fusion import normalize
    from pyserini.trectools import TrecRun

    qrels = json.loads(Path(folder, "qrels.json").read_text())
    judged = [(query, document, grade) for query, grades in qrels.items() for document, grade in grades.items()]
    judgments = pd.DataFrame(judged, columns=["query_id", "doc_id", "relevance"])
    measures = [ir_measures.parse_measure(name) for name in MEASURES]
    clock = [time.perf_counter()]
    runs = [TrecRun(str(Path(folder, f"{name}.trec"))) for name in ("first", "second")]
    clock.append(time.perf_counter())
    for run in runs:  # normalize() does not cut before it normalizes
        run.run_data = run.run_data.groupby("topic").head(DEPTH)
    fused = normalize(runs, k=1000).run_data
    clock.append(time.perf_counter())
    frame = fused.rename(columns={"topic": "query_id", "docid": "doc_id"})[["query_id", "doc_id", "score"]]
    values: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
    for metric in ir_measures.iter_calc(measures, judgments, frame):
        values[str(metric.measure)][metric.query_id] = metric.value
    clock.append(time.perf_counter())
    return _result(clock, output, frame.values.tolist(), values)


def _result(clock: list[float], output: str, hits: list, values: object) -> harness.Result:
    """The seconds of the stages; what was found goes to a file."""
    Path(output).write_text(json.dumps({"hits": hits, "values": values}))
    return {stage: clock[i + 1] - clock[i] for i, stage in enumerate(STAGES)} | {"all": clock[-1] - clock[0]}


def main() -> None:
    args = harness.parser(__doc__, collection=False).parse_args()
    with TemporaryDirectory() as folder:
        harness.fresh(write_inputs, folder=folder)
        files = {name: f"{folder}/{name}.json" for name in ("ours", "stock")}
        peers = {
            "ours": partial(harness.fresh, ours, folder=folder, output=files["ours"]),
            "Pyserini, ir_measures": partial(harness.fresh, stock, folder=folder, output=files["stock"]),
        }
        results = harness.rounds(args.repeats, peers)
        a, b = (json.loads(Path(file).read_text()) for file in files.values())
    mine, theirs = results.values()
    rows = []
    for key in (*STAGES, "all"):
        figures = f"{harness.middle(mine, key):.2f}", f"{harness.middle(theirs, key):.2f}"
        rows.append((key, *figures, harness.times(theirs, mine, key)))
    rows.append(("peak memory, GB", harness.gigabytes(mine), harness.gigabytes(theirs), ""))
    title = f"Two runs of {QUERIES:,} queries, {HITS:,} hits each, seconds, medians of {args.repeats}"
    harness.show(title, ("", *results, "speed-up of ours"), rows)
    hits = all(x[:2] == y[:2] and isclose(x[2], y[2], abs_tol=1e-9) for x, y in zip(a["hits"], b["hits"], strict=True))
    values = [
        isclose(a["values"][name][query], value, abs_tol=1e-9)
        for name, per_query in b["values"].items()
        for query, value in per_query.items()
    ]
    print(f"the same documents and scores: {hits}; the same measures: {all(values)} ({len(values):,} compared)")


if __name__ == "__main__":
    main()
