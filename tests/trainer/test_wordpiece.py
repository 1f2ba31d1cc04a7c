"""Word-piece training against the tokenizers library, whose trainer is given a fixed order of its characters."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from cai_pyserini.collection.hpo import Hpo
from cai_pyserini.core.errors import CaiError
from cai_pyserini.trainer import wordpiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> Backend:
    return AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer


def test_worked_example() -> None:
    # aab: 3, ab: 2. Pairs: a ##a 3, ##a ##b 3, a ##b 2; of equals the one with the earlier pieces first: ##a ##b.
    made = list(wordpiece.train(Counter({"aab": 3, "ab": 2})))
    assert made == ["##a", "##b", "a", "b", "##ab", "aab", "ab"]


def test_count_words_normalizes_and_splits(backend: Backend) -> None:
    counts = wordpiece.count_words(["Naïve T-cells,", "naive"], backend)
    assert counts == {"naive": 2, "t": 1, "-": 1, "cells": 1, ",": 1}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 7])  # 4 batches, the last of a single text; and one, by this process
def test_several_processes_count_the_same(backend: Backend, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [document.contents for document in islice(Hpo().documents(), 7)]
    whole = wordpiece.count_words(texts, backend)
    monkeypatch.setattr(wordpiece, "BATCH", batch)
    assert wordpiece.count_words(iter(texts), backend) == whole


@pytest.mark.parametrize("size", [300, 3000])
def test_the_library_trains_the_same_vocabulary(backend: Backend, size: int) -> None:
    texts = [document.contents for document in islice(Hpo().documents(), 2000)]
    counts = wordpiece.count_words(texts, backend)
    mine = list(islice(wordpiece.train(counts), size))
    continuing = [piece for piece in wordpiece.characters(counts) if piece.startswith("##") and len(piece) == 3]
    literal = Backend(models.WordPiece(unk_token="[UNK]"))
    literal.normalizer, literal.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trainer = trainers.WordPieceTrainer(
        vocab_size=size + len(SPECIAL), special_tokens=SPECIAL + continuing, limit_alphabet=1 << 20, show_progress=False
    )
    literal.train_from_iterator(texts, trainer)
    vocabulary = literal.get_vocab()
    assert mine == sorted(vocabulary, key=vocabulary.__getitem__)[len(SPECIAL) :]


def test_training_ends_when_every_word_is_one_piece() -> None:
    words = Counter(["fever", "fevers", "ear"])
    made = list(wordpiece.train(words))
    assert set(words) <= set(made)
    assert len(made) == len(set(made))


def test_frequencies_are_those_of_the_tokenizer(backend: Backend) -> None:
    texts = [document.contents for document in islice(Hpo().documents(), 300)]
    base, unknown = wordpiece.vocabulary_of(backend, "base")
    counts = wordpiece.count_words(texts, backend)
    words = sorted(counts)
    found = wordpiece.frequencies(words, np.array([counts[word] for word in words]), base, unknown)
    expected = Counter(id for text in texts for id in backend.encode(text, add_special_tokens=False).ids)
    assert {id: n for id, n in enumerate(found.tolist()) if n} == expected


def test_pieces_of_a_word_are_the_tokenizers(backend: Backend) -> None:
    base, _ = wordpiece.vocabulary_of(backend, "base")
    for word in ("methylation", "fever", "immunoglobulins", "xqzw"):
        assert wordpiece.pieces_of(word, base) == backend.encode(word, add_special_tokens=False).ids


def test_pieces_of_a_continuation_are_continuations() -> None:
    base = {"##thy": 0, "##lation": 1, "thy": 2, "lation": 3, "#": 4, "##t": 5}
    assert wordpiece.pieces_of("##thylation", base) == [0, 1]
    assert wordpiece.pieces_of("thylation", base) == [2, 1]
    assert wordpiece.pieces_of("##x", base) is None
    assert wordpiece.pieces_of("#", base) == [4]


def test_another_kind_of_tokenizer_is_refused() -> None:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(CaiError, match="some/folder: its tokenizer is BPE; only WordPiece"):
        wordpiece.vocabulary_of(backend, "some/folder")
