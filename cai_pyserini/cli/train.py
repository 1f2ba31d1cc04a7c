"""The commands of the trainer."""

from functools import partial
from importlib import import_module
from typing import NamedTuple

from cai_pyserini.core.artifact import require
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Group, Main, Settings
from cai_pyserini.core.steps import unchanged
from cai_pyserini.trainer import settings as schemas


class Command(NamedTuple):
    """A command: its settings, its function, whose module is imported when it runs, and a format for its stats."""

    settings: type[Settings]
    module: str
    function: str
    summary: str


EXPANDED = "{added:,} new tokens in {steps:,} steps, see report.json and entropy.png; {vocabulary:,} in all"
TRAINED = "{steps:,} steps on {examples:,} examples, training loss {loss:.4f}"
PRETRAINED = "{steps:,} steps"
HELD_OUT = {"held_out_loss": "held-out loss", f"held_out_{schemas.NDCG}": schemas.NDCG}
COMMANDS = {
    "vocabulary": Command(schemas.VocabularySettings, "trainer.vocabulary", "expand_checkpoint", EXPANDED),
    "pretrain": Command(schemas.PretrainSettings, "trainer.pretrain", "pretrain", PRETRAINED),
    "splade": Command(schemas.SpladeSettings, "trainer.pairs", "train", TRAINED),
    "dense": Command(schemas.DenseSettings, "trainer.pairs", "train", TRAINED),
    "generate": Command(
        schemas.GenerateSettings, "trainer.generate", "generate", "{queries:,} queries for {documents:,} documents"
    ),
    "mine": Command(schemas.MineSettings, "trainer.training_files", "mine", "{lines:,} pairs of {queries:,} queries"),
    "msmarco": Command(
        schemas.MsmarcoSettings, "trainer.training_files", "msmarco", "{lines:,} queries, {negatives:,} negatives"
    ),
    "score": Command(schemas.ScoreSettings, "trainer.training_files", "score", "{lines:,} lines"),
}


def _train(settings: Settings) -> None:
    require_trainer()
    name, command = next(item for item in COMMANDS.items() if type(settings) is item[1].settings)
    output = unchanged(partial(getattr(import_module(f"cai_pyserini.{command.module}"), command.function), settings))
    stats = require(output, f"trainer {name}").stats
    suffix = "".join(
        f", {label} {stats[f'{key}_before']:.3f} -> {stats[f'{key}_after']:.3f}"
        for key, label in HELD_OUT.items()
        if f"{key}_after" in stats
    )
    if step := stats.get("best_step"):
        suffix += f", of step {step:,}"
    if left_out := stats.get("without_negatives"):
        suffix += f"; {left_out:,} left out, without a negative"
    print(f"{output}: {command.summary.format(**stats)}{suffix}")


GROUP = Group("Train retrievers, and make the files to train with.", {n: c.settings for n, c in COMMANDS.items()})
main = Main(GROUP, "train", _train)
