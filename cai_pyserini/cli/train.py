"""The commands of the trainer."""

from functools import partial

from cai_pyserini.core.artifact import require
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Group, Main, Settings
from cai_pyserini.core.steps import unchanged
from cai_pyserini.trainer.commands import TRAININGS
from cai_pyserini.trainer.settings import NDCG

HELD_OUT = {"held_out_loss": "held-out loss", f"held_out_{NDCG}": NDCG}  # in stats, before and after


def _train(settings: Settings) -> None:
    require_trainer()
    name, training = next(item for item in TRAININGS.items() if type(settings) is item[1].settings)
    output = unchanged(partial(training.make, settings))
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
    print(f"{output}: {training.summary.format(**stats)}{suffix}")


GROUP = Group("Train retrievers, and make the files to train with.", {n: t.settings for n, t in TRAININGS.items()})
main = Main(GROUP, "train", _train)
