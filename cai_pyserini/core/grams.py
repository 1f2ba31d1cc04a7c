"""Character n-grams: parts of words, which match compounds and inflected forms without a stemmer of the language.

A word, its beginning marked, has every sequence of four letters (McNamee & Mayfield 2004): haustür has _hau, haus,
aust, ustü and stür. A Chinese character stands for itself; in Hangul, two syllables do what four letters do elsewhere.
docs/experiments/languages.md compares other forms.
"""

from functools import lru_cache

import regex

LENGTH, SYLLABLES = 4, 2
BEGINNING = "_"
WORD = regex.compile(r"\p{Han}|\p{Hangul}{1,64}|[\p{L}\p{N}\p{M}--[\p{Han}\p{Hangul}]]{1,64}", regex.V1)
HANGUL = regex.compile(r"\p{Hangul}")


def grams(text: str) -> list[str]:
    """The n-grams of a text's words, in their order; a shorter word is one by itself."""
    return [gram for word in WORD.findall(text.lower()) for gram in _grams(word)]


@lru_cache(maxsize=1 << 16)
def _grams(word: str) -> tuple[str, ...]:
    length, marked = SYLLABLES if HANGUL.match(word) else LENGTH, BEGINNING + word
    return tuple(marked[start : start + length] for start in range(max(1, len(marked) - length + 1)))
