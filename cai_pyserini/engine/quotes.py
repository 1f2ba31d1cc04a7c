"""Whether a quote stands in a document, and where."""

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import regex

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import JOINED, normalized
from cai_pyserini.engine.highlight import LETTER, MOST_BEGINNINGS, WORDS, lower, occurrences, places
from cai_pyserini.engine.hits import page_at, without_title
from cai_pyserini.indexes.searcher import Stored

# White space, hyphens and dashes, quotation marks and apostrophes can differ, and so can case.
IGNORED = regex.compile(r"""[\s\p{Pd}\p{Pi}\p{Pf}"'`´′″„‚「」『』\u00ad]""")
IS_IGNORED = np.array([bool(IGNORED.match(chr(code))) for code in range(0x3100)] + [False])  # no later characters
LEAST_SIMILAR = 0.5  # of a place that is named although the quote does not stand there


@dataclass(frozen=True)
class Quote:
    """A quote's place in the text of a document, in characters, and the text there; `found` says that this is the
    quote, but for white space, hyphens, quotation marks and case.

    Otherwise, it is the most similar place, or None and no text if none is: `similarity` is twice the share of the
    words of both that match in order, from 0 to 1.
    """

    docid: str
    found: bool
    text: str
    start: int | None
    end: int | None
    page: int | None
    similarity: float


def find_quote(document: Stored, quote: str) -> Quote:
    """Where a quote stands in a document or passage. Raises CaiError for one without a letter or digit."""
    quote, text = normalized(quote).strip(" …"), without_title(document)
    if not any(map(str.isalnum, quote)):
        raise CaiError("the quote has no words")
    place, similarity = _literal(text, quote), 1.0
    if not (found := place is not None):
        place, similarity = _nearest(text, quote)
    if place is None:
        return Quote(document.id, False, "", None, None, None, similarity)
    start, end = place
    page = page_at(document, start)
    return Quote(document.id, found, text[start:end], document.start + start, document.start + end, page, similarity)


def _literal(text: str, quote: str) -> tuple[int, int] | None:
    """Where a quote begins and ends that is in a text except for IGNORED characters and case, in whole words."""
    sought, _ = _compared(quote)
    whole, places = _compared(text)
    found = whole.find(sought)
    while found >= 0:
        start, end = int(places[found]), int(places[found + len(sought) - 1]) + 1
        if not (_in_word(text, start) or _in_word(text, end)):
            return start, end
        found = whole.find(sought, found + 1)
    return None


def _compared(text: str) -> tuple[str, np.ndarray]:
    """The characters of a text that are compared, and their places (characters,)."""
    codes = np.frombuffer(lower(text).encode("utf-32-le"), np.uint32)
    places = np.flatnonzero(~IS_IGNORED[np.minimum(codes, len(IS_IGNORED) - 1)])
    return codes[places].tobytes().decode("utf-32-le"), places


def _in_word(text: str, place: int) -> bool:
    """Whether a place is inside a word; in scripts that join words, none is."""
    around = text[max(0, place - 1) : place + 1]
    return place > 0 and len(around) == 2 and all(map(LETTER.match, around)) and not JOINED.search(around)


def _nearest(text: str, quote: str) -> tuple[tuple[int, int] | None, float]:
    """Where a text is most similar to a quote, as many words, and the similarity."""
    sought = WORDS.split(lower(quote))[1::2]
    counts = {word: len(starts) for word, starts in occurrences(text, {*sought}).items()}
    rarest = sorted((word for word in counts if counts[word]), key=lambda word: (counts[word], word))
    best: tuple[tuple[int, int] | None, float] = None, LEAST_SIMILAR
    for begin, end in places(text, {word: 1 / counts[word] for word in rarest[:MOST_BEGINNINGS]}, len(quote)):
        words = [*WORDS.finditer(text, begin, end)]
        there = [lower(word[0]) for word in words]
        matcher = SequenceMatcher(None, sought, there, autojunk=False)
        run = matcher.find_longest_match()
        first = max(0, run.b - run.a)
        last = min(len(words), max(first, run.b - run.a + len(sought)))
        matcher.set_seq2(there[first:last])
        if (similarity := matcher.ratio()) >= best[1]:
            best = (words[first].start(), words[last - 1].end()), similarity
    return best if best[0] else (None, 0.0)
