"""One Unicode form: what is the same to a searcher becomes the same, and nothing else changes."""

import random
import unicodedata

import pytest

from cai_pyserini.core.text import normalized

SAME = {
    "cafe\u0301": "café",
    "ﬁrst aﬄuent ﬅraße": "first affluent straße",
    "ＡＢＣ１２３": "ABC123",
    "ｶﾞｷﾞ": "ガギ",
    "３．５ ｍ＠ｅｘ．ｏｒｇ": "3.5 m@ex.org",  # punctuation inside words, which analyzers would keep
    "ther\u00admostat": "thermostat",
    "thermo\u00ad\n  stat": "thermostat",  # a word that is hyphenated at the end of a line
    "mani\u200bfold\ufeff": "manifold",
    "\u200fהגשר\u200f \u2066a\u2069": "הגשר a",
    "Auf\u200clage": "Auflage",
    "O’Brien OʼBrien O＇Brien O´Brien Hawaiʻi": "O'Brien O'Brien O'Brien O'Brien Hawai'i",
    "COVID\u201119, 10\u202f000": "COVID-19, 10 000",
    "H₂O, CO₂, B₁₂": "H2O, CO2, B12",
    "5 µm": "5 μm",  # the micro sign becomes a Greek letter
    "㎏ ㎡ ⽂字 Ⅳ ﻻ": "kg m² 文字 IV لا",
    "葛\U000e0100": "葛",
    "𝐱": "x",
}
DIFFERENT = (  # these stay
    *("x²", "m³", "½", "①", "ℝ", "™", "№", "5′ 3″", "ג׳", "…", "“quoted”", "a\fb", "你好，世界！", "が", "ำ"),
    *("می\u200cخواهم", "क्\u200dष", "👩\u200d🔬", "ភាសា\u200bខ្មែរ", "❤\ufe0f", "CD\u200cها"),
)


@pytest.mark.parametrize("text", SAME)
def test_forms_of_the_same_letters_become_one(text: str) -> None:
    assert normalized(text) == SAME[text]


@pytest.mark.parametrize("text", DIFFERENT)
def test_what_means_something_stays(text: str) -> None:
    assert normalized(text) == text


def test_normalizing_twice_changes_nothing() -> None:
    """Stored texts are normalized again when they become queries."""
    ranges = [(0x20, 0x250), (0x300, 0x370), (0x5B0, 0x700), (0xE00, 0xE50), (0x1100, 0x11FF), (0x2000, 0x2070)]
    ranges += [(0x3000, 0x3100), (0xFB00, 0xFB50), (0xFF00, 0xFFF0), (0x1D400, 0x1D420), *[(0x200B, 0x200E)] * 3]
    draw = random.Random(42)
    for _ in range(20_000):
        text = "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randint(1, 7)))
        once = normalized(text)
        assert normalized(once) == once, text.encode("unicode_escape")
        assert unicodedata.is_normalized("NFC", once)
