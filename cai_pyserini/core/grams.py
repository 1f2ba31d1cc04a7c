"""Character n-grams: parts of words, which match compounds and inflected forms without a stemmer of the language.

A word, its ends marked, has every sequence of four letters (McNamee & Mayfield 2004): haustür has _hau, haus, aust,
ustü, stür and tür_. In scripts without spaces between words, each character stands for itself; in Hangul, two syllables
do, which a word of Korean often has. docs/experiments/languages.md compares other forms.
"""

from functools import lru_cache

import regex

from cai_pyserini.core.text import UNSPACED_SCRIPTS

LENGTH, SYLLABLES = 4, 2
EDGE = "_"
WORD = regex.compile(
    r"[{0}]|\p{Hangul}{1,64}|[\p{L}\p{N}\p{M}--[{0}\p{Hangul}]]{1,64}".replace("{0}", UNSPACED_SCRIPTS), regex.V1
)
HANGUL = regex.compile(r"\p{Hangul}")


def grams(text: str) -> list[str]:
    """The n-grams of a text's words, in their order; a shorter word is one by itself."""
    return [gram for word in WORD.findall(text.lower()) for gram in _grams(word)]


@lru_cache(maxsize=1 << 16)
def _grams(word: str) -> tuple[str, ...]:
    length = SYLLABLES if HANGUL.match(word) else LENGTH
    marked = f"{EDGE}{word}{EDGE}"
    return tuple(marked[start : start + length] for start in range(max(1, len(marked) - length + 1)))
