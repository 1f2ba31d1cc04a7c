"""Vocabulary expansion, the first half of AdaLM (Yao et al. 2021; Iida & Okazaki 2022, Algorithm 1).

In step i, a WordPiece vocabulary of |V_0| + i * increment entries is trained on the corpus, the corpus is tokenized
with it, and its i * increment most frequent tokens that are not in V_0 are added to V_0. Tokens without letters are
skipped. The last step is the first that cannot fill its increment, or that lowers the entropy of the corpus under the
expanded vocabulary (Appendix F)

    I(C) = sum over the corpus of log p(x),    p(x) = relative frequency of token x

The corpus is read once, into a table of word counts that all steps use. The result is reproducible.

A WordPiece vocabulary has all characters, initial and continuing ("##x"), then repeated merges of the most frequent
pair of pieces. The same words yield the same vocabulary, and a larger vocabulary begins with every smaller one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import plot_lines
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.models.tokenizer import Tokenizer, load_tokenizer
from cai_pyserini.trainer.corpus import corpus_recipe, count_words, texts
from cai_pyserini.trainer.settings import VocabularySettings, write_encoder
from cai_pyserini.trainer.training import require_ids

STAGE = "trainer vocabulary"
PREFIX = "##"


class Step(NamedTuple):
    vocabulary: int  # entries of the expanded vocabulary
    added: int  # entries that are not in V_0
    tokens: int  # in the corpus
    entropy: float  # of the corpus, in nats


def expand(
    counts: Counter[str], base: Mapping[str, int], special: int, unknown: str, settings: VocabularySettings
) -> tuple[list[str], list[Step]]:
    """The tokens to add to `base`, the most frequent first, and the steps.

    `counts` are the word counts of the corpus; `special` is the number of special tokens in the vocabulary, which are
    not word pieces.
    """
    words = sorted(counts)
    occurrences = np.array([counts[word] for word in words])
    steps = [Step(len(base), 0, *_tokens_and_entropy(token_counts(words, occurrences, base, unknown)))]
    trained: list[str] = []
    trained_size = 0
    added: list[str] = []
    while not settings.max_steps or len(steps) <= settings.max_steps:
        size = len(steps) * settings.increment
        vocabulary_size = len(base) + size - special
        if vocabulary_size > trained_size:
            trained_size = 2 * vocabulary_size  # for the next steps, too: a larger vocabulary begins with a smaller one
            trained = train_pieces(counts, trained_size)
        pieces = trained[:vocabulary_size]
        ids = {unknown: 0} | {piece: i for i, piece in enumerate(pieces, 1)}
        found = token_counts(words, occurrences, ids, unknown)
        new = [i for i in np.flatnonzero(found) if i and pieces[i - 1] not in base and is_word(pieces[i - 1])]
        new = sorted(new, key=lambda i: (-found[i], i))[:size]
        grown = len(new) - len(added)
        added = [pieces[i - 1] for i in new]
        expanded = dict(base) | {token: i for i, token in enumerate(added, max(base.values()) + 1)}
        tokens, entropy = _tokens_and_entropy(token_counts(words, occurrences, expanded, unknown))
        steps.append(Step(len(expanded), len(added), tokens, entropy))
        if grown < settings.increment or entropy < steps[-2].entropy:
            break
    return added, steps


def is_word(piece: str) -> bool:
    """Whether a piece has letters; numbers and punctuation are not added."""
    return any(character.isalpha() for character in piece)


def _tokens_and_entropy(frequencies: np.ndarray) -> tuple[int, float]:
    """The number of tokens, and the sum of their log probabilities, in nats."""
    counts = frequencies[frequencies > 0]
    return int(counts.sum()), float((counts * np.log(counts / counts.sum())).sum())


def expand_checkpoint(settings: VocabularySettings) -> Path:
    """Write the expanded checkpoint: tokenizer, model with new embeddings, encoder.yaml and report.json."""
    encoder = load_encoder(settings.base)

    def write(folder: Path) -> artifact.Stats:
        checkpoint = model_folder(encoder)
        model, _ = load_masked_lm(checkpoint)
        tokenizer = load_tokenizer(checkpoint)
        backend = Tokenizer(checkpoint).backend
        base, unknown = wordpiece_vocabulary(backend, str(checkpoint))
        _require_embeddings(checkpoint, base, len(_token_tables(model)[0]))
        corpus = progress(texts(settings.corpus, settings.min_words), None, "count words", "texts")
        counts = count_words(corpus, backend)
        added, steps = expand(counts, base, len(tokenizer.all_special_tokens), unknown, settings)
        if not added:
            raise CaiError(
                f"nothing to add: the vocabulary of {settings.base} has all words of {', '.join(settings.corpus)}"
            )
        expanded = base | {token: id for id, token in enumerate(added, max(base.values()) + 1)}
        tokenizer.save_pretrained(folder)
        _write_vocabulary(folder / "tokenizer.json", expanded)
        _grow(model, split_tokens(added, base, unknown), max(expanded.values()) + 1)
        model.save_pretrained(folder)
        require_ids(folder, expanded)
        write_encoder(encoder, folder)
        report = {"words": len(counts), "steps": [step._asdict() for step in steps], "added": added}
        files.write_text(folder / "report.json", files.json_text(report, ensure_ascii=False))
        points = [step.vocabulary for step in steps], [step.entropy for step in steps]
        plot_lines(folder / "entropy.png", "entries of the vocabulary", {"entropy of the corpus, nats": {"": points}})
        return {"added": len(added), "vocabulary": len(expanded), "steps": len(steps) - 1}

    return artifact.make(settings.output, corpus_recipe(STAGE, settings), write)


def _require_embeddings(checkpoint: Path, ids: Mapping[str, int], rows: int) -> None:
    """Raise CaiError if tokens have no row of the embeddings."""
    if max(ids.values()) >= rows:
        raise CaiError(
            f"{checkpoint}: the tokenizer has ids up to {max(ids.values()):,} but the model only {rows:,} embeddings: "
            "resize_token_embeddings was forgotten"
        )


def _write_vocabulary(path: Path, ids: Mapping[str, int]) -> None:
    """Put all tokens into the vocabulary of a tokenizer.json.

    New tokens are word pieces, not "added tokens", so that text is tokenized as if the vocabulary had always had them.
    Earlier added tokens stay added tokens, but also enter the vocabulary: when the file is loaded, an added token that
    is not in the vocabulary gets a new id, whatever the file says.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    data["model"]["vocab"] = dict(sorted(ids.items(), key=lambda item: item[1]))
    files.write_text(path, json.dumps(data, ensure_ascii=False))
    path.with_name("vocab.txt").unlink(missing_ok=True)  # tokenizer.json has the same entries


