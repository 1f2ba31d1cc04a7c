"""Table 3 of the paper at a small scale: does AdaLM help SPLADE, when SPLADE is trained on pairs of general language?

The pairs (general_pairs.py) stand for MS MARCO. The model that all rows start from is a masked language model: that of
splade-tiny, whose SPLADE training is undone by pretraining on the passages of the pairs. Its row is "general"; the
others adapt it to each collection before SPLADE is trained on the same pairs: by a new vocabulary, by pretraining, or
by both, which is AdaLM; "AdaLM, small" adds at most 3,000 tokens, and "seen" only those of at least SEEN of the pairs
that SPLADE is trained on. "passages" pretrains as long, but on the passages of the pairs: what it changes is not due to
the collection. A collection's IDF and BM25 come with the systems.

--pairs takes several sizes, for a curve, and --steps several lengths of pretraining; --train other pairs, such as those
of a field (`general_pairs.py --sources biomedical`). --loss in-batch trains on the pairs as labels; margin-mse on
margins of minilm, between the passage of a query and one of the 50 passages nearest to it.

Does it help where the paper says? A second table has nDCG@10 of splade-idf for classes of queries, as the first: those
with a word that the vocabulary of the base splits, and all others; those with a word of at most RARE documents, and all
others. A third, of the rows with a new vocabulary, tells how often SPLADE was trained on the new tokens of a query:
fewer than SEEN of the pairs have one of them (unseen), or SEEN and more have each (seen), or there is none.

nDCG@10 is a mean of --repeats seeds, which draw the order of examples, masks and dropout; p is that of the difference
to the first row of the same size and loss, over seeds and queries (docs/design/significance.md), without correction;
with --repeats 1 over queries alone. What is made stays in --output; interrupted, the same command continues.

    python benchmarks/general_pairs.py --output data/general.jsonl --check hpo data/cacm data/scifact
    python benchmarks/paper.py hpo data/cacm data/scifact --data data/general.jsonl --output data/paper
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from itertools import batched, chain, islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

import harness

SYSTEMS = ("splade", "splade-idf", "hybrid-splade-idf", "joint")
VARIANTS = {
    "general": "", "passages": "g", "pretraining": "p", "vocabulary": "v", "AdaLM": "vp", "AdaLM, small": "sp",
    "vocabulary, seen": "t", "AdaLM, seen": "tp",
}  # fmt: skip
ROWS = ["general", "vocabulary", "pretraining", "AdaLM"]  # those of Table 3
MLM = {"max_length": 128, "warmup": 0.1}
SPLADE = {
    "batch_size": 32, "learning_rate": 2e-4, "warmup": 0.1, "epochs": 1,
    "max_document_length": 96, "sampled_terms": 1000, "flops_warmup": 0.5,
}  # fmt: skip
LOSSES = {"in-batch": 0, "margin-mse": 1}  # and the negatives of a query
RARE = 10  # documents that have a rare word, at most
CLASSES = ("split", "whole", "rare", "frequent")
NEW_VOCABULARY = {"v", "s", "t"}
SEEN = 10  # pairs that have a new token, at least
NEW_TOKENS = ("unseen", "seen", "none")
NEAREST, SCALE = 50, 20.0  # passages of which a negative is drawn; margins are those of cosines, times this
BLOCK = 256  # queries whose cosines are computed together


class Trained:
    """The checkpoints in a folder, each made once."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.folder = args, args.output / "models"
        self.seconds: dict[str, float] = {}
        self.corpus = corpus = args.output / "passages.jsonl"
        args.output.mkdir(parents=True, exist_ok=True)
        if not corpus.exists():
            part = corpus.with_suffix(".part")
            with args.data.open(encoding="utf-8") as file, part.open("w", encoding="utf-8") as passages:
                passages.writelines(json.dumps({"text": json.loads(line)["positive"]}) + "\n" for line in file)
            part.replace(corpus)
        self.base = self._made("base", "pretrain", corpus=corpus, base="splade-tiny", max_steps=1000,
                               learning_rate=5e-4, **MLM)  # fmt: skip

    def splade(self, collection: str, variant: str, steps: int, pairs: int, loss: str, seed: int) -> Path:
        parts, base = VARIANTS[variant], self.base
        name = f"general{parts}" if parts in ("", "g") else f"{Path(collection).stem}-{parts}"
        if NEW_VOCABULARY & set(parts):
            expanded = base = self.vocabulary(collection, variant)
            if "t" in parts:
                name += f"-{self._source(pairs)}"
                base = self.folder / f"{name}-vocabulary"
                if not base.exists():
                    paths = {"expanded": str(expanded), "base": str(self.base), "output": str(base)}
                    harness.fresh(leave_out, data=str(self.data(pairs, "in-batch")), **paths)
        if steps:
            name += f"-{steps}"
            how: dict[str, Any] = {"corpus": self.corpus if "g" in parts else collection, "base": base, "seed": seed}
            how |= {"max_steps": steps, "learning_rate": self.args.learning_rate}
            base = self._made(f"{name}-{seed}", "pretrain", **how, **MLM)
        how = {"data": self.data(pairs, loss), "loss": loss, "negatives": LOSSES[loss], "base": base, "seed": seed}
        return self._made(f"{name}-{self._source(pairs)}-{loss}-{seed}-splade", "splade", **how, **SPLADE)

    def vocabulary(self, collection: str, variant: str) -> Path:
        """The base with a collection's new tokens, of "small" those of one step; of "seen" all, too."""
        is_small = "s" in VARIANTS[variant]
        name = f"{Path(collection).stem}-{'s' if is_small else 'v'}-vocabulary"
        increments = {"max_steps": 1} if is_small else {}
        return self._made(name, "vocabulary", corpus=collection, base=self.base, **increments)

    def _source(self, pairs: int) -> str:
        """What tells trained models and their data from those of other pairs."""
        return str(pairs) if self.args.train is None else f"{self.args.train.stem}-{pairs}"

    def data(self, pairs: int, loss: str) -> Path:
        """The training file of the first pairs."""
        path = self.args.output / f"{loss}-{self._source(pairs)}.jsonl"
        if not path.exists():
            how = {"pairs": pairs, "loss": loss, "output": str(path)}
            harness.fresh(write_pairs, data=str(self.args.train or self.args.data), **how)
        return path

    def _made(self, name: str, step: str, **how: Any) -> Path:
        output = self.folder / name
        if name not in self.seconds:
            harness.stage("train", step, **how, output=output)
            self.seconds[name] = harness.stats(output)["seconds"]
        return output


