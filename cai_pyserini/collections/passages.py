"""Cut texts into passages of whole sentences.

Lengths are in words. Languages without spaces have pieces of about a word instead: Japanese words that Kuromoji finds
(JaQuAD) and Chinese words have 2 characters, Thai words (translations of messages) between 4 and 5.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import regex

from cai_pyserini.core.config import ENGLISH, Language

WORD = r"\S+"
HAN = r"[!-~]+|[^\s!-~。！？｡]{1,2}[。！？｡」』）”’]*|\S"
WORDS = {"ja": HAN, "zh": HAN, "th": r"[!-~]+|[^\s!-~]{1,4}[\u0e31\u0e34-\u0e3a\u0e47-\u0e4e]*"}  # with its marks
SHORTEST = 4  # a passage of whole sentences has a fourth of the words, or one is cut

ABBREVIATIONS = r"Dr|Mrs?|Ms|Prof|St|Jr|Sr|Sra|Dra|Mme|Nr|No|Nos|vs|cf|al|ca|Figs?|Eqs?|Abb|Vol|Ch|Sec|pp|bzw|approx"
SENTENCE = regex.compile(
    rf"""
    (?: [.]+ (?<! \b (?: \p{{L}} | \d{{1,2}} | {ABBREVIATIONS} ) [.] ) | [!?…؟۔।॥።]+ )
        ["'”’»)\]]* (?= \s+ (?: ["'“‘„«‹(\[¿¡]*+ [^\p{{Ll}}\d\s] ) )  # no small letter or number follows
    | [。！？｡]++ (?: [」』）”’〉》】]++ (?! [とっなのに、，] ) | (?! [」』）”’〉》】] ) )  # not in a quoted sentence
    | \f
    | \n (?= [^\S\n]* \n )  # a paragraph ends
    | \n (?= [^\S\n]* (?: [-*•–—·▪◦‣] \s | \(?\w{{1,3}}[.)] \s | \#+ \s | \| ) )  # an item, a heading, a row
    | \n (?: (?= [^\n]*\t ) | (?<= \t [^\n]* \n ) )  # a row, with tabs
    """,
    regex.VERBOSE,
)
LINE = re.compile("\n")
THAI = regex.compile(rf"{SENTENCE.pattern} | \s", regex.VERBOSE)  # spaces are between sentences and their parts


class Passage(NamedTuple):
    """Where a passage begins and ends in the text of its document, in characters, and the page where it begins."""

    start: int
    end: int
    page: int


def passages(text: str, size: int, overlap: int, language: Language = ENGLISH, is_paged: bool = False) -> list[Passage]:
    """Cut a text into passages of at most `size` words, which are whole sentences, paragraphs, items of lists or rows
    where that leaves at least a fourth of these words; otherwise, a sentence is cut at a line break or a word.

    Consecutive passages share about `overlap` words, the last two perhaps more. Each begins with a word, later than the
    one before, and ends before another word or with the text, so that all characters from the first word on are in a
    passage. A text without words is one passage. If the text is paged, form feeds are between pages, which are numbered
    from 1.
    """
    words = [match.start() for match in re.finditer(WORDS.get(language, WORD), text)] or [0]
    places = [*words, len(text)]
    found, page, before = list[Passage](), 1, 0
    for first, last in _cut(text, words, size, overlap, language):
        start = words[first]
        page += text.count("\f", before, start) if is_paged else 0
        before = start
        found.append(Passage(start, places[last], page))
    return found


def _cut(text: str, words: Sequence[int], size: int, overlap: int, language: Language) -> list[tuple[int, int]]:
    """The first word of each passage, and the one after its last."""
    count, found, first, last = len(words), list[tuple[int, int]](), 0, 0
    if count <= size:
        return [(0, count)]
    sentences = _first_words(THAI if language == "th" else SENTENCE, text, words)
    lines = _first_words(LINE, text, words)
    while count - first > size:
        shortest, longest = max(first + size // SHORTEST, last + 1), first + size
        whole = _between(sentences, shortest, longest) or _between(lines, shortest, longest)
        last = whole[-1] if whole else longest
        found.append((first, last))
        following = sentences[bisect_right(sentences, last)]
        reached = following if following - last <= size else last + 1  # by the next passage
        earliest = max(first + 1, reached - size)
        wanted = max(earliest, last - overlap)
        near = _between(sentences, max(earliest, last - 2 * overlap), last)
        first = min(near or [wanted], key=lambda place, wanted=wanted: abs(place - wanted))  # type: ignore[misc]
    earliest = max(found[-1][0] + 1, count - size)
    whole = _between(sentences, earliest, min(first, count - size // SHORTEST))
    return [*found, (whole[0] if whole else earliest, count)]


def _first_words(boundary: Any, text: str, words: Sequence[int]) -> list[int]:
    """The words, by number, that are first after a boundary, and the number of words."""
    ends = np.fromiter((match.end() for match in boundary.finditer(text)), np.int64)
    return np.unique([*np.searchsorted(words, ends), len(words)]).tolist()


def _between(places: list[int], least: int, most: int) -> list[int]:
    return places[bisect_left(places, least) : bisect_right(places, most)]
