"""Vocabulary expansion, the first half of AdaLM (Yao et al. 2021; Iida & Okazaki 2022, Algorithm 1).

In step i a WordPiece vocabulary of |V_0| + i * increment entries is trained on the corpus, the corpus is tokenized with
it, and its most frequent tokens that V_0 lacks are added to V_0, until there are i * increment. Tokens of digits and
marks alone are left out. It ends with the first step that cannot fill its increment, or earlier by the entropy of the
corpus under the expanded vocabulary (Appendix F)

    I(C) = sum over the corpus of log p(x),    p(x) = relative frequency of token x,

with --stop relative where I_i - I_{i-1} < epsilon * |I_{i-1}|, with --stop first where it is < epsilon * (I_1 - I_0).

The corpus is read once, into a table of word counts; all steps work on that table, and on one training of word pieces,
whose smaller vocabularies are the beginnings of its larger ones. The result is reproducible.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder
from cai_pyserini.figure import plot_lines
from cai_pyserini.trainer import corpus, settings, wordpiece


@dataclass(frozen=True)
class Settings:
    """What the vocabulary step can be told."""

    corpus: list[str] = field(metadata={"help": corpus.HELP})
    base: str = field(metadata={"help": "the encoder or masked language model to expand"})
    output: str = field(metadata={"help": "folder for the expanded checkpoint"})
    increment: int = field(default=3000, metadata={"help": "tokens a step"})
    stop: Literal["exhausted", "relative", "first"] = field(
        default="exhausted", metadata={"help": "when no more steps are taken: the paper's criterion or by entropy"}
    )
    epsilon: float = field(default=0.01, metadata={"help": "of relative (the paper: 0.01) or first (0.1, 0.05)"})
    max_steps: int = field(default=0, metadata={"help": "at most so many steps; 0: any number"})
    min_words: int = field(default=0, metadata={"help": "leave out shorter texts (the paper: 128)"})


@dataclass(frozen=True)
class Step:
    """What one step gave: the size of the expanded vocabulary and of the tokens added to V_0, the number of tokens the
    corpus then has, and its entropy in nats."""

    vocabulary: int
    added: int
    tokens: int
    entropy: float


def expand(
    counts: Mapping[str, int], base: Mapping[str, int], special: int, unknown: str, settings: Settings
) -> tuple[list[str], list[Step]]:
    """The tokens to add to `base`, the most frequent first, and the steps. `special` entries of a vocabulary are no
    word pieces."""
    words = sorted(counts)
    occurrences = np.array([counts[word] for word in words])
    tokens, entropy = _entropy(wordpiece.frequencies(words, occurrences, base, unknown))
    steps = [Step(len(base), 0, tokens, entropy)]
    trained = wordpiece.train(counts)
    pieces: list[str] = []
    added: list[str] = []
    while not settings.max_steps or len(steps) <= settings.max_steps:
        wanted = len(steps) * settings.increment
        pieces += islice(trained, len(base) + wanted - special - len(pieces))
        frequencies = wordpiece.frequencies(
            words, occurrences, {unknown: 0} | {p: i for i, p in enumerate(pieces, 1)}, unknown
        )
        new = [i for i in np.flatnonzero(frequencies) if i and pieces[i - 1] not in base and is_word(pieces[i - 1])]
        new = sorted(new, key=lambda i: (-frequencies[i], i))[:wanted]
        grown = len(new) - len(added)
        added = [pieces[i - 1] for i in new]
        expanded = dict(base) | {token: i for i, token in enumerate(added, max(base.values()) + 1)}
        tokens, entropy = _entropy(wordpiece.frequencies(words, occurrences, expanded, unknown))
        steps.append(Step(len(expanded), len(added), tokens, entropy))
        gain = entropy - steps[-2].entropy
        limit = {
            "exhausted": 0.0,
            "relative": abs(steps[-2].entropy),
            "first": abs(steps[1].entropy - steps[0].entropy),
        }
        if grown < settings.increment or gain < settings.epsilon * limit[settings.stop]:
            break
    return added, steps


def is_word(piece: str) -> bool:
    return any(character.isalpha() for character in piece)


def _entropy(frequencies: np.ndarray) -> tuple[int, float]:
    """The number of tokens, and the sum of their log probabilities."""
    met = frequencies[frequencies > 0]
    return int(met.sum()), float((met * np.log(met / met.sum())).sum())


def build(given: Settings) -> Path:
    """Write the expanded checkpoint: tokenizer, model with the new embeddings, encoder.yaml and a report."""
    encoder = load_encoder(given.base)
    checkpoint = checkpoint_folder(encoder)
    output = Path(given.output)
    recipe = {
        "stage": "vocabulary",
        "format": 1,
        "corpus": corpus.fingerprint(given.corpus),
        "checkpoint": checkpoint_digest(checkpoint),
        "settings": settings.recipe(given, "corpus", "base"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    from transformers import AutoTokenizer

    from cai_pyserini.splade import load_masked_lm

    model, _ = load_masked_lm(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    base, unknown = wordpiece.vocabulary_of(tokenizer.backend_tokenizer, str(checkpoint))
    with artifact.building(output, recipe) as (partial, facts):
        texts = cli.progress(corpus.texts(given.corpus, given.min_words), None, "count words", "text")
        counts = wordpiece.count_words(texts, tokenizer.backend_tokenizer)
        added, steps = expand(counts, base, len(tokenizer.all_special_tokens), unknown, given)
        if not added:
            raise CaiError(f"{', '.join(given.corpus)} has no word that {given.base} lacks: nothing to add")
        tokenizer.save_pretrained(partial)
        size = _write_vocabulary(partial / "tokenizer.json", added)
        _grow(model, [wordpiece.pieces_of(token, base) or [base[unknown]] for token in added], size)
        model.save_pretrained(partial)
        settings.write_encoder(encoder, partial)
        report = {"words": len(counts), "steps": [asdict(step) for step in steps], "added": added}
        artifact.write_text(partial / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        plot_lines(
            partial / "entropy.png",
            "entries of the vocabulary",
            "entropy of the corpus, nats",
            {"": ([step.vocabulary for step in steps], [step.entropy for step in steps])},
        )
        facts |= {"added": len(added), "vocabulary": size, "steps": len(steps) - 1}
    return output


def _write_vocabulary(path: Path, added: list[str]) -> int:
    """Put tokens after the last of a tokenizer.json. They are word pieces like all others, not "added tokens", so that
    text becomes what it would with a vocabulary that had them from the start. Returns the size of the vocabulary."""
    data = json.loads(path.read_text())
    vocabulary = data["model"]["vocab"]
    size = 1 + max([*vocabulary.values(), *(token["id"] for token in data["added_tokens"])])
    vocabulary |= {token: id for id, token in enumerate(added, size)}
    artifact.write_text(path, json.dumps(data, ensure_ascii=False))
    path.with_name("vocab.txt").unlink(missing_ok=True)  # tokenizer.json says it all
    return size + len(added)


def _grow(model: Any, pieces: list[list[int]], size: int) -> None:
    """Embeddings for new tokens at the end: the mean of their pieces' embeddings, and the decoder's bias likewise."""
    import torch

    model.resize_token_embeddings(size, mean_resizing=False)
    decoder = model.get_output_embeddings()
    tables = (model.get_input_embeddings().weight, decoder.weight, decoder.bias)
    with torch.no_grad():
        for table in {id(table): table for table in tables if table is not None}.values():  # tied ones once
            for row, ids in enumerate(pieces, size - len(pieces)):
                table[row] = table[ids].mean(0)


def main() -> None:
    given = settings.parse(
        Settings,
        "Expand a checkpoint's vocabulary with the words of a corpus, as AdaLM does.",
        "python -m cai_pyserini.trainer.vocabulary --corpus hpo --base splade-tiny --output models/hpo-vocabulary",
    )
    report = json.loads((build(given) / "report.json").read_text())
    print(f"{'step':>4} {'vocabulary':>10} {'added':>7} {'tokens':>13} {'entropy, nats':>16}")
    for number, step in enumerate(report["steps"]):
        print(f"{number:4} {step['vocabulary']:10,} {step['added']:7,} {step['tokens']:13,} {step['entropy']:16,.0f}")
    print(f"\nthe most frequent of {len(report['added']):,} new tokens: {' '.join(report['added'][:40])}")
    print(f"{given.output}/report.json, entropy.png")


if __name__ == "__main__":
    cli.run(main)
