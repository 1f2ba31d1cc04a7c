"""The commands of the trainer."""

from functools import partial

from cai_pyserini.core.artifact import require
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Group, Main, Settings
from cai_pyserini.core.steps import unchanged
from cai_pyserini.trainer.commands import TRAININGS


def _train(settings: Settings) -> None:
    require_trainer()
    name, training = next(item for item in TRAININGS.items() if type(settings) is item[1].settings)
    output = unchanged(partial(training.make, settings))
    stats = require(output, f"trainer {name}").stats
    left_out = stats.get("without_negatives")
    suffix = f"; {left_out:,} left out, without a negative" if left_out else ""
    print(f"{output}: {training.summary.format(**stats)}{suffix}")


GROUP = Group("Train retrievers, and make the files to train with.", {n: t.settings for n, t in TRAININGS.items()})
main = Main(GROUP, "train", _train)