def write_pairs(data: str, pairs: int, loss: str, output: str) -> harness.Result:
    """Write the first pairs; for Margin-MSE, each with a negative and the teacher's margin."""
    import numpy as np

    from cai_pyserini.core import jsonl
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.encoder import EncoderModel

    lines = [{name: line[name] for name in ("query", "positive")} for _, line in islice(jsonl.read(Path(data)), pairs)]
    if loss == "margin-mse":
        encoder = EncoderModel(load_encoder("minilm")).load("documents")
        queries, passages = (
            np.asarray(encoder.encode([line[name] for line in lines], 96)) for name in ("query", "positive")
        )
        draw, nearest = np.random.default_rng(0), min(NEAREST, len(lines) - 1)
        for start in range(0, len(lines), BLOCK):
            for number, cosines in enumerate(queries[start : start + BLOCK] @ passages.T, start):
                places = np.argpartition(-cosines, nearest)[:nearest]
                places = places[np.argsort(-cosines[places])]
                line = lines[number]
                negative = draw.choice([i for i in places if lines[i]["positive"] != line["positive"]])
                margin = SCALE * float(cosines[number] - cosines[negative])
                line |= {"negatives": [lines[negative]["positive"]], "margins": [margin]}
    jsonl.write(Path(output), lines)
    return {}


def cell(first: Sequence[dict[str, float]], trained: Sequence[dict[str, float]]) -> str:
    """The mean nDCG@10 of the seeds; of other rows than the first, the difference to it, its p, and the difference of
    each seed."""
    mean = f"{harness.mean_by_seed(trained):.4f}"
    if trained == first:
        return mean
    difference, p = harness.compared(first, trained)
    pairs = zip(trained, first, strict=True)
    by_seed = " ".join(f"{fmean(own.values()) - fmean(other.values()):+.3f}" for own, other in pairs)
    return f"{mean} ({difference}, {p}{f'; {by_seed}' if len(trained) > 1 else ''})"


