"""Excerpts of documents within a budget of tokens, for a reader such as an assistant, who quotes from them.

The passages of an index are taken as they are; of longer texts, windows of whole sentences with the words that match.
What overlaps or follows directly in a document becomes one excerpt.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cai_pyserini.collections.passages import SENTENCE
from cai_pyserini.core.config import PASSAGE, document_of
from cai_pyserini.engine.found import Found
from cai_pyserini.engine.highlight import WORDS, Strengths, places
from cai_pyserini.engine.hits import Hit, page_at, without_title
from cai_pyserini.indexes.searcher import Stored

PASSAGES, DOCUMENTS = 100, 20  # that excerpts are taken from: passages, or documents without passages
WIDTH = 600  # characters of a window at most, unless a sentence is longer: about 100 words
LONG = 1.5 * WIDTH  # characters; shorter texts are taken whole
WINDOWS = 12  # of a long text
BYTES = 4  # of UTF-8 per token; tokenizers of language models need fewer tokens for most texts
NEIGHBOUR = 0.2  # share of the scores of the passages before and after that a passage gets
BEFORE = 80  # characters of the words before an excerpt
SHORTEST = 25  # tokens; less is not worth another excerpt

type Read = Callable[[Sequence[str]], dict[str, Stored]]  # what the indexes store, by ids in the indexes
type Window = tuple[int, int, float]  # where it begins and ends in a text, and the strength of its words


@dataclass(frozen=True)
class Excerpt:
    """A slice of a document's text, from `start` to `end` in characters, with the page where it begins and the last
    words before it: a heading, or a sentence or the end of one."""

    docid: str
    title: str
    before: str
    text: str
    start: int
    end: int
    page: int | None
    score: float

    @property
    def tokens(self) -> int:
        """The tokens of docid, title and texts, estimated as BYTES of UTF-8 each."""
        return math.ceil(sum(len(text.encode()) for text in (self.docid, self.title, self.before, self.text)) / BYTES)


class Piece(NamedTuple):
    """A part of a stored text, which begins at `offset` in it."""

    docid: str
    hit: Hit
    stored: Stored
    offset: int
    text: str
    score: float

    @property
    def start(self) -> int:
        """Where it begins in the document's text."""
        return self.stored.start + self.offset

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Answer:
    """Excerpts of what was found: documents or, with `passages`, passages, which are hits of their own."""

    def __init__(self, found: Found, read: Read, passages: bool):
        self._found, self._read, self._has_passages = found, read, passages
        self._stored = read([hit.stored for hit in found.hits])

    def excerpts(self, budget: int) -> list[Excerpt]:
        """The best excerpts, best first, with at most `budget` tokens in all."""
        chosen: dict[str, list[Excerpt]] = {}
        pieces: dict[str, list[Piece]] = {}
        left = budget
        for piece in sorted(self._pieces(), key=lambda piece: -piece.score):
            for part in self._fitting(piece, left):
                together = [*pieces.get(piece.docid, ()), part]
                excerpts = [*map(self._excerpt, _groups(together))]
                tokens = _tokens(excerpts) - _tokens(chosen.get(piece.docid, ()))
                if tokens <= left:
                    left, chosen[piece.docid], pieces[piece.docid] = left - tokens, excerpts, together
                    break
            if left < SHORTEST:
                break
        return sorted((each for of in chosen.values() for each in of), key=lambda excerpt: -excerpt.score)

    def _pieces(self) -> Iterator[Piece]:
        """The passages, or the windows of longer texts."""
        scores = {hit.stored: hit.score for hit in self._found.hits}
        for hit in self._found.hits:
            stored = self._stored.get(hit.stored)
            if stored is None or not (text := without_title(stored)).strip():
                continue
            docid, score = hit.id, hit.score
            if self._has_passages:
                docid = document_of(hit.id)
                score += NEIGHBOUR * sum(max(0.0, scores.get(_neighbour(hit.stored, step), 0.0)) for step in (-1, 1))
            windows = self._windows(hit, text) if len(text) > LONG else [(0, len(text), 0.5)]
            for start, end, strength in windows:
                yield Piece(docid, hit, stored, start, text[start:end], score + abs(score) * (strength - 0.5))

    def _windows(self, hit: Hit, text: str) -> Sequence[Window]:
        """The windows of a long text around the words that match; its beginning if none do."""
        strengths_of, beginnings = self._found.matching(hit)
        spans = places(text, beginnings(), WIDTH, WINDOWS)
        windows = {_window(text, start, end, strengths_of, WIDTH) for start, end in spans}
        return [each for each in windows if each[2]] or [_window(text, 0, 2 * WIDTH, strengths_of, WIDTH)]

    def _fitting(self, piece: Piece, left: int) -> Iterator[Piece]:
        """A piece and, for when it has more tokens than are left, its best sentences that may fit."""
        yield piece
        others = len((piece.stored.title + piece.docid).encode()) + BEFORE
        width = (BYTES * left - others) * len(piece.text) // max(1, len(piece.text.encode()))
        if width >= BYTES * SHORTEST:
            start, end, _ = _window(piece.text, 0, len(piece.text), self._found.matching(piece.hit)[0], width)
            yield piece._replace(offset=piece.offset + start, text=piece.text[start:end])

    def _excerpt(self, pieces: Sequence[Piece]) -> Excerpt:
        """Pieces of a document that overlap or touch, in their order, as one excerpt."""
        first, text = pieces[0], ""
        for piece in pieces:
            text += piece.text[max(0, first.start + len(text) - piece.start) :]
        shown, stored = text.strip(), first.stored
        offset = first.offset + len(text) - len(text.lstrip())
        start, score = stored.start + offset, max(piece.score for piece in pieces)
        before, page = self._before(first, offset), page_at(stored, offset)
        return Excerpt(first.docid, stored.title, before, shown, start, start + len(shown), page, score)

    def _before(self, piece: Piece, offset: int) -> str:
        """The last sentence or line before a place in a stored text, or its end."""
        stored = piece.stored
        if piece.offset == 0 and stored.start:
            if (previous := _neighbour(piece.hit.stored, -1)) not in self._stored:
                self._stored |= self._read([previous])
            stored, offset = self._stored[previous], stored.start - self._stored[previous].start
        before = without_title(stored)[max(0, offset - 4 * BEFORE) : offset].rstrip()
        ends = [0, *(match.end() for match in SENTENCE.finditer(before))]
        sentence = " ".join(before[ends[-1] :].split())
        return sentence if len(sentence) <= BEFORE else f"… {sentence[-BEFORE + 2 :].partition(' ')[2]}"


