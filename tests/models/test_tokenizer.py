"""Tokens, their names in indexes, bags of word pieces, and windows."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models import tokenizer as module
from cai_pyserini.models.tokenizer import Tokenizer, Windows, text_batches


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


def test_windows_worked_example(tokenizer: Tokenizer) -> None:
    cls, sep = tokenizer.encode([""], 8)[0]
    texts = ["fever", " \n", "one two three four five six seven", "one two three"]  # a word piece per word
    ids = tokenizer.encode(texts, None, special=False)[2]
    windows = Windows.split(texts, tokenizer, 5, overlap=1)
    assert windows.owners.tolist() == [0, 2, 3, 2, 2]
    assert windows.counts.tolist() == [1, 0, 3, 1]
    cut = Windows.split(texts, tokenizer, 5)
    assert [list(window) for window in cut.tokens] == [list(window) for window in windows.tokens[:3]]
    assert (cut.owners.tolist(), cut.counts.tolist()) == ([0, 2, 3], [1, 0, 1, 1])
    first, further = windows.tokens[:3], windows.tokens[3:]
    assert [list(window) for window in first] == tokenizer.encode([texts[0], *texts[2:]], 5)
    assert [list(window) for window in further] == [[cls, *ids[2:5], sep], [cls, *ids[4:], sep]]


@pytest.mark.parametrize("overlap", [0, 1, 3, 5])
def test_windows_hold_every_token_and_are_full(tokenizer: Tokenizer, overlap: int) -> None:
    for length in range(1, 20):
        text = " ".join(map(str, range(length)))
        ids = tokenizer.encode([text], None, special=False)[0]
        windows = [list(window) for window in Windows.split([text], tokenizer, 8, overlap).tokens]
        assert {len(window) for window in windows} == {min(8, length + 2)}
        starts = [0, *(min(i * (6 - overlap), length - 6) for i in range(1, len(windows)))]
        assert [window[1:-1] for window in windows] == [ids[start : start + 6] for start in starts]
        assert starts[-1] + 6 >= length > (starts[-2] + 6 if len(starts) > 1 else 0)


def test_an_overlap_that_leaves_no_room_is_refused(tokenizer: Tokenizer) -> None:
    assert len(Windows.split(["colon " * 9], tokenizer, 5, 2).tokens) == 7
    with pytest.raises(CaiError, match="windows of 5 tokens cannot overlap by 3: set a smaller overlap"):
        Windows.split(["colon " * 9], tokenizer, 5, 3)


def test_a_prompt_that_leaves_no_room_is_refused(tokenizer: Tokenizer) -> None:
    """Otherwise the model would read the same tokens for all texts."""
    assert len(Windows.split(["colon fever"], tokenizer, 6, prompt="one two three ").tokens[0]) == 6
    for overlap in (None, 0):
        with pytest.raises(CaiError, match=r"one two three .* fills the 5 tokens|windows of 5 tokens cannot overlap"):
            Windows.split(["colon fever"], tokenizer, 5, overlap, prompt="one two three ")


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
    assert Windows.split(texts, watched, 8, overlap=2).counts.tolist() == [1, 5, 1, 1, 1, 2]
    assert watched.backend.given[-4:] == [6, 120, 90, 48]
    assert [*text_batches([5, 95, 1, 101, 1], int)] == [[5, 95], [1], [101], [1]]
    assert [*text_batches("abc", len, max_items=2)] == [["a", "b"], ["c"]]
