"""A query finds the documents that spell its words otherwise: in any Unicode form, and with or without accents.

The words of each language are spelled in all forms, each the text of one document, and each is a query.
"""

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as beir
from cai_pyserini.core.config import Language
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.open import Run, open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.accents import plain_spellings
from cai_pyserini.indexes.analyzer import lucene_analyzer
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.runs.trec import read_run
from tests.conftest import corpus_of
from tests.indexes.stock import bm25

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]
SYSTEMS = {"bm25": "bm25", "joint": "joint-splade-idf", "joint-doc": "joint-splade-doc-idf"}  # and their runs
LIGATURES = {"ffi": "ﬃ", "ff": "ﬀ", "fi": "ﬁ", "fl": "ﬂ"}
WORDS: dict[Language, list[str]] = {  # English is also the analyzer of languages that Anserini lacks
    "en": [
        *("thermostat", "résumé", "Müller", "O'Brien", "affluent", "señor", "smørrebrød", "µm"),
        *("Đặng", "tiếng", "שָׁלוֹם", "הגשר", "צה״ל", "ёлка", "Ελλάδα", "ışık", "3.5", "COVID-19", "10\xa0000", "Łódź"),
        *("οδός", "H₂O"),
    ],
    "de": ["Größe", "Häuser", "Flussschifffahrt", "Müller"],
    "fa": ["کتاب", "مُحَمَّد", "می\u200cخواهم"],
    "fr": ["été", "l'œuvre", "garçon", "événement"],
    "ja": ["花粉", "ガス", "カフェ", "café"],
    "pl": ["Łódź", "książka"],
    "tr": ["ışık", "kış", "güneş", "İstanbul", "Türkiye'de"],
}


def forms(word: str) -> Iterator[str]:
    """Spellings that are the same after normalization."""
    yield word
    yield unicodedata.normalize("NFD", word)
    yield f"\u200f{word}\u200e"
    yield f"\ufeff\u2067{word}\u2069"
    middle = len(word) // 2
    if word.isalpha():
        for invisible in ("\xad", "\xad\n", "\u200b", "\u2060"):
            yield word[:middle] + invisible + word[middle:]
    for plain, ligature in LIGATURES.items():
        yield word.replace(plain, ligature)
    for apostrophe in "’ʼ＇‛":
        yield word.replace("'", apostrophe)
    if word.isascii():
        yield "".join(chr(ord(letter) + 0xFEE0) for letter in word)
    yield word.replace("\xa0", "\u202f").replace("-", "\u2011")


def spellings(word: str, language: Language) -> list[str]:
    """All forms of a word and of its plain spellings."""
    plain = plain_spellings(word.replace("İ", "I"), language)
    return list(dict.fromkeys(form for each in (word, *plain) for form in forms(each)))


@pytest.mark.parametrize("language", WORDS)
def test_a_query_in_any_form_finds_documents_in_any_form(language: Language, tmp_path: Path) -> None:
    documents = {
        f"{number}-{n}": text
        for number, word in enumerate(WORDS[language])
        for n, text in enumerate(spellings(word, language))
    }
    collection = corpus_of(tmp_path / "texts", documents)
    collection.language = language
    with open_index(index_bm25(collection, tmp_path / "index", 1)) as engine:
        require_found(engine, documents)
        for query in [*documents.values()][::3]:
            escaped = query.replace('"', r"\"")
            found = {hit.id for hit in engine.search(query, 999, filter=f'contents:"{escaped}"')}
            assert found >= {id for id, text in documents.items() if normalized(text) == normalized(query)}, query


def require_found(engine: Engine, documents: dict[str, str]) -> None:
    """Every text as a query finds the spellings of its word, whose number its id begins with, the same ones first."""
    rankings = engine.search([*documents.values()], len(documents))
    for (id, query), hits in zip(documents.items(), rankings, strict=True):
        scores, number = {hit.id: hit.score for hit in hits}, id.partition("-")[0]
        same = {other for other, text in documents.items() if normalized(text) == normalized(query)}
        others = {other for other in documents if other.startswith(f"{number}-")} - same
        missing = {documents[other] for other in (same | others) - scores.keys()}
        assert not {text for text in missing if not both_are_plain(query, text)}, (query, missing)
        assert max([scores[other] for other in others & scores.keys()], default=0) < min(scores[o] for o in same) + 1e-4


