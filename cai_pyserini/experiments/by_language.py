"""What a run makes by default of documents in other languages than English, which the default SPLADE encoder is for: to
it, other scripts are [UNK], and words of other languages fall apart."""

import logging
from collections.abc import Sequence
from importlib.util import find_spec

from cai_pyserini.core.config import ANSERINI_LANGUAGES, ENGLISH, LUCENE_LANGUAGES
from cai_pyserini.core.packages import ENCODE, EXTRAS, install_command
from cai_pyserini.experiments.settings import RunSettings

MULTILINGUAL = "e5-small"
SYSTEMS, DENSE_SYSTEMS = ["bm25", "bm25-grams"], ["bm25-grams-near-words", "dense", "fused-bm25-grams-dense-zscore"]
NEED_DENSE = ("near", "dense", "trio")  # parts of the names of systems
logger = logging.getLogger(__name__)


def suited(settings: RunSettings, languages: Sequence[str]) -> RunSettings:
    """The settings with systems for documents in these languages, and a multilingual dense encoder if they need one and
    it is installed. Unchanged for English, and with a SPLADE encoder that was chosen or is adapted."""
    default = RunSettings.model_fields["encoder"].default
    if [*languages] == [ENGLISH] or settings.encoder != default or settings.adapt:
        return settings
    dense, names = settings.dense, settings.systems
    needs_dense = not names or any(part in name for name in names for part in NEED_DENSE)
    if not dense and needs_dense and _can_encode():
        dense = MULTILINGUAL
    return settings.replace(dense=dense, systems=names or [*SYSTEMS, *(DENSE_SYSTEMS if dense else [])])


def default_system(settings: RunSettings, languages: Sequence[str]) -> str:
    """The one system to search documents in these languages with, by an index that needs no dense model for queries."""
    if (own := suited(settings, languages)) is settings:
        return "joint-near" if settings.dense else "joint"
    return "bm25-grams-near-words" if own.dense else "bm25-grams"


def log_choice(name: str, languages: Sequence[str], settings: RunSettings) -> None:
    """Say in one line what was chosen for a collection, how to change it, and what is missing."""
    line = f"{name} is in {'+'.join(sorted(languages))}"
    if settings.systems:
        line += f": {', '.join(settings.systems)}{f' with {settings.dense}' if settings.dense else ''}"
    stemmed = {*ANSERINI_LANGUAGES, *LUCENE_LANGUAGES}
    if settings.systems and (others := sorted({*languages} - stemmed)):
        line += f", {'+'.join(others)} by Lucene's standard analyzer, which does not stem"
    line += "; the settings language, systems, dense and encoder change that"
    if not settings.dense and not _can_encode():
        line += f"; for a dense encoder of this language, {install_command('multilingual')}"
    logger.info("%s", line)


def _can_encode() -> bool:
    return all(map(find_spec, (*EXTRAS, *ENCODE)))
