"""Table 3 of the paper at a small scale: does AdaLM help SPLADE, when SPLADE is trained on pairs of general language?

The pairs (general_pairs.py) stand for MS MARCO. The model that all rows start from is a masked language model: that of
--encoder, whose SPLADE training is undone by pretraining on the passages of the pairs. Its row is "general"; the
others adapt it to each collection before SPLADE is trained on the same pairs: by a new vocabulary, by pretraining, or
by both, which is AdaLM. A collection's IDF and BM25 come with the systems.

nDCG@10 is a mean of --repeats seeds, which draw the order of examples, masks and dropout; p is that of a paired t-test
over queries, of these means against the row "general", without correction. What is made stays in --output;
interrupted, the same command continues.

    python tests/benchmarks/general_pairs.py --output data/general.jsonl --check hpo data/cacm data/scifact
    python tests/benchmarks/paper.py hpo data/cacm data/scifact --data data/general.jsonl --output data/paper
"""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import harness

SYSTEMS = ("splade", "splade-idf", "hybrid-splade-idf", "hybrid-splade-idf-minmax", "joint-splade-idf")
VARIANTS = {"general": "", "vocabulary": "v", "pretraining": "p", "AdaLM": "vp"}
MLM = {"max_length": 128, "learning_rate": 5e-4, "warmup": 0.1}
SPLADE = {"loss": "in-batch", "negatives": 0, "batch_size": 32, "learning_rate": 2e-4, "warmup": 0.1, "epochs": 1}
SPLADE |= {"max_document_length": 96, "sampled_terms": 1000, "flops_warmup": 0.5}


class Trained:
    """The checkpoints in a folder, each made once."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.folder = args, args.output / "models"
        self.data, self.corpus = args.output / "pairs.jsonl", args.output / "passages.jsonl"
        self.seconds: dict[str, float] = {}

    def base(self) -> Path:
        """The masked language model that all rows start from, and the pairs that all are trained on."""
        self.args.output.mkdir(parents=True, exist_ok=True)
        with self.args.data.open(encoding="utf-8") as file:
            pairs = list(islice(map(json.loads, file), self.args.pairs))
        self.data.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
        self.corpus.write_text("".join(json.dumps({"text": pair["positive"]}) + "\n" for pair in pairs))
        how = {"corpus": self.corpus, "base": self.args.encoder, "max_steps": self.args.base_steps}
        return self._made("base", "pretrain", **how, **MLM)

    def splade(self, collection: str, variant: str, seed: int, base: Path) -> Path:
        parts = VARIANTS[variant]
        name = Path(collection).stem if parts else "general"
        if "v" in parts:
            base = self._made(f"{name}-vocabulary", "vocabulary", corpus=collection, base=base)
        if "p" in parts:
            how = {"corpus": collection, "base": base, "seed": seed, "max_steps": self.args.steps}
            base = self._made(f"{name}-{variant}-{seed}", "pretrain", **how, **MLM)
        return self._made(f"{name}-{variant}-{seed}-splade", "splade", data=self.data, base=base, seed=seed, **SPLADE)

    def _made(self, name: str, step: str, **how: Any) -> Path:
        output = self.folder / name
        harness.stage("trainer", step, **how, output=output)
        self.seconds[name] = harness.stats(output)["seconds"]
        return output


def cell(first: Sequence[dict[str, float]], trained: Sequence[dict[str, float]]) -> str:
    """The mean nDCG@10 of the seeds; of other rows than the first, the difference to it, its p, and the range of the
    seeds."""
    means, of_seeds = harness.mean_of_seeds(trained), [fmean(each.values()) for each in trained]
    mean = f"{fmean(means.values()):.4f}"
    if trained == first:
        return mean
    difference, p = harness.compared(harness.mean_of_seeds(first), means)
    return f"{mean} ({difference}, {p}; {max(of_seeds) - min(of_seeds):.3f})"


def main() -> None:
    parser = harness.parser(__doc__, collection=False)
    parser.add_argument("collections", nargs="+", help="names in index_configs/, YAML files, or BEIR folders")
    parser.add_argument("--data", type=Path, required=True, help="training pairs, a file of general_pairs.py")
    parser.add_argument("--pairs", type=int, default=30_000, help="pairs that SPLADE is trained on, the first ones")
    parser.add_argument("--encoder", default="splade-tiny", help="the model that the language model is made from")
    parser.add_argument("--base-steps", type=int, default=600, help="steps that undo its training as SPLADE")
    parser.add_argument("--steps", type=int, default=300, help="steps of pretraining on a collection")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, required=True, help="folder of models and runs, which are kept")
    args = parser.parse_args()
    trained = Trained(args)
    base = trained.base()
    for collection in args.collections:
        found: dict[str, list[harness.Result]] = {}
        for variant in args.variants:
            for seed in range(args.repeats):
                model = trained.splade(collection, variant, seed, base)
                output = args.output / "runs" / f"{Path(collection).stem}-{variant}-{seed}"
                harness.stage("beir", collection, encoder=model, systems=["bm25", *SYSTEMS], output=output)
                measured = harness.fresh(harness.ndcg, folder=str(output), systems=["bm25", *SYSTEMS])
                results = json.loads((output / "results.json").read_text())
                found.setdefault(variant, []).append(measured | {"nonzeros": results["nonzeros_per_document"]})
        first, *_ = found.values()
        rows = []
        for variant, runs in found.items():
            cells = [cell([run[name] for run in first], [run[name] for run in runs]) for name in ("bm25", *SYSTEMS)]
            rows.append([variant, *cells, f"{fmean(run['nonzeros'] for run in runs):.0f}"])
        title = f"{collection}: nDCG@10, means of {args.repeats} seeds (difference, p; range of the seeds)"
        harness.show(title, ["", "bm25", *SYSTEMS, "non-zeros per document"], rows)
    harness.show("Seconds of each step", ["step", "seconds"], [(k, f"{v:.0f}") for k, v in trained.seconds.items()])


if __name__ == "__main__":
    main()