def main() -> None:
    parser = harness.parser(__doc__, collection=False)
    parser.add_argument("collections", nargs="+", help="names in index_configs/, YAML files, or BEIR folders")
    parser.add_argument("--data", type=Path, required=True, help="training pairs, a file of general_pairs.py")
    parser.add_argument("--train", type=Path, help="other pairs to train SPLADE on (default: those of --data)")
    parser.add_argument(
        "--pairs", type=int, nargs="+", default=[10_000], help="pairs that SPLADE is trained on, at most"
    )
    parser.add_argument("--loss", nargs="+", choices=LOSSES, default=["in-batch"])
    parser.add_argument("--steps", type=int, nargs="+", default=[300], help="steps of pretraining on a collection")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of that pretraining")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=ROWS)
    parser.add_argument("--output", type=Path, required=True, help="folder of models and runs, which are kept")
    parser.add_argument("--check", action="store_true", help="only check the arguments")
    if (args := parser.parse_args()).check:
        sys.exit(5)  # unlike after --help
    with (args.train or args.data).open(encoding="utf-8") as file:
        available = sum(1 for _ in file)
    args.pairs = [min(pairs, available) for pairs in args.pairs]
    pretrained = {variant for variant, parts in VARIANTS.items() if "p" in parts or "g" in parts}
    variants = [(name, steps) for name in args.variants for steps in (args.steps if name in pretrained else [0])]
    trained = Trained(args)
    by_vocabulary: dict[tuple[Path, int], harness.Result] = {}  # queries by new tokens, of a vocabulary and pairs
    for collection in args.collections:
        rows, by_class, by_new_token, groups = [], [], [], None
        for pairs, loss in product(args.pairs, args.loss):
            first = None
            for variant, steps in variants:
                how = (variant, steps, pairs, loss)
                runs = [measured(trained, collection, *how, seed) for seed in range(args.repeats)]
                first = first or runs
                cells = [cell([run[name] for run in first], [run[name] for run in runs]) for name in SYSTEMS]
                nonzeros = fmean(run["nonzeros"] for run in runs)
                labels = [variant, f"{steps:,}" if steps else "", f"{pairs:,}", loss]
                rows.append([*labels, *cells, f"{nonzeros:.0f}"])
                groups = groups or harness.fresh(classes, folder=runs[0]["folder"], base=str(trained.base))
                by_class.append([*labels, *cells_of(CLASSES, groups, first, runs)])
                if NEW_VOCABULARY & set(VARIANTS[variant]):
                    vocabulary = trained.vocabulary(collection, variant)
                    if (vocabulary, pairs) not in by_vocabulary:
                        paths = {"expanded": str(vocabulary), "base": str(trained.base)}
                        paths |= {"folder": runs[0]["folder"], "data": str(trained.data(pairs, loss))}
                        by_vocabulary[vocabulary, pairs] = harness.fresh(new_tokens, **paths)
                    found = by_vocabulary[vocabulary, pairs]
                    counts = [f"{len(found[name]):,}" for name in NEW_TOKENS]
                    row = zip(counts, cells_of(NEW_TOKENS, found, first, runs), strict=True)
                    by_new_token.append([*labels, *chain.from_iterable(row)])
        title = f"{collection}: nDCG@10, means of {args.repeats} seeds (difference, p; by seed)"
        harness.show(title, ["", "steps", "pairs", "loss", *SYSTEMS, "non-zeros per document"], rows)
        counts = [f"{name} ({len(groups[name]):,})" for name in CLASSES]
        harness.show(f"{collection}: splade-idf by queries", ["", "steps", "pairs", "loss", *counts], by_class)
        if by_new_token:
            columns = [column for name in NEW_TOKENS for column in ("queries", name)]
            title = f"{collection}: splade-idf by how often the pairs have the new tokens of a query"
            harness.show(title, ["", "steps", "pairs", "loss", *columns], by_new_token)
    harness.show("Seconds of each step", ["step", "seconds"], [(k, f"{v:.0f}") for k, v in trained.seconds.items()])


def measured(
    trained: Trained, collection: str, variant: str, steps: int, pairs: int, loss: str, seed: int
) -> harness.Result:
    """nDCG@10 of every query, by system; the non-zeros per document; and the run folder."""
    model = trained.splade(collection, variant, steps, pairs, loss, seed)
    output = trained.args.output / "runs" / f"{Path(collection).stem}-{model.name}"
    harness.stage("run", collection, encoder=model, systems=[*SYSTEMS], output=output)
    results = json.loads((output / "results.json").read_text())
    found = harness.fresh(harness.ndcg, folder=str(output), systems=SYSTEMS)
    return found | {"nonzeros": results["nonzeros_per_document"], "folder": str(output)}


