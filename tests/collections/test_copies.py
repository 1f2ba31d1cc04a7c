"""Copies, and passages of the same document, by hand."""

import random

import pytest

from cai_pyserini.collections.copies import Copies, source

TEXT = "Recurrent infections of the bladder are treated with nitrofurantoin for seven days."


@pytest.mark.parametrize(
    "other, is_copy",
    [
        (TEXT.upper().replace(" ", "  ").rstrip("."), True),
        (TEXT.replace("seven", "ten"), True),
        (f"{TEXT} Indeed.", True),
        (TEXT.replace("seven", "ten").replace("bladder", "kidney"), False),
        (f"{TEXT} {TEXT}", False),
        ("", False),
    ],
)
def test_copies_have_nine_in_ten_words_in_common(other: str, is_copy: bool) -> None:
    texts = ["something else of the bladder", TEXT, other]
    assert Copies(texts).of(1).tolist() == [1, 2][: 1 + is_copy]
    assert Copies(texts).of(2).tolist() == [1, 2][1 - is_copy :]


def test_copies_equal_those_of_an_exhaustive_comparison() -> None:
    draw = random.Random(1)
    words = [f"word{number}" for number in range(30)]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 25))) for _ in range(40)]
    for text in texts[:40]:
        changed = text.split()
        for place in draw.sample(range(len(changed)), min(len(changed), draw.randint(0, 3))):
            changed[place] = draw.choice(words)
        texts.append(" ".join(changed))
    copies = Copies(texts)
    for number, text in enumerate(texts):
        expected = [other for other, each in enumerate(texts) if other == number or _common(text, each)]
        assert copies.of(number).tolist() == expected


def _common(one: str, other: str) -> bool:
    left, shared = one.split(), 0
    for word in other.split():
        if word in left:
            left.remove(word)
            shared += 1
    longer = max(len(one.split()), len(other.split()))
    return shared >= 0.9 * longer > 0


def test_passages_are_of_a_document() -> None:
    assert [source(id) for id in ("d#0", "d#12", "d", "d#x", "a#b#3", "#1")] == ["d", "d", "d", "d#x", "a#b", "#1"]
