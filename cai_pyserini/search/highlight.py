"""Mark the words of a text that make up its score, and choose a snippet with most of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import regex

from cai_pyserini.search.explanation import Explanation

# A word has at most 64 characters: text without spaces is split. In Japanese, hiragana end a word: mostly particles.
SPLIT = regex.compile(r"([^\W\p{Hiragana}]{1,64}\p{Hiragana}{0,64}|\p{Hiragana}{1,64})")
GAP = regex.compile(r"\W{64,}")  # is left out of a snippet
WIDTH = 240  # the most characters of a snippet

TermsOf = Callable[[str, str], Sequence[str]]  # system and word -> the terms that the word is to the system
Marked = list[tuple[str, float]]  # pieces of a text, each with a strength from 0 to 1


def word_strengths(contents: str, explanations: Iterable[Explanation], terms_of: TermsOf) -> dict[str, float]:
    """The strength of each word of a text, from 0 to 1: the contribution of its best term, relative to the largest one
    of the explanation; the maximum over explanations."""
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
    """The part of a text, of at most `width` characters, whose distinct words have the greatest total strength.

    `…` marks what is left out. A longer word is not cut, nor are up to 64 characters before and after these words.
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
