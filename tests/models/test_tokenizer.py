"""Tokens, their names in indexes, and bags of word pieces."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models import tokenizer as module
from cai_pyserini.models.tokenizer import Tokenizer, text_batches


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


def test_terms_are_the_names_of_the_ids(tokenizer: Tokenizer, checkpoint: Path) -> None:
    stock = AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == len(tokenizer.terms) == len(stock)
    assert tokenizer.terms == stock.convert_ids_to_tokens(list(range(len(stock))))
    assert {"|", '"', "\\", "#", "##ing", "[CLS]"} <= set(tokenizer.terms)


def test_terms_are_unique_and_free_of_white_space(tmp_path: Path) -> None:
    odd = [" ", "\u3000", "", "a b", "c\n", "d\x01e", "\u00a0"]
    vocabulary = {token: i for i, token in enumerate(["[UNK]", "x", *odd, "y", "[3]", "[[3]]"])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(tmp_path)
    terms = Tokenizer(tmp_path).terms
    assert terms[:2] + terms[9:] == ["[UNK]", "x", "y", "[3]", "[[3]]"]
    assert terms[2:5] == ["[2]", "[[[3]]]", "[4]"]
    assert len(set(terms)) == 12
    assert all(term.split() == [term] and "\x01" not in term for term in terms)


def test_bag_of_words_counts_word_pieces(tokenizer: Tokenizer) -> None:
    counts = tokenizer.bag_of_words(["Cancer of the colon: colon cancer, colon!", "", "fever"], 256)
    assert counts.shape == (3, len(tokenizer))
    row = {tokenizer.terms[i]: n for i, n in zip(counts[0].indices, counts[0].data, strict=True)}
    assert row == {"cancer": 2, "of": 1, "the": 1, "colon": 3, ":": 1, ",": 1, "!": 1}
    assert counts[1].nnz == 0
    assert counts[2].sum() == 1


def test_bag_of_words_has_what_the_model_would_read(tokenizer: Tokenizer) -> None:
    text = "colon cancer fever " * 3
    for max_length in (3, 4, 6, 64):
        read = tokenizer.encode([text], max_length)[0][1:-1]  # without [CLS] and [SEP]
        assert tokenizer.bag_of_words([text], max_length).sum() == len(read) == min(9, max_length - 2)


def test_truncation_does_not_outlive_a_call(tokenizer: Tokenizer) -> None:
    text = "colon " * 1000
    assert [len(t) for t in tokenizer.encode([text], 5)] == [5]
    assert [len(t) for t in tokenizer.encode([text], None, special=False)] == [1000]
    assert [len(t) for t in tokenizer.encode([text, "colon"], 7)] == [7, 3]
    assert tokenizer.lengths(["", text]) == [2, 1002]
    tokenizer.encode(["colon"], 1, special=False)
    assert tokenizer.special_tokens == (1, 1)


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("README.md", "no tokenizer", r": no tokenizer \(tokenizer\.json\) in this folder$"),
        ("tokenizer.json", "{}", r": its tokenizer cannot be read"),
        ("tokenizer.json", '{"version": "1.0', r": its tokenizer cannot be read"),
    ],
)
def test_a_folder_without_a_readable_tokenizer_is_refused(tmp_path: Path, name: str, data: str, message: str) -> None:
    (tmp_path / name).write_text(data)
    with pytest.raises(CaiError, match=message):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "config, normalizer, is_plain",
    [
        ({}, {}, True),
        ({"do_lower_case": False}, {}, False),
        ({"do_lower_case": False}, {"lowercase": False}, True),
        ({"strip_accents": False}, {}, False),
        ({"additional_special_tokens": ["fever"]}, {}, False),
        ({"mask_token": "fever"}, {}, False),
        ({"tokenizer_class": "DistilBertTokenizer"}, {}, False),
    ],
)
def test_a_tokenizer_is_that_of_transformers(
    checkpoint: Path, tmp_path: Path, config: dict[str, Any], normalizer: dict[str, Any], is_plain: bool
) -> None:
    """The fault: without transformers, texts have other tokens, because its class disregards tokenizer.json."""
    for name, changes in (("config.json", {}), ("tokenizer_config.json", config), ("tokenizer.json", {})):
        found = json.loads((checkpoint / name).read_text()) | changes
        if name == "tokenizer.json":
            found["normalizer"] |= normalizer
        (tmp_path / name).write_text(json.dumps(found))
    assert module._Plain(tmp_path).is_as_in_transformers() == is_plain
    stock, ours, text = AutoTokenizer.from_pretrained(tmp_path), Tokenizer(tmp_path), "Fièvre [MASK] FEVER, fever 熱"
    assert ours.encode([text, ""], 9) == stock([text, ""], truncation=True, max_length=9)["input_ids"]
    assert (ours.pad_id, ours.unknown_id) == (stock.pad_token_id, stock.unk_token_id)


def test_a_prompt_that_leaves_no_room_is_refused(tokenizer: Tokenizer) -> None:
    """Otherwise the model would read the same tokens for all texts."""
    tokens = tokenizer.token_ids(["fever", " \n", "colon fever"], 6, "one two three ")
    assert {position: len(ids) for position, ids in tokens.ids.items()} == {0: 6, 2: 6} and tokens.padded == 16
    with pytest.raises(CaiError, match=r"one two three .* fills the 5 tokens"):
        tokenizer.token_ids(["colon fever"], 5, "one two three ")


class Watched:
    """A backend that records the number of characters that it is given at a time."""

    def __init__(self, backend: Any):
        self._backend, self.given = backend, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
        self.given.append(sum(map(len, texts)))
        return self._backend.encode_batch_fast(texts, **how)


def test_so_many_characters_are_tokenized_at_a_time(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 100)
    watched = Tokenizer(checkpoint)
    watched.backend = Watched(watched.backend)
    texts = ["fever " * count for count in (1, 20, 5, 5, 5, 8)]
    assert watched.lengths(texts) == [3, 22, 7, 7, 7, 10] and watched.backend.given == [6, 120, 90, 48]
    assert [*text_batches([5, 95, 1, 101, 1], int)] == [[5, 95], [1], [101], [1]]
    assert [*text_batches("abc", len, max_items=2)] == [["a", "b"], ["c"]]
