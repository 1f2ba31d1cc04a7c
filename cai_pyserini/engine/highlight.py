"""Highlight the words of a text that contribute to its score, and choose a snippet with most of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import regex

from cai_pyserini.engine.explanation import Explanation

# Words have at most 64 characters, to split text without spaces. In Japanese, hiragana (mostly particles) end a word.
WORDS = regex.compile(r"([^\W\p{Hiragana}]{1,64}\p{Hiragana}{0,64}|\p{Hiragana}{1,64})")
GAP = regex.compile(r"\W{64,}")  # left out of snippets
PAGE_BREAKS = regex.compile(r"\f+")
WIDTH = 240  # characters of a snippet, at most

TermsOf = Callable[[str, str], Sequence[str]]  # system and word -> the system's terms for the word
Marked = list[tuple[str, float]]  # pieces of a text, each with a strength from 0 to 1


def word_strengths(contents: str, explanations: Iterable[Explanation], terms_of: TermsOf) -> dict[str, float]:
    """The strength of each word of a text, from 0 to 1: the contribution of its best term, relative to the largest
    contribution of the explanation; the maximum over explanations."""
    strengths = dict.fromkeys(WORDS.split(contents)[1::2], 0.0)
    for explanation in explanations:
        relative = {term.term: term.contribution / explanation.terms[0].contribution for term in explanation.terms}
        for word in strengths if relative else ():
            candidates = (relative.get(term, 0.0) for term in terms_of(explanation.system, word))
            strengths[word] = max(strengths[word], *candidates, 0.0)
    return strengths


def marked(text: str, strengths: Mapping[str, float]) -> Marked:
    """Split a text into words and the characters between them, with strengths."""
    return [(piece, strengths.get(piece, 0.0)) for piece in WORDS.split(text)]


def snippet(text: str, strengths: Mapping[str, float], width: int = WIDTH) -> tuple[Marked, int]:
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
