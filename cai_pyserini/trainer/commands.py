"""The trainings by name, which `cai-pyserini train` and `cai-pyserini run --config` call; none is imported before."""

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.core.settings import Settings
from cai_pyserini.trainer import settings as schemas


class Training(NamedTuple):
    """A training: its settings, its module and function, and a format for its stats."""

    settings: type[Settings]
    module: str
    function: str
    summary: str

    def make(self, settings: Settings) -> Path:
        made: Path = getattr(import_module(f"cai_pyserini.{self.module}"), self.function)(settings)
        return made


EXPANDED = "{added:,} new tokens in {steps:,} steps, see report.json and entropy.png; {vocabulary:,} in all"
TRAINED = "{steps:,} steps on {examples:,} examples, training loss {loss:.4f}"
TRAININGS = {
    "vocabulary": Training(schemas.VocabularySettings, "trainer.vocabulary", "expand_checkpoint", EXPANDED),
    "pretrain": Training(schemas.PretrainSettings, "trainer.pretrain", "pretrain", "{steps:,} steps"),
    "splade": Training(schemas.SpladeSettings, "trainer.pairs", "train", TRAINED),
    "dense": Training(schemas.DenseSettings, "trainer.pairs", "train", TRAINED),
    "generate": Training(
        schemas.GenerateSettings, "trainer.generate", "generate", "{queries:,} queries for {documents:,} documents"
    ),
    "mine": Training(schemas.MineSettings, "trainer.training_files", "mine", "{lines:,} pairs of {queries:,} queries"),
    "msmarco": Training(
        schemas.MsmarcoSettings, "trainer.training_files", "msmarco", "{lines:,} queries, {negatives:,} negatives"
    ),
    "score": Training(schemas.ScoreSettings, "trainer.training_files", "score", "{lines:,} lines"),
}
