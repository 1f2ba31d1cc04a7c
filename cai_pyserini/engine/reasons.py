"""Why a document was found, in words: which words of the query it has, and by which other words it is related.

word     a word of the query, in the document
near     a word of the query that only similar documents have, see docs/design/words-near-documents.md
related  a word that SPLADE adds to the query, the document, or both
part     a piece of a word of the query, which is not in the document; or that word, if the document has its n-grams
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import regex

from cai_pyserini.core.config import GRAM
from cai_pyserini.core.text import JOINED
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.highlight import (
    WIDTH,
    WORDS,
    beginnings,
    best_snippet,
    lower,
    occurrences,
    parts,
    text_of,
    words_that_may_match,
)
from cai_pyserini.engine.retriever import Retriever

Origin = Literal["word", "near", "related", "part"]
Reasons = dict[Origin, dict[str, float]]  # origin -> word -> its contributions
Stems = Callable[[str], Sequence[str]]  # a text -> its analyzed words
Marks = list[tuple[str, Origin | None]]  # pieces of a text: words of the query, related ones, and the rest
ENTRY = regex.compile(r"\w{2,}")  # a term of the vocabulary that begins a word
NOT_LETTERS = regex.compile(r"[\W_]+")
TELLING = 3  # letters of a word or a piece of one; shorter ones are in documents about anything


def words_of(text: str) -> list[str]:
    """The distinct words of a text, in their order."""
    return list(dict.fromkeys(WORDS.split(text)[1::2]))


def words_with_stems(text: str, stems: Stems) -> dict[str, list[str]]:
    """The words of a text with their stems; where scripts join words, those that the analyzer finds in them."""
    found: dict[str, list[str]] = {}
    for word in words_of(text):
        others = []
        for stem in stems(word):
            start = lower(word).find(stem) if JOINED.search(word) else -1
            if start < 0:
                others.append(stem)
            else:
                found[word[start : start + len(stem)]] = [stem]
        if others or word not in found:
            found.setdefault(word, others)
    return found


class Asked:
    """A query whose words are looked for in documents, by the retrievers of a system; `stems` analyzes texts."""

    def __init__(self, query: str, retrievers: Mapping[str, Retriever], stems: Stems):
        self._retrievers, self._stems = retrievers, stems
        self._words = {  # with their stems, and those of their variants
            word: [*of_word, *(variant for name in retrievers for variant in self._variants(name, word))]
            for word, of_word in words_with_stems(query, stems).items()
        }
        self._own = {stem for found in self._words.values() for stem in found}

    def _variants(self, system: str, word: str) -> list[str]:
        """Stems that differ from those of a word by accents alone."""
        searcher = self._retrievers[system].searcher
        return [variant for stem in self._stems(word) for variant in searcher.variants_of(stem)]

    def _terms_of(self, system: str, word: str) -> list[str]:
        """A system's terms for a word of the query."""
        retriever = self._retrievers[system]
        prefix = retriever.searcher.word_prefix or ""
        return [*retriever.terms_of(word), *(prefix + variant for variant in self._variants(system, word))]

    def _is_word(self, system: str, term: str) -> bool:
        """Whether a term of a system is a word of BM25."""
        prefix = self._retrievers[system].searcher.word_prefix
        return prefix is not None and term.startswith(prefix)

    def reasons(self, explanations: Iterable[Explanation], contents: str) -> Reasons:
        """The words that the terms of a score stand for, by origin; those that add most come first."""
        reasons: Reasons = {"word": {}, "near": {}, "related": {}, "part": {}}
        present = self._own.intersection(
            self._stems(words_that_may_match(contents, partial(query_beginnings, self._words)))
        )
        for explanation in explanations:
            origins = self._origins(explanation.system, present)
            for term in explanation.terms:
                origin, word = origins.get(term.term) or self._other(term.term, present)
                if origin != "related" or (ENTRY.fullmatch(word) and self._stems(word)):
                    reasons[origin][word] = reasons[origin].get(word, 0.0) + term.contribution
        for origin, words in reasons.items():
            reasons[origin] = dict(sorted(words.items(), key=lambda pair: -pair[1]))
        return reasons

    def _other(self, term: str, present: set[str]) -> tuple[Origin, str]:
        """The origin of a term that is not of the query, but can be another form of one of its words."""
        stems = present.intersection(self._stems(term))
        return next((("word", word) for word, of in self._words.items() if stems.intersection(of)), ("related", term))

    def _origins(self, system: str, present: set[str]) -> dict[str, tuple[Origin, str]]:
        """The origin of the terms of the query, and what to call them."""
        origins: dict[str, tuple[Origin, str]] = {}
        for word, stems in self._words.items():
            has_word, terms = not present.isdisjoint(stems), self._terms_of(system, word)
            pieces = [term for term in terms if not self._is_word(system, term)]
            for term in terms:
                if has_word:
                    origins[term] = "word", word
                elif self._is_word(system, term):
                    origins[term] = "near", word
                else:
                    name = word if term.startswith(GRAM) else term
                    origins.setdefault(term, ("related", word) if pieces == [term] else ("part", name))
        return origins

    def mark(self, text: str, related: Iterable[str] = ()) -> Marks:
        """Mark the words of the query in a text, and words that are related to it."""
        return mark(text, self._own, {stem for word in related for stem in self._stems(word)}, self._stems)

    def places(self, text: str) -> list[int]:
        """Where words of the query begin in a text, in characters. Only words that begin alike are analyzed."""
        starts = {start for found in occurrences(text, query_beginnings(self._words)).values() for start in found}
        words = {start: match[0] for start in starts if (match := WORDS.match(text, start))}
        own = {word for word, origin in self.mark(" ".join({*words.values()})) if origin}
        return sorted(start for start, word in words.items() if word in own)


