"""The best passage of a text, of which only a little is analyzed if it is long.

Analysis takes 0.1 ms per new word; a manual has 40,000. So words that may match are first looked for by the letters
that they begin with, and only the places with most of them are analyzed.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import regex

from cai_pyserini.engine.highlight import WIDTH, WORDS, Marked, snippet

LONG = 20_000  # characters of a text; a shorter one is analyzed whole
PLACES = 4  # places of a long text that are analyzed
MOST_BEGINNINGS = 12  # the strongest are looked for; each takes 1 ms in 2 MB
SHORTEST = 3  # letters of a beginning, if the word has as many
LONGEST_WORD = 64  # characters, the limit in WORDS
WITHOUT_SPACES = "\u0e00"  # Thai, the first of the scripts in which words follow each other without spaces
FIRST_WORD, LAST_WORD = regex.compile(r"^\w{1,63}\b"), regex.compile(r"\b\w{1,63}$")  # at the ends of a place

Strengths = Mapping[str, float]


def beginnings(terms: Strengths, words: Strengths) -> dict[str, float]:
    """The strengths of what words with these terms begin with, for a query's `words`.

    Stemming changes the last letter (study, studies: studi), so that is left out. If it changes more, as in German
    (Häuser: haus), words that begin like those of the query are found, too.
    """
    found: dict[str, float] = {}
    for term, strength in sorted(terms.items(), key=lambda pair: -pair[1]):
        found.setdefault(_beginning(term), strength)
    for word, strength in words.items():
        if strength > 0 and not word.lower().startswith((*found,)):
            found[_beginning(word)] = strength
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _beginning(word: str) -> str:
    return word.lower()[: max(SHORTEST, len(word) - 1)]


def occurrences(text: str, beginnings: Iterable[str]) -> dict[str, list[int]]:
    """Where words of a text begin so, in any case; in scripts without spaces, wherever the letters are."""
    lower = text.replace("İ", "I").lower()  # of all letters, only this one gets longer
    return {
        beginning: [
            start
            for match in re.finditer(re.escape(beginning), lower)
            if not (start := match.start()) or beginning >= WITHOUT_SPACES or not lower[start - 1].isalnum()
        ]
        for beginning in beginnings
    }


def words_that_may_match(text: str, beginnings: Callable[[], Strengths]) -> str:
    """A text, or of a long one those words that begin so, unless there are too many beginnings to look for."""
    if len(text) <= LONG or len(sought := beginnings()) > MOST_BEGINNINGS:
        return text
    starts = (start for starts in occurrences(text, sought).values() for start in starts)
    return " ".join({match[0] for start in starts if (match := WORDS.match(text, start))})


def best_snippet(
    text: str, strengths_of: Callable[[str], Strengths], beginnings: Callable[[], Strengths], width: int = WIDTH
) -> tuple[Marked, int]:
    """The snippet of a text, see `highlight.snippet`; in a long text, the best of PLACES places.

    `strengths_of` gives the strengths of the words of a text, and `beginnings` those of what such words begin with.
    """
    if len(text) <= LONG:
        return snippet(text, strengths_of(text), width)
    places = [(start, _excerpt(text, start, end)) for start, end in _places(text, beginnings(), width)]
    strengths = strengths_of("\n".join(excerpt for _, excerpt in places))
    snippets = [(start, *snippet(excerpt, strengths, width)) for start, excerpt in places]
    start, pieces, page_breaks = max(snippets, key=lambda found: sum(dict(found[1]).values()))
    return pieces, text.count("\f", 0, start) + page_breaks


def _places(text: str, beginnings: Strengths, width: int) -> list[tuple[int, int]]:
    """Where the parts of a text begin and end that have most beginnings, with at least a width before and after."""
    scores = np.zeros(len(text) // width + 2)
    for beginning, starts in occurrences(text, [*beginnings][:MOST_BEGINNINGS]).items():
        has = np.zeros(len(scores), bool)
        has[np.array(starts, int) // width] = True
        scores += beginnings[beginning] * (has | np.append(has[1:], False))
    best: list[int] = []
    for block in map(int, np.argsort(-scores, kind="stable")):
        if all(abs(block - other) > 1 for other in best):
            best.append(block)
        if len(best) == PLACES:
            break
    margin = width + LONGEST_WORD
    return [(max(0, block * width - margin), (block + 2) * width + margin) for block in sorted(best)]


def _excerpt(text: str, start: int, end: int) -> str:
    """A part of a text, without the words that its ends cut."""
    excerpt = text[start:end]
    if start:
        excerpt = "… " + FIRST_WORD.sub("", excerpt)
    return LAST_WORD.sub("", excerpt) + " …" if end < len(text) else excerpt