def _tokens(excerpts: Iterable[Excerpt]) -> int:
    return sum(excerpt.tokens for excerpt in excerpts)


def _neighbour(passage: str, step: int) -> str:
    """The id of a passage so many after another of its document."""
    docid = document_of(passage)
    return f"{docid}{PASSAGE}{int(passage[len(docid) + 1 :]) + step}"


def _groups(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces of a document, in its order, those together that overlap or touch."""
    groups: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if not groups or piece.start > max(each.end for each in groups[-1]):
            groups.append([])
        groups[-1].append(piece)
    return groups


def _window(text: str, start: int, end: int, strengths_of: Callable[[str], Strengths], width: int) -> Window:
    """The sentences within a part of a text whose distinct words are strongest, with those around them up to a width;
    of a longer sentence, a part."""
    borders = _borders(text, start, end, width)
    strengths = strengths_of(text[borders[0] : borders[-1]])
    words = [{word for word in WORDS.split(text[a:b])[1::2] if strengths.get(word)} for a, b in pairwise(borders)]
    best, first, last = -1.0, 0, 1
    for begin in range(len(words)):
        inside: set[str] = set()
        for stop in range(begin + 1, len(borders)):
            if borders[stop] - borders[begin] > width:
                break
            inside |= words[stop - 1]
            if (strength := sum(strengths[word] for word in inside)) > best + 1e-9:
                best, first, last = strength, begin, stop
    while last + 1 < len(borders) and borders[last + 1] - borders[first] <= width:
        last += 1
    while first and borders[last] - borders[first - 1] <= width:
        first -= 1
    return borders[first], borders[last], best


def _borders(text: str, start: int, end: int, width: int) -> list[int]:
    """Where the sentences begin that are within a part of a text, and where the last ends; longer ones than a width are
    split at lines or words."""
    end = min(end, len(text))
    whole = [*([0] if start == 0 else ()), *(start + match.end() for match in SENTENCE.finditer(text[start:end]))]
    whole += [len(text)] if end == len(text) else []
    if len(whole) < 2 or whole[-1] - whole[0] < width:  # long sentences: the whole part
        whole = [start, *(place for place in whole if start < place < end), end]
    borders = whole[:1]
    for border in whole[1:]:
        while border - borders[-1] > width:
            within = borders[-1] + 1, borders[-1] + width
            cut = max(text.rfind("\n", *within), text.rfind(" ", *within)) + 1
            borders.append(cut or within[1])
        borders.append(border)
    return borders
