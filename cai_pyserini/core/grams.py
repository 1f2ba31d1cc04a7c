"""Character n-grams: parts of words, which match compounds and inflected forms without a stemmer of the language.

The script decides. A word, its beginning marked, has every sequence of four letters, without accents (McNamee &
Mayfield 2004): haustür has _hau, haus, aust, ustu and stur. In Chinese and Japanese, a run of characters has each one,
and every two; in Hangul, a run of syllables has every two, both ends marked. docs/experiments/languages.md compares
other forms.
"""

from collections import defaultdict
from functools import lru_cache

import regex

from cai_pyserini.core.text import without_accents

EDGE = "_"
CHARACTERS = r"\p{Han}\p{Hiragana}\p{Katakana}ー々"
WORD = regex.compile(
    rf"(?P<characters>[{CHARACTERS}]{{1,64}})|(?P<hangul>\p{{Hangul}}{{1,64}})"
    rf"|[\p{{L}}\p{{N}}\p{{M}}--[{CHARACTERS}\p{{Hangul}}]]{{1,64}}",
    regex.V1,
)


def grams(text: str) -> list[str]:
    """The n-grams of a text's words, in their order."""
    return [gram for word in _words(text) for gram in word]


def weighted_grams(text: str) -> dict[str, float]:
    """The weights of a query's n-grams: those of a word 1 / √n each if it has n, so that a long word does not have the
    weight of many words."""
    weights: dict[str, float] = defaultdict(float)
    for word in _words(text):
        for gram in word:
            weights[gram] += len(word) ** -0.5
    return weights


def _words(text: str) -> list[tuple[str, ...]]:
    return [_grams(match[0], match.lastgroup) for match in WORD.finditer(without_accents(text))]


@lru_cache(maxsize=1 << 16)
def _grams(word: str, script: str | None) -> tuple[str, ...]:
    match script:
        case "characters":
            return (*word, *_substrings(word, 2)) if len(word) > 1 else (word,)
        case "hangul":
            return _substrings(f"{EDGE}{word}{EDGE}", 2)
    return _substrings(EDGE + word, 4)


def _substrings(text: str, length: int) -> tuple[str, ...]:
    """All substrings of a length, or a shorter text."""
    return tuple(text[start : start + length] for start in range(max(1, len(text) - length + 1)))
