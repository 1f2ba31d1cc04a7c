"""Collections in German, and in four languages: from the corpus to the page, to Pyserini, and to who gets an index."""

import json
import shutil
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fastapi.testclient import TestClient

from cai_pyserini.cli.analyse import main as analysis
from cai_pyserini.cli.run import main as beir
from cai_pyserini.core.config import BM25, LANGUAGES, WORD
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.open import Run, open_systems
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.analyzer import Analyzer, lucene_analyzer
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.retrieve import require_same_encoder
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.indexes.words import count_words
from cai_pyserini.plugin import registry
from cai_pyserini.plugin.index import ship_index
from cai_pyserini.service.app import create_app
from cai_pyserini.service.queue import Service
from cai_pyserini.vectors.bm25 import Bm25
from tests.conftest import DATA, corpus_of, json_lines
from tests.indexes.stock import bm25, reader
from tests.plugin.conftest import cache as cache

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]
SYSTEMS = ["bm25", "joint-doc"]


class Example(NamedTuple):
    """A query, the words of it, the best document, and what is marked there in the ranking by BM25."""

    query: str
    words: list[str]
    best: str
    marks: list[str]


EXAMPLES = {
    "de": Example("Impfungen gegen Grippe", ["impfung", "gripp"], "grippe", ["Grippe", "Impfung"]),
    "ja": Example("春の花粉でくしゃみ", ["春", "花粉", "くしゃみ"], "heuschnupfen", ["花粉", "春", "くしゃみ"]),
}
TEXTS = {  # other scripts, a word of two base forms, and two languages
    "zh": ["高血压的治疗方法很多", "治疗糖尿病"],
    "ru": ["Дома стоят на улицах", "дом на улице"],
    "sw": ["Nyumba za Mji", "nyumba za mji"],
    "ru+zh": ["高血压的治疗方法很多", "Дома стоят на улицах"],
}


@pytest.fixture(scope="module", params=["de", "ja"])
def language(request: pytest.FixtureRequest) -> str:
    return request.param


LANGUAGES_OF = {"de": "de", "ja": "ar+de+en+ja"}  # of the collection
OTHERS = {
    "ar": "تبدأ الأنفلونزا فجأة بحمى شديدة وسعال، ويحمي التطعيم في الخريف معظم الناس من المرض.",
    "en": "Salmon die soon after spawning in the rivers where they were born.",
}


