"""Windows: what each holds, and to which text it belongs."""

from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.models.windows import Windows


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


def test_worked_example(tokenizer: Tokenizer) -> None:
    cls, sep = tokenizer.encode([""], 8)[0]
    texts = ["fever", " \n", "one two three four five six seven", "one two three"]  # a word piece per word
    ids = tokenizer.encode(texts, None, special=False)[2]
    windows = Windows.of(texts, tokenizer, 5, overlap=1)
    assert windows.owners.tolist() == [0, 2, 3, 2, 2]
    assert windows.counts.tolist() == [1, 0, 3, 1]
    assert windows.max_length == 5
    first, further = windows.tokens[:3], windows.tokens[3:]
    assert [list(window) for window in first] == tokenizer.encode([texts[0], *texts[2:]], 5)
    assert [list(window) for window in further] == [[cls, *ids[2:5], sep], [cls, *ids[4:], sep]]


@pytest.mark.parametrize("overlap", [0, 1, 3, 5])
def test_windows_hold_every_token_and_are_full(tokenizer: Tokenizer, overlap: int) -> None:
    for length in range(1, 20):
        text = " ".join(map(str, range(length)))
        ids = tokenizer.encode([text], None, special=False)[0]
        windows = [list(window) for window in Windows.of([text], tokenizer, 8, overlap).tokens]
        assert {len(window) for window in windows} == {min(8, length + 2)}
        starts = [0, *(min(i * (6 - overlap), length - 6) for i in range(1, len(windows)))]
        assert [window[1:-1] for window in windows] == [ids[start : start + 6] for start in starts]
        assert starts[-1] + 6 >= length > (starts[-2] + 6 if len(starts) > 1 else 0)


def test_without_overlap_there_is_one_window_per_text(tokenizer: Tokenizer) -> None:
    windows = Windows.of(["colon " * 9, "", "fever"], tokenizer, 5)
    assert windows.tokens == tokenizer.encode(["colon " * 9, "fever"], 5)
    assert (windows.owners.tolist(), windows.counts.tolist()) == ([0, 2], [1, 0, 1])


@pytest.mark.parametrize("texts", [[], [" "]])
def test_blank_texts_have_no_windows(tokenizer: Tokenizer, texts: list[str]) -> None:
    windows = Windows.of(texts, tokenizer, 5, 0)
    assert (windows.tokens, windows.owners.tolist(), windows.counts.tolist()) == ([], [], [0] * len(texts))


def test_an_overlap_that_leaves_no_room_is_refused(tokenizer: Tokenizer) -> None:
    assert len(Windows.of(["colon " * 9], tokenizer, 5, 2).tokens) == 7
    with pytest.raises(CaiError, match="windows of 5 tokens cannot overlap by 3: set a smaller overlap"):
        Windows.of(["colon " * 9], tokenizer, 5, 3)