def _token_tables(model: Any) -> list[torch.Tensor]:
    """The parameters with a row for each token: the embeddings, and the decoder's weights and bias."""
    decoder = model.get_output_embeddings()
    tables = (model.get_input_embeddings().weight, decoder.weight, decoder.bias)
    return [table for table in tables if table is not None]


def _grow(model: Any, pieces: list[list[int]], size: int) -> None:
    """Append rows for new tokens: the mean of their pieces' embeddings, decoder weights and biases."""
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for table in {id(table): table for table in _token_tables(model)}.values():  # tied ones once
            for row, ids in enumerate(pieces, size - len(pieces)):
                table[row] = table[ids].mean(0)


def wordpiece_vocabulary(backend: Backend, name: str) -> tuple[dict[str, int], str]:
    """The vocabulary of a WordPiece tokenizer, token -> id, with added tokens, and its unknown token."""
    model = backend.model
    if not isinstance(model, WordPiece) or model.continuing_subword_prefix != PREFIX:
        raise CaiError(
            f"{name}: its tokenizer is {type(model).__name__}; only WordPiece vocabularies (BERT's) can be expanded"
        )
    return backend.get_vocab(with_added_tokens=True), model.unk_token


def train_pieces(counts: Counter[str], size: int) -> list[str]:
    """The first `size` pieces in the order of training; fewer if every word becomes a single piece before."""
    continuing = sorted({PREFIX + c for word in counts for c in word[1:]})  # the library's order would be random
    no_limit = 1 << 21  # more than there are characters
    trainer = WordPieceTrainer(vocab_size=size, special_tokens=continuing, limit_alphabet=no_limit, show_progress=False)
    backend = Backend(WordPiece())
    backend.train_from_iterator(counts.elements(), trainer)
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def token_counts(words: Sequence[str], counts: np.ndarray, vocabulary: Mapping[str, int], unknown: str) -> np.ndarray:
    """How often each id of a vocabulary occurs, int64, if word i occurs counts[i] times. Words are split greedily from
    left to right into the longest pieces."""
    backend = Backend(WordPiece(dict(vocabulary), unk_token=unknown))
    total = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for start in range(0, len(words), 1 << 15):
        part = slice(start, start + (1 << 15))
        ids = [encoding.ids for encoding in backend.encode_batch_fast(words[part], add_special_tokens=False)]
        weights = counts[part].repeat([len(i) for i in ids])
        np.add.at(total, np.concatenate(ids).astype(np.int64), weights)
    return total


def split_tokens(tokens: Iterable[str], vocabulary: Mapping[str, int], unknown: str) -> list[list[int]]:
    """The ids of the pieces that each token splits into; the pieces of a token "##…" are all continuing."""
    continuing = {unknown: vocabulary[unknown]}
    for piece, id in vocabulary.items():
        if piece.startswith(PREFIX):
            continuing |= {piece: id, piece.removeprefix(PREFIX): id}
    words, ends = WordPiece(dict(vocabulary), unk_token=unknown), WordPiece(continuing, unk_token=unknown)
    pieces = (
        ends.tokenize(token.removeprefix(PREFIX)) if token.startswith(PREFIX) else words.tokenize(token)
        for token in tokens
    )
    return [[piece.id for piece in each] for each in pieces]
