"""The languages of documents and queries: those of metadata, or else those that py3langid guesses, offline.

A short query can be in any of several languages. HPO's names in four languages, words of one to four parts: the most
probable of the four is wrong for 12% of the English ones; for 0.3%, the true one is not among the likely ones.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from copy import copy
from functools import cache, lru_cache
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from cai_pyserini.collections.spans import Reservoir
from cai_pyserini.core.config import ENGLISH, LANGUAGES

if TYPE_CHECKING:
    from cai_pyserini.collections.contract import Record

LANGUAGE = "language"  # metadata
VARIANTS = {"nb": "no", "nn": "no", "wuu": "zh", "yue": "zh", "arz": "ar", "ary": "ar"}  # languages with one analyzer
BEGINNING = 1_000  # characters of a text, for guessing
LIKELY = 0.1  # likely languages have at least this share of the most probable one's probability
FIRST, SAMPLE, SEED = 100_000, 1_000, 42  # documents for the languages of a collection: a sample of the first ones
CERTAIN = 0.8  # probability of the language of a document that counts for the languages of a collection
MIN_SHARE = 0.02  # of these documents
UNLIKELY = 0.001  # probability of all languages of a collection, below which a document is in another
# In a Japanese collection, names without kana seem Chinese (677 of 732 of HPO's).
JAPANESE, CHINESE, NAME, MIN_JAPANESE = "ja", "zh", 30, 0.1  # characters; documents in Japanese for each such name
NOT_COUNTED = ("", "zxx", "la")  # uncertain; no language; Latin, which a quarter of the English names of diseases seems


def languages_of(documents: Iterable["Record"]) -> list[str]:
    """The languages of a collection, most frequent first: each that at least MIN_SHARE of the documents have, of those
    whose language is certain; English if there are none. Reads at most FIRST documents."""
    sample = Reservoir[tuple[str, str]](SAMPLE, Random(SEED))
    for document in islice(documents, FIRST):
        sample.add((declared(document), beginning(document)))
    found = Counter(language or _certain(text) for language, text in sample.items)
    names = sum(not language and len(text) <= NAME and _certain(text) == CHINESE for language, text in sample.items)
    if found[JAPANESE] > MIN_JAPANESE * names:
        found.update({JAPANESE: names, CHINESE: -names})
    for other in NOT_COUNTED:
        del found[other]
    return [each for each, count in found.most_common() if count >= MIN_SHARE * found.total()] or [ENGLISH]


def language_of(document: "Record", languages: Iterable[str]) -> str:
    """The language of a document, of these: the one that its metadata has, or else the most probable."""
    found = declared(document)
    return found if found in languages else next(iter(_probabilities(beginning(document), tuple(languages))))


def label_of(document: "Record", languages: Iterable[str]) -> str:
    """The language to show for a document: `language_of`, unless it is hardly in any of these."""
    found = _probabilities(beginning(document))
    is_likely = sum(found.get(each, 0.0) for each in languages) >= UNLIKELY
    return language_of(document, languages) if is_likely else next(iter(found))


def likely_languages(text: str, languages: Iterable[str]) -> list[str]:
    """The languages, of these, that a query may be in, the most probable first."""
    found = _probabilities(text[:BEGINNING], tuple(languages))
    return [language for language, value in found.items() if value >= LIKELY * max(found.values())]


def declared(document: "Record") -> str:
    """The language that the metadata of a document have, without its region (de-AT); empty if they have none, or what
    is no known code of two letters, such as eng, English, or a programming language."""
    code = str(document.metadata.get(LANGUAGE) or "").lower().replace("_", "-").partition("-")[0]
    code = VARIANTS.get(code, code)
    return code if code in LANGUAGES or code in NOT_COUNTED or code in _identifier().labels else ""


def beginning(document: "Record") -> str:
    return f"{document.title} {document.text[:BEGINNING]}"[:BEGINNING]


def _certain(text: str) -> str:
    language, value = next(iter(_probabilities(text).items()))
    return language if value >= CERTAIN else ""


@lru_cache(maxsize=1 << 10)
def _probabilities(text: str, languages: tuple[str, ...] = ()) -> dict[str, float]:
    """The probabilities of these languages, by default all that py3langid knows, the highest first."""
    found: dict[str, float] = defaultdict(float)
    for code, value in _identifier(languages).rank(text):
        found[VARIANTS.get(code, code)] += value
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


@cache
def _identifier(languages: tuple[str, ...] = ()) -> Any:
    if not languages:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # rarely needed

        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)  # takes half a second
    identifier = copy(_identifier())
    variants = [code for code, language in VARIANTS.items() if language in languages and code in identifier.labels]
    identifier.set_languages([*languages, *variants])
    return identifier
