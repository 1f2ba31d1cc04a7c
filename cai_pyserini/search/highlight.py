"""Which words of a text make up its score, and the part of a text that has most of them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from cai_pyserini.search.explanation import Explanation

SPLIT = re.compile(r"(\w{1,64})")  # text without spaces is split all the same
GAP = re.compile(r"\W{64,}")  # is left out of a snippet
WIDTH = 240  # characters of a snippet

TermsOf = Callable[[str, str], Sequence[str]]  # system and word -> the terms that the word is to the system
Marked = list[tuple[str, float]]  # pieces of a text, each with a strength from 0 to 1


def word_strengths(contents: str, explanations: Iterable[Explanation], terms_of: TermsOf) -> dict[str, float]:
    """From 0 to 1 for each word of a text: the contribution of its best term, relative to the largest contribution of
    that explanation; the maximum over explanations."""
    strengths = dict.fromkeys(SPLIT.split(contents)[1::2], 0.0)
    for explanation in explanations:
        relative = {term.term: term.contribution / explanation.terms[0].contribution for term in explanation.terms}
        for word in strengths if relative else ():
            of_word = (relative.get(term, 0.0) for term in terms_of(explanation.system, word))
            strengths[word] = max(strengths[word], *of_word, 0.0)
    return strengths


def marked(text: str, strengths: Mapping[str, float]) -> Marked:
    """A text in pieces, words and what is between them."""
    return [(piece, strengths.get(piece, 0.0)) for piece in SPLIT.split(text)]


def snippet(text: str, strengths: Mapping[str, float], width: int = WIDTH) -> Marked:
    """The `width` characters of a text, or fewer, whose words together have the greatest strength, each counted once.

    What is left out is `…`. A word of more than `width` characters, and what is before the first word or after the last
    one, up to 64 characters each, are not cut.
    """
    pieces = SPLIT.split(GAP.sub(" … ", " ".join(text.split())))  # words are at odd places
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    best, place = -1.0, (0, 0)
    inside: Counter[str] = Counter()
    strength, start = 0.0, 1
    for end in range(1, len(pieces), 2):
        inside[pieces[end]] += 1
        strength += strengths.get(pieces[end], 0.0) * (inside[pieces[end]] == 1)
        while ends[end + 1] - ends[start] > width and start < end:
            inside[pieces[start]] -= 1
            strength -= strengths.get(pieces[start], 0.0) * (inside[pieces[start]] == 0)
            start += 2
        if strength > best + 1e-9 or (start == place[0] and strength > best - 1e-9):
            best, place = strength, (start, end)
    first, last = place
    shown: Marked = [(piece, strengths.get(piece, 0.0)) for piece in pieces[first and first - 1 : last + 2]]
    if first > 1:
        shown[0] = ("… ", 0.0)
    if last + 2 < len(pieces):
        shown[-1] = (" …", 0.0)
    return shown