def main_origin(reasons: Reasons) -> Origin | None:
    """The origin of the words that add most to a score; None if they are too short to tell anything, or there are none.
    In scripts that join words, none are too short."""
    sums: dict[Origin | None, float] = defaultdict(float)
    for origin, words in reasons.items():
        for word, value in words.items():
            letters = NOT_LETTERS.sub("", word)
            sums[origin if len(letters) >= TELLING or JOINED.match(letters) else None] += value
    return max(sums, key=sums.__getitem__, default=None)


def best_passage(text: str, query: str, stems: Stems, width: int = WIDTH) -> str:
    """The snippet of at most `width` characters with most words of a query."""
    own = {word: stems(word) for word in words_of(query)}
    stems_of_query = {stem for found in own.values() for stem in found}

    def strengths_of(part: str) -> dict[str, float]:
        return {word: 1.0 for word in words_of(part) if not stems_of_query.isdisjoint(stems(word))}

    pieces, _ = best_snippet(text, strengths_of, partial(query_beginnings, own), width)
    return text_of(pieces)


def query_beginnings(words: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Beginnings of the query's words, equally weighted."""
    return beginnings(
        {stem: 1.0 for stems in words.values() for stem in stems}, {word: 1.0 for word, stems in words.items() if stems}
    )


def mark(text: str, own: set[str], related: set[str], stems: Stems) -> Marks:
    """Split a text into its words, marked where they have a stem of one of two sets, and what is between them."""

    def marks_of(word: str) -> Marks:
        found = {*stems(word)} if own or related else set()
        kinds: list[tuple[Origin, set[str]]] = [("word", found & own), ("related", found & related)]
        for kind, terms in kinds:
            if terms:
                return [(part, kind if is_term else None) for part, is_term in parts(word, terms)]
        return [(word, None)]

    pieces = WORDS.split(text)
    of_words = {word: marks_of(word) for word in set(pieces[1::2])}
    marks: Marks = []
    for position, piece in enumerate(pieces):
        for part, kind in of_words[piece] if position % 2 else [(piece, None)]:
            if marks and marks[-1][1] == kind is None:
                marks[-1] = marks[-1][0] + part, None
            elif part:
                marks.append((part, kind))
    return marks