@pytest.fixture(scope="module")
def collection(language: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of documents in German, or in Japanese among those in other languages."""
    if language == "de":
        return DATA / "de"  # whose documents tell the language
    folder = tmp_path_factory.mktemp("languages") / "mixed"
    shutil.copytree(DATA / "ja", folder)
    german = [document | {"_id": f"de-{document['_id']}"} for document in json_lines(DATA / "de" / "corpus.jsonl")]
    others = [{"_id": id, "text": text} for id, text in OTHERS.items()]
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in (*german, *others))
    (path := folder.with_suffix(".yaml")).write_text("source: mixed\nlanguage: [ja, de, en, ar]\n")
    return path


@pytest.fixture(scope="module")
def run(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the collection, made by one command."""
    folder = tmp_path_factory.mktemp("run") / "run"
    beir([str(collection), "--output", str(folder), "--systems", *SYSTEMS])
    return folder


@pytest.mark.parametrize("language", ["ja"], indirect=True)
@pytest.mark.parametrize("system", ["bm25", "joint-splade-doc-idf"])
def test_documents_and_queries_are_in_any_of_the_languages(run: Path, language: str, system: str) -> None:
    """The faults: documents that one analyzer splits, whatever their language; queries that are split in another
    language than documents, or in all, so that the article of German finds what dies in English."""
    with Run(run, "cpu").open(system) as engine:
        found = {
            "de-grippe": ("Impfungen gegen Grippe", "contents:Impfungen"),
            "heuschnupfen": ("春の花粉でくしゃみ", 'contents:"花粉"'),
            "ar": ("التطعيم ضد الأنفلونزا", "contents:بالتطعيم"),
            "en": ("Where do salmons die?", "contents:salmons"),
        }
        for id, (query, condition) in found.items():
            assert engine.search(query, 1)[0].id == id
            assert id in {hit.id for hit in engine.search(query, 60, filter=condition)}
        assert "en" not in {hit.id for hit in engine.search("Was hilft, wenn die Zähne schmerzen?", 200)}
        assert engine.suggestion("Impfungen gegen Gripe") == "Impfungen gegen grippe"
        asked = engine.asked("Impfungen gegen die Grippe")
        marked = [
            word for word, origin in asked.mark("Die Grippe: eine Impfung schützt, die Impfungen schützten.") if origin
        ]
        assert marked == ["Grippe", "Impfung", "Impfungen"]
        document = engine.document("de-grippe")
        assert document and document.language == "de"
    if system == "bm25":
        for each, id in (("de", "de-grippe"), ("ja", "heuschnupfen")):
            (hits,) = bm25(run / "indexes" / "bm25", [EXAMPLES[each].query], language=each)
            assert hits[0][0] == id


@pytest.mark.parametrize("code", TEXTS)
def test_words_and_weights_in_other_scripts_are_lucenes(code: str, tmp_path: Path) -> None:
    collection = corpus_of(tmp_path / "texts", {f"d{number}": text for number, text in enumerate(TEXTS[code])})
    collection.language = code
    index, words = index_bm25(collection, tmp_path / "index", 1), Bm25(count_words(collection, tmp_path / "words"))
    assert words.language == code
    searcher, (shard,) = open_searcher(index), words.shards()
    for row, id in enumerate(shard.ids):
        found = {words.words[column]: shard.vectors[row, column] for column in shard.vectors[row].indices}
        assert found.keys() == reader(index).get_document_vector(id).keys()
        assert found == {word: pytest.approx(searcher.bm25_weight(id, word, BM25), abs=1e-5) for word in found}
    (expected,) = bm25(index, TEXTS[code][1:], language=code[:2])
    assert searcher.search(TEXTS[code][1], 9) == [(id, pytest.approx(score, abs=1e-5)) for id, score in expected]


SEPARATORS = [*map(chr, (*range(0x21), 0x7F, 0x85, 0xA0, *range(0x2000, 0x2010), 0x2028, 0x202F, 0x3000, 0xFEFF))]


def test_words_are_whole_in_an_impact_index_whatever_is_between_them(tmp_path: Path) -> None:
    """No-break spaces are part of words to some analyzers of Lucene, U+202F to most."""
    text = " ".join(f"{word}{separator}{word}" for separator in SEPARATORS for word in ("ab", "नम", "血圧", "12"))
    by_anserini = jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze
    as_json = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")().writeValueAsString
    vectors = {}
    for language in set(LANGUAGES) - {"th"}:  # which needs another Java
        words = Analyzer(language)(text)
        expected = json.loads(as_json(by_anserini(lucene_analyzer(language), text)))
        assert words == [part for word in expected for part in word.split("\x01") if part]
        vectors[language] = dict(zip((WORD + word for word in dict.fromkeys(words)), count(1), strict=False))
    lines = [json.dumps({"id": id, "contents": "", "vector": vector}) + "\n" for id, vector in vectors.items()]
    (tmp_path / "vectors.jsonl").write_text("".join(lines))
    searcher = open_searcher(index_impacts(tmp_path, tmp_path / "index"))
    assert "bm25:ab\u202fab" in vectors["en"] and "bm25:ab\xa0ab" in vectors["sw"]
    assert {id: searcher.impacts([id], vector)[id] for id, vector in vectors.items()} == vectors


def test_queries_of_a_joint_index_have_its_words(run: Path, language: str) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index, (query, words, best, _) = run / "indexes" / "joint-splade-idf", EXAMPLES[language]
    encoder = CaiQueryEncoder(str(index), query="bow")
    assert [term for term in encoder.encode(query) if term.startswith("bm25:")] == [f"bm25:{word}" for word in words]
    hits = LuceneImpactSearcher(str(index), encoder).search(query, 60)
    ranking = [row.split()[2] for row in (run / "runs" / "joint-splade-doc-idf.trec").read_text().splitlines()]
    assert hits[0].docid == best and best in ranking
    joint = encoder.config.joint
    assert joint and joint.language == LANGUAGES_OF[language]
    english = encoder.config.replace(joint=joint.replace(language="en"))
    with pytest.raises(CaiError, match="weight the words of BM25 differently"):
        require_same_encoder(index, encoder._encoder, english)


def test_shipped_indexes_know_their_language(run: Path, language: str, cache: Path, tmp_path: Path) -> None:
    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    query, words, *_ = EXAMPLES[language]
    for name in ("bm25", "joint-splade-idf"):
        entry = ship_index(run / "indexes" / name, tmp_path / name)
        (added,) = registry.add(str(next((tmp_path / name).glob("*.*.json"))))
        folder = registry.fetch(added)
        if name == "bm25":
            assert open_searcher(folder).search(query, 9) == open_searcher(run / "indexes" / name).search(query, 9)
            assert (
                f"--index {entry.name} --language {LANGUAGES_OF[language][:2]} --topics"
                in (tmp_path / name / entry.readme).read_text()
            )
        else:
            assert f"bm25:{words[0]}" in CaiQueryEncoder(str(folder), query="bow").encode(query)


def test_the_page_marks_the_words(run: Path, language: str) -> None:
    """A fault: 花粉でくしゃみ is one word, said to be in documents that only have one of both."""
    query, words, best, marks = EXAMPLES[language]
    with TestClient(create_app(Service(lambda: open_systems([run], SYSTEMS)))) as client:
        page = client.get("/", params={"q": query, "a": "bm25", "b": "joint-doc", "hits": 1}).text
    assert page.count(f"&amp;id={best}&amp;") == 2  # both systems find it
    assert page.count(f'<h3 lang="{language}"') == page.count("<summary>your words <b>") == 2
    for mark in marks:
        assert f"<mark>{mark}</mark>" in page
    if language == "ja":
        assert all(f'<th scope="row">{word}</th>' in page for word in words)


def test_analyses_split_queries_as_the_index(run: Path, collection: Path, language: str, tmp_path: Path) -> None:
    analysis(["cost", str(run), "--output", str(tmp_path)])
    (costs,) = json.loads((tmp_path / "cost.json").read_text()).values()
    queries = [r["text"] for r in json_lines(DATA / language / "queries.jsonl")]
    (of_bm25,) = [cost for cost in costs if cost["system"] == "bm25"]
    analyze = Analyzer(LANGUAGES_OF[language])
    assert of_bm25["query_nonzeros"] == pytest.approx(np.mean([len({*analyze(q)}) for q in queries]))
    trec = run / "runs" / "bm25.trec"
    analysis(["rsj", "--collection", str(collection), "--trec", str(trec), "--output", str(tmp_path)])
    tokens = {line.split("\t")[1] for line in (tmp_path / "rsj.tsv").read_text().splitlines()[1:]}
    assert EXAMPLES[language].words[0] in tokens
