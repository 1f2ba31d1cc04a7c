"""Which words an encoder's vocabulary lacks: would expanding it pay for a collection? Known before any training.

A word that the vocabulary lacks falls into pieces, as amoxicillin into am ##ox ##ici ##llin. As an entry of its own it
would be one piece, and save the others at each occurrence. Words are those that `trainer.vocabulary` counts and may
add: what the encoder's tokenizer makes of documents before it splits them, but for those of digits and marks alone.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cai_pyserini import cli
from cai_pyserini.analysis import output
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import checkpoint_folder, load_encoder, load_index_config
from cai_pyserini.figure import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer as Backend

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)  # of expansions
LAST_BAR = 8  # pieces and more
HELP = """\
Show which words of a collection an encoder's vocabulary lacks, and how many pieces adding them would save.

For comparison, with BERT's vocabulary (splade-tiny):
  collection  pieces a word  whole: occurrences  different words  1,000 words save  3,000 words save
  cacm                 1.12               92.3%            56.2%              7.0%              9.5%
  scifact              1.30               83.7%            28.9%             10.3%             15.4%
  hpo                  1.40               80.5%            34.8%             16.9%             23.1%"""


class Word(NamedTuple):
    """A word, how often it occurs, and its pieces."""

    text: str
    occurrences: int
    pieces: list[str]

    @property
    def saving(self) -> int:
        """How many pieces fewer the collection would have, were this word in the vocabulary."""
        return (len(self.pieces) - 1) * self.occurrences


def split(counts: Mapping[str, int], backend: "Backend") -> list[Word]:
    """The words that have a letter, split by a tokenizer's model; those that would save most first."""
    from cai_pyserini.trainer.vocabulary import is_word

    words = [
        Word(word, count, [token.value for token in backend.model.tokenize(word)])
        for word, count in counts.items()
        if is_word(word)
    ]
    return sorted(words, key=lambda word: (-word.saving, word.text))


def summarize(words: Sequence[Word], unknown: str) -> dict[str, float]:
    """Counts, pieces an occurrence, and the shares of occurrences and of different words that are whole, and of
    occurrences that are `unknown`: the piece of a word that the vocabulary cannot spell."""
    occurrences = sum(word.occurrences for word in words)
    whole = [word for word in words if word.pieces == [word.text]]
    return {
        "occurrences": occurrences,
        "words": len(words),
        "pieces_per_occurrence": sum(len(word.pieces) * word.occurrences for word in words) / occurrences,
        "whole_occurrences": sum(word.occurrences for word in whole) / occurrences,
        "whole_words": len(whole) / len(words),
        "unknown_occurrences": sum(word.occurrences for word in words if word.pieces == [unknown]) / occurrences,
    }


def savings(words: Sequence[Word]) -> list[float]:
    """The share of all pieces that the first 1, 2, … words save as entries of the vocabulary, those that save any.

    Other words that begin with an added one, which would be split anew, count as before.
    """
    pieces = sum(len(word.pieces) * word.occurrences for word in words)
    return [saved / pieces for saved in accumulate(word.saving for word in words if word.saving)]


def plot(words: Sequence[Word], title: str) -> "Figure":
    """How many pieces occurrences of words have, as bars, and what adding words saves, as a curve in their corner."""
    import numpy as np
    from matplotlib.ticker import PercentFormatter, StrMethodFormatter

    made, axes = figure("pieces of a word", "share of occurrences", title, (7, 4.5))
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
    return made


def main() -> None:
    parser = cli.parser(
        HELP, "python -m cai_pyserini.analysis.lacking --collection hpo --encoder splade-tiny --output lacking"
    )
    cli.add_input_arguments(parser)
    parser.add_argument("--top", type=int, default=30, help="words to show")
    parser.add_argument("--output", type=Path, required=True, help="folder for lacking.json and lacking.png")
    args = parser.parse_args()
    config = load_index_config(args.collection)
    collection = open_collection(config)
    encoder = load_encoder(args.encoder)
    checkpoint = checkpoint_folder(encoder)
    from transformers import AutoTokenizer

    from cai_pyserini.trainer import wordpiece

    backend = AutoTokenizer.from_pretrained(str(checkpoint)).backend_tokenizer
    _, unknown = wordpiece.vocabulary_of(backend, str(checkpoint))
    documents = cli.progress(collection.documents(), collection.size, "count words")
    words = split(wordpiece.count_words((document.contents for document in documents), backend), backend)
    if not words:
        raise CaiError(f"collection {config.name} has no words")
    summary = summarize(words, unknown)
    saved = savings(words)
    sizes = {size: saved[size - 1] for size in (*SIZES, len(saved)) if 0 < size <= len(saved)}
    top = [word for word in words[: args.top] if word.saving]
    rows = [["word", "occurrences", "pieces", "saving", "split"]]
    rows += [[w.text, f"{w.occurrences:,}", f"{len(w.pieces)}", f"{w.saving:,}", " ".join(w.pieces)] for w in top]
    data = {"collection": config.name, "encoder": encoder.name, "summary": summary, "savings": sizes}
    figure = plot(words, f"{config.name} under the vocabulary of {encoder.name}")
    output.write(args.output, "lacking", rows, data | {"top": [word._asdict() for word in top]}, figure)
    print(
        "\n{occurrences:,} occurrences of {words:,} words, {pieces_per_occurrence:.2f} pieces each; whole are "
        "{whole_occurrences:.1%} of the occurrences, {whole_words:.1%} of the words; unknown: "
        "{unknown_occurrences:.2%} of the occurrences".format(**summary)
    )
    print("pieces saved by adding words: " + ", ".join(f"{size:,}: {share:.1%}" for size, share in sizes.items()))


if __name__ == "__main__":
    cli.run(main)