def both_are_plain(*words: str) -> bool:
    """Muller and Mueller both find Müller, but not each other."""
    return all(plain_spellings(word) == [word] for word in map(normalized, words))


FORMS = {
    f"{number}-{n}": text
    for number, word in enumerate(["café", "O'Brien", "first", "thermostat"])
    for n, text in enumerate(spellings(word, "en"))
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of SYSTEMS over FORMS, and texts without accents, with all of these as queries."""
    folder = tmp_path_factory.mktemp("spellings")
    texts = FORMS | {"fever": "fever and a cough", "cold": "a cold cough"}
    corpus_of(folder / "texts", texts, texts, test={id: {id: 1} for id in texts})
    (folder / "texts.yaml").write_text(f"source: {folder / 'texts'}\nremove_query: never\npassages: 0\n")
    beir([str(folder / "texts.yaml"), "--systems", *SYSTEMS, "--output", str(folder / "run")])
    with Run(folder / "run") as opened:
        yield opened


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_finds_them_in_runs_and_interactively(run: Run, system: str) -> None:
    require_found(run[system], FORMS)
    searched = run[system].rank(FORMS, 1000)
    trec = read_run(run.folder / "runs" / f"{SYSTEMS[system]}.trec")
    assert {(query, document) for query, document, _ in trec if query in FORMS} == set(
        zip(searched["query_id"], searched["doc_id"], strict=True)
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_explanations_marks_and_counts_have_the_variants(run: Run, system: str) -> None:
    engine, prefix = run[system], "" if system == "bm25" else "bm25:"
    accented = next(id for id, text in FORMS.items() if text == "café")
    explanation = engine.explain("cafe", accented)
    assert f"{prefix}café" in [term.term for term in explanation.terms]
    (hit,) = [hit for hit in engine.search("cafe", 99) if hit.id == accented]
    assert explanation.score == pytest.approx(hit.score, abs=1e-3)
    asked = engine.asked("cafe")
    assert asked.mark("a café") == [("a ", None), ("café", "word")]
    assert [*asked.reasons([explanation], "café")["word"]] == ["cafe"]
    (described,) = [found for found in engine.describe("cafe", 99) if found.hit.id == accented]
    assert dict(described.snippet)["café"] > 0
    count = sum(id.startswith("0-") for id in FORMS)
    assert engine.document_frequencies("cafe") == {"cafe": count}
    matches = engine.matches("cafe")
    assert matches is None or matches.documents in (count, engine.documents)  # all of an index with learned terms
    assert engine.suggestion("cafè") is None


def test_queries_without_variants_are_sent_as_pyserini_sends_them(run: Run) -> None:
    folder = run.folder / "indexes" / "bm25"
    ours, queries = open_searcher(folder), ["fever and cough", "cold", "thermostat"]
    generator = jvm.java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
    analyzer = lucene_analyzer("en")
    assert ours.with_variants(queries) == queries
    for query, hits in zip(queries, bm25(folder, queries), strict=True):
        assert ours.lucene_query(query).equals(generator.buildQuery("contents", analyzer, query))
        assert ours.search(query, 100) == [(id, pytest.approx(score, abs=1e-5)) for id, score in hits]
    joint = open_searcher(run.folder / "indexes" / "joint-splade-idf")
    assert joint.with_variants([{"bm25:cough": 3, "fever": 2}]) == [{"bm25:cough": 3, "fever": 2}]
    assert joint.with_variants([{"bm25:cafe": 30, "cafe": 2}]) == [{"bm25:cafe": 30, "cafe": 2, "bm25:café": 15}]
    assert joint.language == "en"
