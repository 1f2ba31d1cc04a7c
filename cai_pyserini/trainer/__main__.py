"""The commands of the trainer."""

from collections.abc import Sequence
from pathlib import Path

from cai_pyserini.core import terminal
from cai_pyserini.core.packages import require_modules
from cai_pyserini.core.settings import Settings, parse
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

PACKAGES = ("accelerate", "datasets")  # of the extra `trainer`
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


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(
        COMMANDS, argv, "python -m cai_pyserini.trainer", "Train retrievers, and make the files to train with."
    )
    if not isinstance(settings, TrainingSettings):
        terminal.require_one_process()
    require_modules(PACKAGES, "trainer")
    match settings:
        case VocabularySettings():
            _vocabulary(settings)
        case PretrainSettings():
            _pretrain(settings)
        case SpladeSettings():
            _splade(settings)
        case DenseSettings():
            _dense(settings)
        case GenerateSettings():
            _generate(settings)
        case MineSettings():
            _mine(settings)
        case MsmarcoSettings():
            _msmarco(settings)
        case ScoreSettings():
            _score(settings)


def _vocabulary(settings: VocabularySettings) -> None:
    from cai_pyserini.core.tables import aligned
    from cai_pyserini.trainer.vocabulary import expand_checkpoint, read_report

    report = read_report(expand_checkpoint(settings))
    header = ["step", "vocabulary", "added", "tokens", "entropy, nats"]
    rows = [
        [f"{number}", f"{step.vocabulary:,}", f"{step.added:,}", f"{step.tokens:,}", f"{step.entropy:,.0f}"]
        for number, step in enumerate(report.steps)
    ]
    print(aligned([header, *rows]))
    print(f"\nthe most frequent of {len(report.added):,} new tokens: {' '.join(report.added[:40])}")
    print(f"{settings.output}/report.json, entropy.png")


def _pretrain(settings: PretrainSettings) -> None:
    from cai_pyserini.core.artifact import require
    from cai_pyserini.trainer.pretrain import STAGE, pretrain

    stats = require(pretrain(settings), STAGE).stats
    before, after = stats["held_out_loss_before"], stats["held_out_loss_after"]
    terminal.say(f"{settings.output}: {stats['steps']:,} steps, held-out loss {before:.3f} -> {after:.3f}")


def _splade(settings: SpladeSettings) -> None:
    from cai_pyserini.trainer.splade import SpladeTraining

    _report(SpladeTraining(settings).run(), SpladeTraining.stage)


def _dense(settings: DenseSettings) -> None:
    from cai_pyserini.trainer.dense import DenseTraining

    _report(DenseTraining(settings).run(), DenseTraining.stage)


def _report(output: Path, stage: str) -> None:
    from cai_pyserini.core.artifact import require

    stats = require(output, stage).stats
    terminal.say(
        f"{output}: {stats['steps']:,} steps on {stats['examples']:,} examples, training loss {stats['loss']:.4f}"
    )


def _generate(settings: GenerateSettings) -> None:
    from cai_pyserini.core.artifact import require
    from cai_pyserini.trainer.generate import STAGE, generate

    stats = require(generate(settings), STAGE).stats
    print(f"{settings.output}: {stats['queries']:,} queries for {stats['documents']:,} documents")


def _mine(settings: MineSettings) -> None:
    from cai_pyserini.core.artifact import require
    from cai_pyserini.trainer.mine import STAGE, mine

    stats = require(mine(settings), STAGE).stats
    without = f"; {stats['without_negatives']:,} left out, without a negative" if stats["without_negatives"] else ""
    print(f"{settings.output}: {stats['lines']:,} pairs of {stats['queries']:,} queries{without}")


def _msmarco(settings: MsmarcoSettings) -> None:
    from cai_pyserini.core.artifact import require
    from cai_pyserini.trainer.msmarco import STAGE, write_training_file

    stats = require(write_training_file(settings), STAGE).stats
    print(f"{settings.output}: {stats['lines']:,} queries, {stats['negatives']:,} negatives")


def _score(settings: ScoreSettings) -> None:
    from cai_pyserini.core.artifact import require
    from cai_pyserini.trainer.score import STAGE, score

    print(f"{settings.output}: {require(score(settings), STAGE).stats['lines']:,} lines")


if __name__ == "__main__":
    terminal.run(main, torchrun=True)
