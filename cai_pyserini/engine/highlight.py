"""Highlight the words of a text that contribute to its score, and choose a snippet with most of them.

Of a long text, only a little is analyzed: analysis takes 0.1 ms per new word, and a manual has 40,000. So words that
may match are first looked for by the letters that they begin with, and only the places with most of them are analyzed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np
import regex

from cai_pyserini.core.config import GRAM
from cai_pyserini.core.text import JOINED
from cai_pyserini.engine.explanation import Explanation

# Words have at most 64 characters, to split text without spaces. In Japanese, hiragana (mostly particles) end a word.
WORDS = regex.compile(r"([^\W\p{Hiragana}]{1,64}\p{Hiragana}{0,64}|\p{Hiragana}{1,64})")
GAP = regex.compile(r"\W{64,}")  # left out of snippets
PAGE_BREAKS = regex.compile(r"\f+")
WIDTH = 240  # characters of a snippet, at most
LONG = 20_000  # characters of a text; a shorter one is analyzed whole
PLACES = 4  # places of a long text that are analyzed
MOST_BEGINNINGS = 12  # the strongest are looked for; each takes 1 ms in 2 MB
SHORTEST = 3  # letters of a beginning, if the word has as many
LONGEST_WORD = 64  # characters, the limit in WORDS
PART = 4  # n-grams of a query, that is seven letters in a row, which make a word of a text one that has a part of it
LETTER = regex.compile(r"\w")  # also a combining vowel sign, which is not alphanumeric to Python
FIRST_WORD, LAST_WORD = regex.compile(r"^\w{1,63}\b"), regex.compile(r"\b\w{1,63}$")  # at the ends of a place

TermsOf = Callable[[str, str], Sequence[str]]  # system and word -> the system's terms for the word
Marked = list[tuple[str, float]]  # pieces of a text, each with a strength from 0 to 1
Strengths = Mapping[str, float]  # of words


def word_strengths(contents: str, explanations: Iterable[Explanation], terms_of: TermsOf) -> dict[str, float]:
    """The strength of each word of a text, from 0 to 1: the contribution of its best term, relative to the largest
    contribution of the explanation; the maximum over explanations. Sequences of four letters contribute together, if a
    word has more of them than not, or PART."""
    strengths = dict.fromkeys(WORDS.split(contents)[1::2], 0.0)
    for explanation in explanations:
        relative = {term.term: term.contribution / explanation.terms[0].contribution for term in explanation.terms}
        for word in strengths if relative else ():
            found = {term: relative.get(term, 0.0) for term in terms_of(explanation.system, word)}
            parts = [found.pop(term) for term in [*found] if term.startswith(GRAM)]
            has = [value for value in parts if value > 0]
            is_part = (len(has) >= PART or 2 * len(has) > len(parts)) and not JOINED.search(word)
            strengths[word] = max(strengths[word], *found.values(), min(is_part * sum(has), 1.0))
    return strengths


def text_of(pieces: Marked) -> str:
    return "".join(piece for piece, _ in pieces)


def marked(text: str, strengths: Strengths) -> Marked:
    """Split a text into words and the characters between them, with strengths."""
    return [(piece, strengths.get(piece, 0.0)) for piece in WORDS.split(text)]


def narrowed(pieces: Marked, terms: Iterable[str]) -> Marked:
    """Mark only these terms in words of scripts that join words."""
    return [
        (part, strength if is_term else 0.0)
        for piece, strength in pieces
        for part, is_term in (parts(piece, terms) if strength else [(piece, True)])
    ]


def parts(word: str, terms: Iterable[str]) -> list[tuple[str, bool]]:
    """The parts of a matching word, and whether each is one of the terms or of several that overlap. In a script that
    joins words, a `word` is what stands between two spaces; any other, or one without these terms, is one part."""
    inside = [False] * len(word)
    for term in filter(None, terms) if JOINED.search(word) else ():
        for found in regex.finditer(regex.escape(term), lower(word), overlapped=True):
            inside[found.start() : found.end()] = [True] * len(term)
    if not any(inside):
        return [(word, True)]
    runs = groupby(zip(word, inside, strict=True), key=lambda pair: pair[1])
    return [("".join(letter for letter, _ in run), is_term) for is_term, run in runs]


def snippet(text: str, strengths: Strengths, width: int = WIDTH) -> tuple[Marked, int]:
    """The window of at most `width` characters whose distinct words have the greatest total strength, and the number of
    form feeds before the first of these words.

    `…` marks omissions. Words are never cut, even longer ones, nor are up to 64 characters before and after the window.
    """
    text = "\f".join(" ".join(page.split()) for page in text.split("\f"))
    pieces = WORDS.split(GAP.sub(lambda gap: " … " + "\f" * gap[0].count("\f"), text))  # words are at odd positions
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    best, window = -1.0, (0, 0)
    inside: Counter[str] = Counter()
    strength, start = 0.0, 1
    for end in range(1, len(pieces), 2):
        inside[pieces[end]] += 1
        strength += strengths.get(pieces[end], 0.0) * (inside[pieces[end]] == 1)
        while ends[end + 1] - ends[start] > width and start < end:
            inside[pieces[start]] -= 1
            strength -= strengths.get(pieces[start], 0.0) * (inside[pieces[start]] == 0)
            start += 2
        if strength > best + 1e-9 or (start == window[0] and strength > best - 1e-9):
            best, window = strength, (start, end)
    matching = [place for place in range(window[0], window[1] + 1, 2) if strengths.get(pieces[place])]
    first, last = _widened(ends, matching[0], matching[-1], width) if matching else window
    result: Marked = [
        (PAGE_BREAKS.sub(" ", piece), strengths.get(piece, 0.0)) for piece in pieces[first and first - 1 : last + 2]
    ]
    page_breaks = sum(piece.count("\f") for piece in pieces[: matching[0] if matching else first])
    if first > 1:
        result[0] = ("… ", 0.0)
    if last + 2 < len(pieces):
        result[-1] = (" …", 0.0)
    return result, page_breaks


def _widened(ends: Sequence[int], first: int, last: int, width: int) -> tuple[int, int]:
    """The first and last word of a window around words: from the beginning of the text if that fits, or else with a
    third of the remaining width before them. `ends` has where each piece begins; words are at odd positions."""
    start = 0 if ends[last + 1] <= width else ends[first] - (width - ends[last + 1] + ends[first]) // 3
    while first > 1 and ends[first - 2] >= start:
        first -= 2
    while last + 3 < len(ends) and ends[last + 3] <= ends[first] + width:
        last += 2
    while last + 3 >= len(ends) and first > 1 and ends[last + 1] - ends[first - 2] <= width:
        first -= 2
    return first, last


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


def lower(text: str) -> str:
    """A text in small letters, each in its place."""
    return text.replace("İ", "I").lower()  # of all letters, only this one gets longer


def occurrences(text: str, beginnings: Iterable[str]) -> dict[str, list[int]]:
    """Where words of a text begin so, in any case; in scripts without spaces, wherever the letters are."""
    small = lower(text)
    return {
        beginning: [
            start
            for match in re.finditer(re.escape(beginning), small)
            if not (start := match.start()) or JOINED.match(beginning) or not LETTER.match(small, start - 1)
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
    """The snippet of a text, see `snippet`; in a long text, the best of PLACES places.

    `strengths_of` gives the strengths of the words of a text, and `beginnings` those of what such words begin with.
    """
    if len(text) <= LONG:
        return snippet(text, strengths_of(text), width)
    spans = places(text, beginnings(), width)
    parts = [(start, _excerpt(text, start, end)) for start, end in spans]
    strengths = strengths_of("\n".join(excerpt for _, excerpt in parts))
    snippets = [(start, *snippet(excerpt, strengths, width)) for start, excerpt in parts]
    start, pieces, page_breaks = max(snippets, key=lambda found: sum(dict(found[1]).values()))
    return pieces, text.count("\f", 0, start) + page_breaks


def places(text: str, beginnings: Strengths, width: int, most: int = PLACES) -> list[tuple[int, int]]:
    """Where the `most` parts of a text begin and end that have most beginnings, with at least a width before and after,
    in the order of the text."""
    scores = np.zeros(len(text) // width + 2)
    for beginning, starts in occurrences(text, [*beginnings][:MOST_BEGINNINGS]).items():
        has = np.zeros(len(scores), bool)
        has[np.array(starts, int) // width] = True
        scores += beginnings[beginning] * (has | np.append(has[1:], False))
    best: list[int] = []
    for block in map(int, np.argsort(-scores, kind="stable")):
        if all(abs(block - other) > 1 for other in best):
            best.append(block)
        if len(best) == most:
            break
    margin = width + LONGEST_WORD
    return [(max(0, block * width - margin), (block + 2) * width + margin) for block in sorted(best)]


def _excerpt(text: str, start: int, end: int) -> str:
    """A part of a text, without the words that its ends cut."""
    excerpt = text[start:end]
    if start:
        excerpt = "… " + FIRST_WORD.sub("", excerpt)
    return LAST_WORD.sub("", excerpt) + " …" if end < len(text) else excerpt
