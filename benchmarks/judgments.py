"""How many judged queries are enough to train on: nDCG@10 by the number of queries.

So many queries of the split train, drawn by seed, stand for those that people have judged: their relevant documents are
positives, and negatives are drawn from the other best documents of BM25 and of SPLADE with IDF. The encoder is trained
on them as docs/how-to/train.md says, and searches for the queries of the split test. p is that of the difference to the
encoder as it is, over seeds and queries (docs/design/significance.md), without correction.

What is made stays in --output; interrupted, the same command continues.
"""

import json
from pathlib import Path
from random import Random
from statistics import fmean

import harness

SYSTEMS = ("splade", "splade-idf", "hybrid-splade-idf-minmax")
TRAINING = {"loss": "in-batch", "epochs": 5, "batch_size": 24, "warmup": 0.26, "learning_rate": 5e-5}


def cells(base: dict[str, float], trained: list[dict[str, float]]) -> list[str]:
    """The mean nDCG@10 of the seeds, each of them, the difference to `base`, and its p."""
    seeds = " ".join(f"{fmean(of_seed.values()):.4f}" for of_seed in trained)
    return [f"{harness.mean_by_seed(trained):.4f} ({seeds})", *harness.compared([base], trained)]


def main() -> None:
    parser = harness.parser(__doc__)
    parser.set_defaults(collection="scifact")
    parser.add_argument("--queries", type=int, nargs="+", default=[50, 100, 200, 400, 809], help="numbers of queries")
    parser.add_argument("--output", type=Path, required=True, help="folder of trainings and runs")
    args = parser.parse_args()

    def measured(encoder: object, name: str) -> harness.Result:
        output = args.output / "runs" / name
        harness.stage("run", args.collection, encoder=encoder, systems=[*SYSTEMS], output=output)
        return harness.fresh(harness.ndcg, folder=str(output), systems=SYSTEMS)

    mined, of_train = args.output / "train.jsonl", args.output / "runs" / "train"
    negatives = ["bm25", "splade-idf"]
    harness.stage("run", args.collection, encoder=args.encoder, split="train", systems=negatives, output=of_train)
    runs = [of_train / "runs" / f"{name}.trec" for name in negatives]
    harness.stage("train", "mine", collection=args.collection, trec=runs, output=mined)
    lines = mined.read_text(encoding="utf-8").splitlines()
    queries = list(dict.fromkeys(json.loads(line)["query"] for line in lines))
    base = measured(args.encoder, "base")
    rows = [("0", *(cell for name in SYSTEMS for cell in (f"{fmean(base[name].values()):.4f}", "", "")))]
    for count in args.queries:
        trained = []
        for seed in range(args.repeats):
            name = f"{count}-{seed}"
            data, model = args.output / f"{name}.jsonl", args.output / "models" / name
            drawn = set(Random(seed).sample(queries, len(queries))[:count])
            data.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["query"] in drawn))
            harness.stage("train", "splade", data=data, base=args.encoder, output=model, seed=seed, **TRAINING)
            trained.append(measured(model, name))
        rows.append((str(count), *(cell for name in SYSTEMS for cell in cells(base[name], [t[name] for t in trained]))))
    header = ("judged queries", *(cell for name in SYSTEMS for cell in (name, "difference", "p")))
    harness.show(f"{args.collection}: nDCG@10, means of {args.repeats} seeds", header, rows)


if __name__ == "__main__":
    main()
