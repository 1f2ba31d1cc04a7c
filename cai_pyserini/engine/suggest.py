"""Words that are meant: the words of a query that no document has, or hardly any, replaced by similar ones.

A similar word differs by an edit: a letter too many, missing or wrong, or two that are swapped; a long word may differ
by two. Of several, the one is meant that most documents have, unless its edit is less likely: swapped and doubled
letters are the most frequent errors, then vowels and neighbours on the keyboard, and the first letter is seldom wrong.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nlargest

from cai_pyserini.engine.highlight import WORDS
from cai_pyserini.indexes.searcher import Searcher

LONGEST = 200  # characters of a text; finding a similar word takes milliseconds
MIN_DOCUMENTS = 3  # that have a suggested word, in collections of more than 2,000; fewer in smaller ones
TWO_EDITS = 8  # characters of the words that may differ in two; a shorter one resembles too many others
MOST_COMPARED = 40  # the most frequent of the similar words
VOWELS = "aeiouy"
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
# Factors by which an error is less likely than a swapped or doubled letter, as logarithms.
DOUBLED, SWAPPED, MISSING, NEAR, OTHER, FIRST, SECOND = 0.0, 0.0, 1.5, 1.5, 3.0, 2.0, 4.0


def suggestion(text: str, index: Searcher, stems: Callable[[Sequence[str]], list[list[str]]]) -> str | None:
    """A short text with similar words in place of those that no document has, whose `stems` are not in the index; None
    if there is nothing to replace, or the index has no words."""
    if index.word_prefix is None or len(text) > LONGEST:
        return None
    pieces = WORDS.split(text)  # words are at odd positions
    pieces[1::2] = [*map(partial(_meant, index), words := pieces[1::2], stems(words))]
    suggested = "".join(pieces)
    return suggested if suggested != text else None


def _meant(index: Searcher, word: str, stems: Sequence[str]) -> str:
    """The word that is meant by one; often itself."""
    typed, edits = word.lower(), min(2 if len(word) >= TWO_EDITS else 1, len(word) // 3)
    if not stems or not edits or any(index.documents_with(f"{index.word_prefix}{stem}") for stem in stems):
        return word
    documents, least = index.similar_words(typed, edits), min(MIN_DOCUMENTS, math.ceil(index.documents / 1000))
    similar = nlargest(MOST_COMPARED, documents, key=lambda other: documents[other])
    return max(
        (other for other in similar if documents[other] >= least),
        key=lambda other: math.log(documents[other]) - unlikelihood(typed, other),
        default=word,
    )


def unlikelihood(typed: str, meant: str) -> float:
    """How much less likely a word is typed for another one than with swapped or doubled letters, as a logarithm: the
    least sum of edits, as in the distance of Damerau and Levenshtein."""
    before, rows = " ", [[0.0] * (len(meant) + 1) for _ in range(len(typed) + 1)]
    for i, letter in enumerate(f" {typed}"):
        for j, other in enumerate(f" {meant}"):
            first = FIRST if min(i, j) <= 1 else 0.0
            ways = [] if i or j else [0.0]
            if i:
                ways.append(rows[i - 1][j] + first + SECOND + (DOUBLED if letter == before else MISSING))
            if j:
                ways.append(rows[i][j - 1] + first + SECOND + (DOUBLED if other == meant[j - 2 : j - 1] else MISSING))
            if i and j:
                ways.append(rows[i - 1][j - 1] + (first + SECOND + _wrong(letter, other) if letter != other else 0.0))
            if i > 1 and j > 1 and letter == meant[j - 2] and before == other and letter != other:
                ways.append(rows[i - 2][j - 2] + SECOND + SWAPPED)
            rows[i][j] = min(ways)
        before = letter
    return max(0.0, rows[-1][-1] - SECOND)


def _wrong(letter: str, other: str) -> float:
    near = letter in VOWELS and other in VOWELS
    near = near or any(
        abs(row.find(letter) - row.find(other)) == 1 for row in KEYBOARD if letter in row and other in row
    )
    return NEAR if near else OTHER
