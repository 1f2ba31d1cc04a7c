"""Vocabulary coverage: which words of a collection does an encoder have to split? It is known before any training.

A word that is not in the vocabulary is split into pieces, as amoxicillin into am ##ox ##ici ##llin. As an entry of the
vocabulary it would be one piece, and save the others at each occurrence. Words are those that `trainer vocabulary`
counts and may add: what the encoder's normalizer and pre-tokenizer make of the documents, except for words without a
letter.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from tokenizers import Tokenizer as Backend

from cai_pyserini.analysis.output import Report
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import COLLECTION, ENCODER, OUTPUT_ANALYSIS
from cai_pyserini.core.settings import AnyPath, Settings, flag
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.trainer.vocabulary import is_word
from cai_pyserini.trainer.wordpiece import count_words, vocabulary_of

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)  # numbers of added words whose savings are reported


class CoverageSettings(Settings):
    """Measure vocabulary coverage: which words of a collection an encoder has to split into word pieces.

    It also estimates how many fewer pieces the collection would have with these words in the vocabulary.
    """

    example = "python -m cai_pyserini.analysis coverage --collection hpo --encoder splade-tiny --output analysis"
    collection: str = COLLECTION
    encoder: str = ENCODER
    output: AnyPath = OUTPUT_ANALYSIS
    top: int = flag(30, "number of words to show", ge=0)


class Word(NamedTuple):
    """A word, how often it occurs, and its pieces."""

    text: str
    occurrences: int
    pieces: list[str]

    @property
    def saving(self) -> int:
        """How many pieces fewer the collection would have if this word were in the vocabulary."""
        return (len(self.pieces) - 1) * self.occurrences


def coverage(settings: CoverageSettings) -> Report:
    """The coverage of a collection, and the words whose addition would save most pieces.

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
    shown = [word for word in words[: settings.top] if word.saving]
    rows = [["word", "occurrences", "pieces", "saving", "split"]]
    rows += [[w.text, f"{w.occurrences:,}", f"{len(w.pieces)}", f"{w.saving:,}", " ".join(w.pieces)] for w in shown]
    lines = [
        aligned(rows),
        "",
        "{occurrences:,} occurrences of {words:,} distinct words; {pieces_per_occurrence:.2f} pieces per word".format(
            **covered
        ),
        "in the vocabulary: {covered_occurrences:.1%} of the occurrences, {covered_words:.1%} of the distinct words; "
        "unknown: {unknown_occurrences:.2%} of the occurrences".format(**covered),
        "pieces saved by adding words: " + ", ".join(f"{size:,}: {share:.1%}" for size, share in saved_by.items()),
    ]
    data = {
        "collection": config.name,
        "encoder": encoder.name,
        "coverage": covered,
        "savings": saved_by,
        "top": [word._asdict() for word in shown],
    }
    return Report("coverage", "\n".join(lines), data)


def split(counts: Mapping[str, int], backend: Backend) -> list[Word]:
    """The words that have a letter, split by a tokenizer's model; those that would save most first."""
    words = [
        Word(word, count, [token.value for token in backend.model.tokenize(word)])
        for word, count in counts.items()
        if is_word(word)
    ]
    return sorted(words, key=lambda word: (-word.saving, word.text))


def measure(words: Sequence[Word], unknown: str) -> dict[str, float]:
    """The coverage of words; `unknown` is the piece that stands for a word that the vocabulary cannot spell."""
    occurrences = sum(word.occurrences for word in words)
    covered = [word for word in words if word.pieces == [word.text]]
    return {
        "occurrences": occurrences,
        "words": len(words),  # distinct
        "pieces_per_occurrence": sum(len(word.pieces) * word.occurrences for word in words) / occurrences,
        "covered_occurrences": sum(word.occurrences for word in covered) / occurrences,
        "covered_words": len(covered) / len(words),
        "unknown_occurrences": sum(word.occurrences for word in words if word.pieces == [unknown]) / occurrences,
    }


def savings(words: Sequence[Word]) -> list[float]:
    """The fraction of all pieces that adding the first 1, 2, … words saves, as far as a word saves any.

    Other words that begin with an added one, which would be split differently, count as before.
    """
    pieces = sum(len(word.pieces) * word.occurrences for word in words)
    return [saved / pieces for saved in accumulate(word.saving for word in words if word.saving)]
