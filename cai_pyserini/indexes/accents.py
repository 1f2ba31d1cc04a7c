"""Words that differ by accents alone: café and cafe, Müller and Mueller, ışık and isik.

An index has the words of Anserini's analyzers, accents included, if the analyzer of the language keeps them. So a query
looks for the variants of its words that the index has. A variant counts at most half as much as the word itself: its
weight is halved, and reduced further if it is rarer. If no document has the word itself, its variants count in full.

In languages where an accent makes another letter, as in Spanish (año, ano), Swedish, Turkish or Vietnamese, people
often type the plain letter, so the rule is the same: a letter matches itself and its plain form. It never matches the
letter with another accent (má does not find mà), but for Romanian's comma, which older texts write as a cedilla (ș, ş).
Capitals have no final sigma, so it counts as a form of sigma.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from cai_pyserini.core.config import ENGLISH, Language, languages_in
from cai_pyserini.core.text import without_accents
from cai_pyserini.indexes.analyzer import Analyzer

HALF = 0.5  # scaled so, a frequent variant still scores less than one occurrence of the word itself
CEDILLAS = str.maketrans("șț", "şţ")
DIGRAPHS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
WITH_DIGRAPHS = {"da", "de", "en", "nl", "no", "sv"}  # in other languages, ü is not ue
# A character class of Lucene's regular expressions for what words with accents have; a few others have it too.
ACCENTED = (
    "[\u00df-\u02af\u02be\u02bf\u0300-\u036f\u0386-\u0390\u03aa-\u03b0\u03c2\u03ca-\u03ce\u0450\u0451\u045d"
    "\u0591-\u05c7\u05f3\u05f4\u0622-\u0626\u064b-\u065f\u0670\u1e00-\u1fff]"
)


def plain_spellings(word: str, language: Language = ENGLISH) -> list[str]:
    """The spellings of a word without accents, of which there are two if letters can also become digraphs (Müller:
    muller, mueller); in lower case, as the Polish analyzer keeps capitals of names."""
    word = word.lower()
    words = [word, word.translate(DIGRAPHS)] if WITH_DIGRAPHS.intersection(languages_in(language)) else [word]
    return [*dict.fromkeys(map(without_accents, words))]


def _may_be_same(first: str, second: str) -> bool:
    """Whether two words with a plain spelling in common differ by letters that one of them has without an accent."""
    first, second = (word.lower().translate(CEDILLAS) for word in (first, second))
    if len(first) != len(second) or any(plain_spellings(word) == [word] for word in (first, second)):
        return True
    letters = zip(first, second, strict=True)
    return all(a == b or a in plain_spellings(b) or b in plain_spellings(a) for a, b in letters)


class Variants:
    """The variants of words in an index of `documents`, with `frequency` of a term.

    `terms` are those that match ACCENTED among the index's words, which begin with `prefix`. Where stemming depends on
    accents (résumé stays, resume becomes resum), the `stems` of plain spellings are spellings as well.
    """

    def __init__(
        self,
        terms: Iterable[str],
        prefix: str,
        language: Language,
        documents: int,
        frequency: Callable[[str], int],
        *,
        stems: bool = True,
    ):
        self._prefix, self._language, self._documents, self._frequency = prefix, language, documents, frequency
        self._stems = Analyzer(language).stems if stems else lambda words: [[word] for word in words]
        self._by_spelling: dict[str, list[str]] = defaultdict(list)
        for term, spellings in self._spellings([term.removeprefix(prefix) for term in terms]).items():
            for spelling in spellings:
                self._by_spelling[spelling].append(term)
        self.of = lru_cache(maxsize=1 << 16)(self._of)

    def added(self, query: Mapping[str, float]) -> dict[str, float]:
        """The variants of a query's words that are not among its terms, with weights; with a prefix, as impacts."""
        weights: dict[str, float] = {}
        for term, weight in query.items():
            is_word = term.startswith(self._prefix)
            for variant, factor in self.of(term.removeprefix(self._prefix)).items() if is_word else ():
                if (other := self._prefix + variant) not in query:
                    weights[other] = max(weights.get(other, 0.0), weight * factor)
        return {term: max(1, round(weight)) for term, weight in weights.items()} if self._prefix else weights

    def _of(self, word: str) -> Mapping[str, float]:
        """Variant -> its weight, relative to the word's own."""
        spellings = self._spellings([word]).get(word, {word})
        words = {*spellings, *(term for spelling in spellings for term in self._by_spelling.get(spelling, ()))} - {word}
        idf = {term: self._idf(term) for term in sorted(words) if _may_be_same(word, term)}
        own = self._idf(word) if idf else 0.0
        return {term: HALF * min(1, own / value) if own else 1.0 for term, value in idf.items() if value}

    def _idf(self, word: str) -> float:
        """ln(1 + documents / document frequency); 0 for a word that the index lacks."""
        frequency = self._frequency(self._prefix + word)
        return math.log1p(self._documents / frequency) if frequency else 0.0

    def _spellings(self, words: Sequence[str]) -> dict[str, set[str]]:
        """The plain spellings of those words that have accents, and the stems of these spellings."""
        plain = {word: of_word for word in words if (of_word := plain_spellings(word, self._language)) != [word]}
        spellings = [spelling for of_word in plain.values() for spelling in of_word]
        stems = dict(zip(spellings, self._stems(spellings), strict=True))
        return {word: {other for each in of_word for other in (each, *stems[each])} for word, of_word in plain.items()}
