"""Anserini's text analysis: tokenization, stopword removal and stemming for each language."""

import json
from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import Any, Self

import regex

from cai_pyserini.collections.languages import likely_languages
from cai_pyserini.core.config import ENGLISH, Language, languages_in
from cai_pyserini.core.text import UNSPACED_SCRIPTS
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.vectors.json_vectors import DELIMITER

UTILS = "io.anserini.analysis.AnalyzerUtils"
LONGEST_KEPT = 64  # characters of texts whose words are kept, as for marking each word of a long text
# A word as it is written, of letters and digits; in scripts without spaces between words, every character.
EXACT = regex.compile(r"[{0}]|[\p{L}\p{N}\p{M}--[{0}]]{1,64}".replace("{0}", UNSPACED_SCRIPTS), regex.V1)
UNANALYZED = ("ha", "so", "sw", "yo")  # languages whose texts are only split at white space


def lucene_analyzer(language: str) -> Any:
    """The analyzer that Anserini's IndexCollection uses for -language; for English, its default analyzer."""
    java = jvm.java_class
    if language == ENGLISH:
        return java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    if language in UNANALYZED:
        return java("org.apache.lucene.analysis.core.WhitespaceAnalyzer")()
    return java("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer(language)


def exact_words(text: str) -> list[str]:
    """The words of a text as they are, in lower case: neither stemmed nor stopped."""
    return EXACT.findall(text.lower())


def _words_in(encoded: str) -> list[str]:
    """Words from JSON, split at spaces, which some of the Korean dictionary's have, and an impact index cannot hold."""
    words = json.loads(encoded)
    return [part for word in words for part in filter(None, word.split(" "))] if " " in encoded else words


class Analyzer:
    """Text -> words, as in a BM25 index, except that DELIMITER, which an impact index cannot hold, is white space.

    Of several languages, a query has the words by each of its likely languages; a word of several counts once.
    A document has those of its own language: `analyzer.of(record.language)(contents)`. Starts the JVM. Thread-safe.
    """

    def __init__(self, language: Language = ENGLISH) -> None:
        self._languages = {each: _OneLanguage(each) for each in languages_in(language)}
        self._is_certain = len(self._languages) == 1

    def __call__(self, text: str) -> list[str]:
        first, *others = (analyze(text) for analyze in self.likely(text)._languages.values())
        return [*reduce(or_, map(Counter, others), Counter(first)).elements()] if others else first

    def many(self, texts: Sequence[str], threads: int = 1) -> list[list[str]]:
        """The words of each text. One call into Java takes a fraction of the time of many, but longer than one."""
        if len(self._languages) == 1:
            return next(iter(self._languages.values())).many(texts, threads)
        return [*map(self, texts)]

    def stems(self, words: Sequence[str]) -> list[list[str]]:
        """The stems of each word, by each of the languages in which it is a single word."""
        by_language = [analyze.many(words) if words else [] for analyze in self._languages.values()]
        return [
            [*dict.fromkeys(stem for stems in found if len(stems) == 1 for stem in stems)]
            for found in zip(*by_language, strict=True)
        ]

    def of(self, language: str) -> Self:
        """This analyzer of the language of a document, if that is one of several."""
        return self._only([language]) if language in self._languages else self

    @property
    def all(self) -> Self:
        """This analyzer of all languages, for single words."""
        return self._only([*self._languages])

    def likely(self, text: str) -> Self:
        """This analyzer of the likely languages of a query, also for its words one by one."""
        return self if self._is_certain else self._only(likely_languages(text, self._languages))

    def _only(self, languages: Sequence[str]) -> Self:
        chosen = copy(self)
        chosen._languages, chosen._is_certain = {each: self._languages[each] for each in languages}, True
        return chosen


class _OneLanguage:
    @jvm.using_java("analyzing")
    def __init__(self, language: str) -> None:
        self._analyzer = lucene_analyzer(language)
        self._analyze = jvm.java_class(UTILS).analyze
        self._json = jvm.java_class(batch.MAPPER)()
        self._words_of_short = lru_cache(maxsize=1 << 16)(self._words)

    def __call__(self, text: str) -> list[str]:
        return [*self._words_of_short(text)] if len(text) <= LONGEST_KEPT else self._words(text)

    @jvm.using_java("analyzing")
    def _words(self, text: str) -> list[str]:
        # One string from Java is faster than a call per word.
        words = self._analyze(self._analyzer, text.replace(DELIMITER, " "))
        return _words_in(self._json.writeValueAsString(words))

    @jvm.using_java("analyzing")
    def many(self, texts: Sequence[str], threads: int = 1) -> list[list[str]]:
        if len(texts) == 1:
            return [self(texts[0])]
        parts = batch.parts([(text.replace(DELIMITER, " "),) for text in texts])
        return [_words_in(words) for part in parts for words in self._batch(part, threads)]

    @cached_property
    def _batch(self) -> batch.Batch:
        analyze = batch.static(UTILS, "analyze", batch.LIST, "org.apache.lucene.analysis.Analyzer", batch.STRING)
        return batch.Batch(batch.bind(analyze, 0, self._analyzer), self._json)
