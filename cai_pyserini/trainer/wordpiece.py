"""Train WordPiece vocabularies on word counts, with the tokenizers library.

A vocabulary has all characters, initial and continuing ("##x"), followed by repeated merges of the most frequent pair
of pieces. The same words yield the same vocabulary, and a larger vocabulary begins with every smaller one.
"""

import itertools
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.trainers import WordPieceTrainer

from cai_pyserini.core.errors import CaiError

PREFIX = "##"
BATCH = 1 << 13  # texts per task of a counting process


def vocabulary_of(backend: Backend, name: str) -> tuple[dict[str, int], str]:
    """The vocabulary of a WordPiece tokenizer, token -> id, with added tokens, and its unknown token."""
    model = backend.model
    if not isinstance(model, WordPiece) or model.continuing_subword_prefix != PREFIX:
        raise CaiError(
            f"{name}: its tokenizer is {type(model).__name__}; only WordPiece vocabularies (BERT's) can be expanded"
        )
    return backend.get_vocab(with_added_tokens=True), model.unk_token


def count_words(texts: Iterable[str], backend: Backend) -> Counter[str]:
    """Count words, which a tokenizer's normalizer and pre-tokenizer split. Several batches of texts are counted by as
    many processes as there are processors."""
    batches = itertools.batched(texts, BATCH)
    count = partial(_count, backend.normalizer, backend.pre_tokenizer)
    counts = count(next(batches, ()))
    if (second := next(batches, None)) is None:
        return counts
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        pending: deque[Future[Counter[str]]] = deque()
        for batch in itertools.chain([second], batches):
            pending.append(pool.submit(count, batch))
            if len(pending) > 2 * (os.cpu_count() or 1):  # limits the texts in memory
                counts.update(pending.popleft().result())
        for future in pending:
            counts.update(future.result())
    return counts


def _count(normalizer: Normalizer | None, pre_tokenizer: PreTokenizer, texts: Sequence[str]) -> Counter[str]:
    normalize = normalizer.normalize_str if normalizer else str
    return Counter(word for text in texts for word, _ in pre_tokenizer.pre_tokenize_str(normalize(text)))


def train(counts: Counter[str], size: int) -> list[str]:
    """The first `size` pieces in the order of training; fewer if every word becomes a single piece before."""
    continuing = sorted({PREFIX + c for word in counts for c in word[1:]})  # the library's order would be random
    no_limit = 1 << 21  # more than there are characters
    trainer = WordPieceTrainer(vocab_size=size, special_tokens=continuing, limit_alphabet=no_limit, show_progress=False)
    backend = Backend(WordPiece())
    backend.train_from_iterator(counts.elements(), trainer)
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def frequencies(words: Sequence[str], counts: np.ndarray, vocabulary: Mapping[str, int], unknown: str) -> np.ndarray:
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


def split(tokens: Iterable[str], vocabulary: Mapping[str, int], unknown: str) -> list[list[int]]:
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