def cells_of(
    names: Sequence[str], groups: harness.Result, first: Sequence[harness.Result], trained: Sequence[harness.Result]
) -> list[str]:
    """The cells of splade-idf of groups of queries; that of an empty group is empty."""

    def only(runs: Sequence[harness.Result], queries: Sequence[str]) -> list[dict[str, float]]:
        return [{query: run["splade-idf"][query] for query in queries} for run in runs]

    return [cell(only(first, groups[n]), only(trained, groups[n])) if groups[n] else "" for n in names]


def classes(folder: str, base: str) -> harness.Result:
    """The judged queries of each of CLASSES."""
    import numpy as np
    from transformers import AutoTokenizer

    from cai_pyserini.experiments.run_folder import RunFolder
    from cai_pyserini.indexes.analyzer import Analyzer
    from cai_pyserini.vectors.bm25 import Bm25

    run, tokenizer, analyze = RunFolder(Path(folder)), AutoTokenizer.from_pretrained(base), Analyzer()
    bm25 = Bm25(run.folder / "words")
    frequencies = sum(np.bincount(shard.vectors.indices, minlength=len(bm25.words)) for shard in bm25.counts)
    documents = dict(zip(bm25.words, frequencies.tolist(), strict=True))
    found: dict[str, list[str]] = {name: [] for name in CLASSES}
    for query in run.qrels or {}:
        text = run.topics[query]
        is_split = any(len(tokenizer.tokenize(word)) > 1 for word in text.split() if word.isalpha())
        is_rare = any(0 < documents.get(word, 0) <= RARE for word in analyze(text))
        found["split" if is_split else "whole"].append(query)
        found["rare" if is_rare else "frequent"].append(query)
    return found


def new_tokens(folder: str, expanded: str, base: str, data: str) -> harness.Result:
    """The judged queries of each of NEW_TOKENS, of a run, by the tokens of a checkpoint that `base` lacks."""
    from transformers import AutoTokenizer

    from cai_pyserini.experiments.run_folder import RunFolder

    run, old = RunFolder(Path(folder)), len(AutoTokenizer.from_pretrained(base))
    tokenizer = AutoTokenizer.from_pretrained(expanded)
    pairs = pairs_by_token(tokenizer, data)
    found: dict[str, list[str]] = {name: [] for name in NEW_TOKENS}
    for query in run.qrels or {}:
        tokens = tokenizer(run.topics[query], add_special_tokens=False)["input_ids"]
        fewest = min((pairs[token] for token in tokens if token >= old), default=None)
        found["none" if fewest is None else "unseen" if fewest < SEEN else "seen"].append(query)
    return found


def pairs_by_token(tokenizer: Any, data: str) -> Any:
    """How many pairs have each token, int64 (vocabulary,)."""
    import numpy as np

    from cai_pyserini.core import jsonl

    found = np.zeros(len(tokenizer), np.int64)
    for lines in batched(jsonl.read(Path(data)), 1024):
        texts = [f"{line['query']} {line['positive']}" for _, line in lines]
        for tokens in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            found[list(set(tokens))] += 1
    return found


def leave_out(expanded: str, base: str, data: str, output: str) -> harness.Result:
    """Write a checkpoint with an expanded vocabulary less the new tokens that fewer than SEEN pairs have."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    tokenizer, folder, part = AutoTokenizer.from_pretrained(expanded), Path(expanded), Path(f"{output}.part")
    old = len(AutoTokenizer.from_pretrained(base))
    keep = (np.arange(len(tokenizer)) < old) | (pairs_by_token(tokenizer, data) >= SEEN)
    rows = torch.tensor(np.flatnonzero(keep))
    part.mkdir(exist_ok=True)
    for name in ("encoder.yaml", "tokenizer_config.json"):
        shutil.copy(folder / name, part)
    weights = load_file(folder / "model.safetensors")
    kept = {name: w[rows].contiguous() if len(w) == len(keep) else w for name, w in weights.items()}
    save_file(kept, part / "model.safetensors", {"format": "pt"})
    settings = {name: json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json")}
    settings["config.json"]["vocab_size"] = len(rows)
    vocabulary = settings["tokenizer.json"]["model"]["vocab"]
    tokens = [token for token, number in sorted(vocabulary.items(), key=lambda item: item[1]) if keep[number]]
    settings["tokenizer.json"]["model"]["vocab"] = {token: number for number, token in enumerate(tokens)}
    for name, value in settings.items():
        (part / name).write_text(json.dumps(value, ensure_ascii=False))
    part.replace(output)
    return {}


if __name__ == "__main__":
    main()
