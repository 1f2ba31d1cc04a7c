"""Vocabulary coverage: which words of a collection does an encoder have to split? No training is needed to know.

A word that is not in the vocabulary is split into pieces, as amoxicillin into am ##ox ##ici ##llin. Added to the
vocabulary, it would be one piece, which saves the others at each occurrence. The words are those that `trainer
vocabulary` counts and may add: the output of the encoder's normalizer and pre-tokenizer, except words without a letter.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from tokenizers import Tokenizer as Backend

from cai_pyserini.analysis.output import Report
from cai_pyserini.analysis.settings import CoverageSettings
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import figure
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.trainer.vocabulary import is_word
from cai_pyserini.trainer.wordpiece import count_words, vocabulary_of

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)  # added words to report savings for
LAST_BAR = 8  # this many pieces or more


class Word(NamedTuple):
    """A word, its number of occurrences, and its pieces."""

    text: str
    occurrences: int
    pieces: list[str]

    @property
    def saving(self) -> int:
        """The pieces that the collection would save with this word in the vocabulary."""
        return (len(self.pieces) - 1) * self.occurrences


class Coverage(NamedTuple):
    """How well a vocabulary covers a collection. The last three values are fractions."""

    occurrences: int
    words: int  # distinct
    pieces_per_occurrence: float
    covered_occurrences: float  # of words that are in the vocabulary
    covered_words: float  # of distinct words
    unknown_occurrences: float  # of words that the vocabulary cannot spell with pieces


def coverage(settings: CoverageSettings) -> Report:
    """The coverage of a collection, and the words that would save most pieces if added.

    Raises CaiError for a collection without words and for a vocabulary that is not WordPiece.
    """
    config, encoder = load_index_config(settings.collection), load_encoder(settings.encoder)
    collection, backend = open_collection(config), Encoder(encoder).tokenizer.backend
    _, unknown = vocabulary_of(backend, encoder.checkpoint)
    documents = progress(collection.documents(), collection.size, "count words")
    words = split(count_words((document.contents for document in documents), backend), backend)
    if not words:
        raise CaiError(f"collection {config.name} has no words")
    covered, saved = measure(words, unknown), savings(words)
    saved_by = {size: saved[size - 1] for size in (*SIZES, len(saved)) if 0 < size <= len(saved)}
    top_words = [word for word in words[: settings.top] if word.saving]
    rows = [["word", "occurrences", "pieces", "saving", "split"]]
    rows += [[w.text, f"{w.occurrences:,}", f"{len(w.pieces)}", f"{w.saving:,}", " ".join(w.pieces)] for w in top_words]
    lines = [
        aligned(rows),
        "",
        f"{covered.occurrences:,} occurrences of {covered.words:,} distinct words; "
        f"{covered.pieces_per_occurrence:.2f} pieces per word",
        f"in the vocabulary: {covered.covered_occurrences:.1%} of the occurrences, {covered.covered_words:.1%} of the "
        f"distinct words; unknown: {covered.unknown_occurrences:.2%} of the occurrences",
        "pieces saved by adding words: " + ", ".join(f"{size:,}: {share:.1%}" for size, share in saved_by.items()),
    ]
    data = {
        "collection": config.name,
        "encoder": encoder.name,
        "coverage": covered._asdict(),
        "savings": saved_by,
        "top": [word._asdict() for word in top_words],
    }
    plotted = plot(words, f"{config.name} with the vocabulary of {encoder.name}")
    return Report("coverage", "\n".join(lines), data, {"coverage.png": plotted})


def split(counts: Mapping[str, int], backend: Backend) -> list[Word]:
    """The words that have a letter, split by a tokenizer's model, sorted by saving."""
    words = [
        Word(word, count, [token.value for token in backend.model.tokenize(word)])
        for word, count in counts.items()
        if is_word(word)
    ]
    return sorted(words, key=lambda word: (-word.saving, word.text))


def measure(words: Sequence[Word], unknown: str) -> Coverage:
    """The coverage of words; `unknown` is the piece for words that the vocabulary cannot spell."""
    occurrences = sum(word.occurrences for word in words)
    covered = [word for word in words if word.pieces == [word.text]]
    return Coverage(
        occurrences=occurrences,
        words=len(words),
        pieces_per_occurrence=sum(len(word.pieces) * word.occurrences for word in words) / occurrences,
        covered_occurrences=sum(word.occurrences for word in covered) / occurrences,
        covered_words=len(covered) / len(words),
        unknown_occurrences=sum(word.occurrences for word in words if word.pieces == [unknown]) / occurrences,
    )


def savings(words: Sequence[Word]) -> list[float]:
    """The fraction of all pieces saved by adding the first 1, 2, … words, up to the last that saves any.

    Words that begin with an added word, and would be split differently, are counted as before.
    """
    pieces = sum(len(word.pieces) * word.occurrences for word in words)
    return [saved / pieces for saved in accumulate(word.saving for word in words if word.saving)]


def plot(words: Sequence[Word], title: str) -> Figure:
    """Bars: the number of pieces per occurrence of a word. Inset: the pieces saved by adding words."""
    fig, axes = figure("pieces per word", "share of occurrences", title, (7, 4.5))
    pieces = np.minimum([len(word.pieces) for word in words], LAST_BAR)
    shares = np.bincount(pieces, [word.occurrences for word in words], LAST_BAR + 1)[1:]
    bars = axes.bar([*map(str, range(1, LAST_BAR)), f"{LAST_BAR}+"], shares / shares.sum(), color="C0")
    axes.bar_label(bars, [f"{share:.1%}" for share in shares / shares.sum()], fontsize=8)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(visible=False, axis="x")
    curve = axes.inset_axes((0.42, 0.38, 0.55, 0.55), xlabel="words added", ylabel="pieces saved", xscale="log")
    saved = savings(words)
    curve.plot(range(1, len(saved) + 1), saved, color="C1")
    curve.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    curve.yaxis.set_major_formatter(PercentFormatter(1))
    curve.set_ylim(0)
    curve.grid(alpha=0.3)
    return fig
