"""The commands of the trainer."""

import json
from pathlib import Path
from typing import Any

from cai_pyserini.core import terminal
from cai_pyserini.core.artifact import require
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Argv, Settings, parse
from cai_pyserini.core.tables import aligned
from cai_pyserini.trainer.settings import (
    DenseSettings,
    GenerateSettings,
    MineSettings,
    MsmarcoSettings,
    PretrainSettings,
    ScoreSettings,
    SpladeSettings,
    TrainingSettings,
    VocabularySettings,
)

COMMANDS: dict[str, type[Settings]] = {
    "vocabulary": VocabularySettings,
    "pretrain": PretrainSettings,
    "splade": SpladeSettings,
    "dense": DenseSettings,
    "generate": GenerateSettings,
    "mine": MineSettings,
    "msmarco": MsmarcoSettings,
    "score": ScoreSettings,
}


def main(argv: Argv = None) -> None:
    settings = parse(
        COMMANDS, argv, "python -m cai_pyserini.trainer", "Train retrievers, and make the files to train with."
    )
    if not isinstance(settings, TrainingSettings):
        terminal.require_one_process()
    require_trainer()
    match settings:  # the packages that a command needs are imported only now
        case VocabularySettings():
            from cai_pyserini.trainer.vocabulary import expand_checkpoint

            report = expand_checkpoint(settings) / "report.json"
            print(_table(json.loads(report.read_text(encoding="utf-8"))))
            print(f"{report}, entropy.png")
            return
        case PretrainSettings():
            from cai_pyserini.trainer.pretrain import pretrain

            stats = _stats(pretrain(settings))
            before, after = stats["held_out_loss_before"], stats["held_out_loss_after"]
            done = f"{stats['steps']:,} steps, held-out loss {before:.3f} -> {after:.3f}"
        case SpladeSettings() | DenseSettings():
            from cai_pyserini.trainer.pairs import train

            stats = _stats(train(settings))
            done = f"{stats['steps']:,} steps on {stats['examples']:,} examples, training loss {stats['loss']:.4f}"
        case GenerateSettings():
            from cai_pyserini.trainer.generate import generate

            stats = _stats(generate(settings))
            done = f"{stats['queries']:,} queries for {stats['documents']:,} documents"
        case MineSettings():
            from cai_pyserini.trainer.files import mine

            stats = _stats(mine(settings))
            done = f"{stats['lines']:,} pairs of {stats['queries']:,} queries"
            if left_out := stats["without_negatives"]:
                done += f"; {left_out:,} left out, without a negative"
        case MsmarcoSettings():
            from cai_pyserini.trainer.files import msmarco

            stats = _stats(msmarco(settings))
            done = f"{stats['lines']:,} queries, {stats['negatives']:,} negatives"
        case _:
            from cai_pyserini.trainer.files import score

            done = f"{_stats(score(settings))['lines']:,} lines"
    terminal.say(f"{settings.output}: {done}")


def _stats(path: Path) -> dict[str, Any]:
    return require(path, *(f"trainer {name}" for name in COMMANDS)).stats


def _table(report: dict[str, Any]) -> str:
    """The steps of a vocabulary expansion, and the first of its new tokens."""
    header = ["step", "vocabulary", "added", "tokens", "entropy, nats"]
    rows = [
        [f"{number}", f"{step['vocabulary']:,}", f"{step['added']:,}", f"{step['tokens']:,}", f"{step['entropy']:,.0f}"]
        for number, step in enumerate(report["steps"])
    ]
    added = report["added"]
    return f"{aligned([header, *rows])}\n\nthe most frequent of {len(added):,} new tokens: {' '.join(added[:40])}"


if __name__ == "__main__":
    terminal.run(main, torchrun=True)
