"""Word counts, compared with Anserini's text index."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.collections.spans import SPANS_PER_TEXT, random_span, words_of
from cai_pyserini.core import artifact
from cai_pyserini.core.config import Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import words as stage
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.indexes.words import count_words
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import corpus_of, json_lines, stage_command
from tests.indexes.stock import reader

main = stage_command("words")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]

ODD = {
    "empty": " \t",
    "stopped": "The and of it",
    "punctuation": "— … | \\ \" '",
    "long": "x" * 300 + " pneumono-ultra-microscopic",
    "unicode": "Öl naïve Ⅷ ½ 血圧 한국어 🧬 👩‍🔬 e\u0301tude soft\u00adhyphen ﬁbre İstanbul STRASSE straße",
    "lines": "one\u2028two\x85three\x1cfour\x0bfive\nsix\u00a0seven",
    "marks": "O'Neill's don't 3.14 1,000 a_b a.b.c U.S.A. bm25:cancer x@y.org http://z.org/?q=1",
    "stems": "Diets dieting dietary caresses ponies agreed running relational",
}


@pytest.fixture
def odd(tiny: Path, tmp_path: Path) -> Collection:
    """The tiny collection and some odd documents."""
    folder = tmp_path / "odd"
    folder.mkdir()
    records = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in ODD.items()]
    (folder / "corpus.jsonl").write_text((tiny / "corpus.jsonl").read_text() + "".join(records))
    (folder / "queries.jsonl").write_text("")
    return BeirFolder(folder, "odd")


def counts(folder: Path) -> dict[str, dict[str, int]]:
    """Document -> word -> count."""
    words = (folder / "words.txt").read_text().splitlines()
    return {
        id: {words[column]: int(row[column]) for column in row.nonzero()[0]}
        for shard in Vectors(folder, "words")
        for id, row in zip(shard.ids, shard.vectors.toarray(), strict=False)
    }


def test_counts_equal_anserinis_index(odd: Collection, tmp_path: Path) -> None:
    found = counts(count_words(odd, tmp_path / "words"))
    index = reader(index_bm25(odd, tmp_path / "index", threads=1))
    assert list(found) == [document.id for document in odd.documents()]
    assert [id for id, words in found.items() if not words] == ["empty", "stopped", "punctuation"]
    for id, words in found.items():
        if words:
            assert words == index.get_document_vector(id), id
    assert found["d9"]["insulin"] == 3 and len(found["lines"]) > 5
    stats = artifact.require(tmp_path / "words", "words").stats
    assert stats["vectors"] == 20 and stats["words"] == len({word for words in found.values() for word in words})
    assert stats["nonzeros"] == sum(map(len, found.values()))


def test_shards_do_not_change_the_counts(odd: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = count_words(odd, tmp_path / "whole")
    monkeypatch.setattr(stage, "SHARD", 6)
    cut = count_words(odd, tmp_path / "cut")
    assert (Vectors(whole, "words").shards, Vectors(cut, "words").shards) == (1, 4)
    widths = [shard.vectors.shape[1] for shard in Vectors(cut, "words")]
    assert widths == sorted(set(widths))  # a shard has columns for the words so far
    assert counts(cut) == counts(whole)
    assert (cut / "spans.jsonl").read_text() == (whole / "spans.jsonl").read_text()


def test_spans_are_random_parts_of_documents(odd: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [" ".join(document.contents.split()) for document in odd.documents()]
    long_enough = [text for text in documents if len(text.split()) >= 3]
    spans = json_lines(count_words(odd, tmp_path / "words") / "spans.jsonl")
    assert len(spans) == len(long_enough)
    for span, text in zip(spans, long_enough, strict=True):
        assert f" {span['text']} " in f" {text} " and len(span["text"].split()) <= len(text.split()) / 3
        assert span["words"] == Counter(Analyzer()(span["text"]))
    contexts = json_lines(tmp_path / "words" / "contexts.jsonl")
    assert len({context["text"] for context in contexts}) > len(spans)  # several per document
    assert all(any(f" {context['text']} " in f" {text} " for text in long_enough) for context in contexts)
    monkeypatch.setattr(stage, "SPANS", 5)
    few = json_lines(count_words(odd, tmp_path / "few") / "spans.jsonl")
    assert len(few) == 5 and few != spans[:5]  # also from later documents


def test_a_document_that_changes_changes_only_its_contexts(broken: Path, tmp_path: Path) -> None:
    def contexts() -> list[str]:
        return [
            line["text"]
            for line in json_lines(count_words(BeirFolder(broken, "broken"), tmp_path / "words") / "contexts.jsonl")
        ]

    before, records = contexts(), (broken / "corpus.jsonl").read_text().splitlines(keepends=True)
    changed, text = json.loads(records[3]), " ".join(f"{number}x" for number in range(40))
    records[3] = json.dumps(changed | {"title": "", "text": text}) + "\n"
    (broken / "corpus.jsonl").write_text("".join(records[::-1]))
    after = contexts()
    new = [span for span in after if span in text]
    old = [span for span in before if span in f"{changed['title']} {changed['text']}"]
    assert len(new) == len(old) == SPANS_PER_TEXT
    assert [span for span in after if span not in new] == [span for span in before if span not in old]


def test_the_lexicon_has_frequent_words_in_their_written_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["Kidneys and THE kidney's stones", "kidneys, stones in 1999", "a kidney ate kidneys: 1999"]
    collection = corpus_of(tmp_path, {f"d{number}": t for number, t in enumerate([*texts, "öl stone Öl", "öl"])})
    lexicon = json_lines(count_words(collection, tmp_path / "words") / "lexicon.jsonl")
    found = [(line["word"], line["form"]) for line in lexicon]
    assert found == [("kidnei", "kidneys"), ("stone", "stones"), ("öl", "öl")]
    monkeypatch.setattr(stage, "LEXICON", 1)
    assert len(json_lines(count_words(collection, tmp_path / "one") / "lexicon.jsonl")) == 1


LEXICONS = {  # two texts, and words of both with their forms
    "ja": (["花粉を入れる2回 DNA", "花粉が入れたら DNA"], {"花粉": "花粉", "入れる": "入れる", "dna": "dna"}),
    "zh": (["高血压 2型 DNA", "高血压 2型 dna"], {"高血": "高血", "血压": "血压", "型": "型", "dna": "dna"}),
    "ko": (
        ["웨이블 데이터베이스를", "웨이블 데이터베이스는"],
        {"데이터": "데이터", "베이스": "베이스", "웨이": "웨이", "블": "블"},
    ),
    "hi": (["किताबों में शब्द", "किताबों के शब्द"], {"किताब": "किताबों", "शबद": "शब्द"}),
    "ar": (["الكتاب الجديد", "الكتاب القديم"], {"كتاب": "الكتاب"}),
    "tr": (["evleri 2", "evleri ve 2"], {"ev": "evleri"}),
}


@pytest.mark.parametrize("language", LEXICONS)
def test_the_lexicon_of_each_script_has_forms_that_its_analyzer_knows(language: Language, tmp_path: Path) -> None:
    """Vowel signs do not cut forms; no form is a clause, where a script has no spaces, or a number; and no word has a
    space, as one of Lucene's Korean dictionary has, which no impact index would hold."""
    texts, expected = LEXICONS[language]
    collection = corpus_of(tmp_path / "texts", {f"d{number}": text for number, text in enumerate(texts)})
    collection.language = language
    lexicon = json_lines(count_words(collection, tmp_path / "words") / "lexicon.jsonl")
    assert {line["word"]: line["form"] for line in lexicon} == expected


def test_spans_in_scripts_without_spaces_have_as_many_characters_as_others_have_words(tmp_path: Path) -> None:
    """Also where the collection's language has spaces: a whole document would otherwise be one word."""
    thai, mixed = "ผู้ป่วยมีอาการปวดหัวและมีไข้สูง" * 3, "BERTと日本語の文書を検索するモデル " * 3
    draw = random.Random(1)
    for text in (thai, mixed):
        found = [random_span(text, draw, "th") or "" for _ in range(50)]
        assert all(span in text and 5 <= len(words_of(span, "th")) <= 12 for span in found)
        assert max(map(len, found)) < 2 * 12 + 4  # with vowel signs, or the letters of BERT
    spaced = random_span("six words  of\nthree letters each", random.Random(1), "de")
    assert spaced in ("six words", "words of", "of three", "three letters", "letters each")


GLOSSARY = "de\tKrebs\tcancer\nde\tKrebszellen\tcancer cells\nes\tcáncer\tcancer\nja\t癌\tcancer\n"


def with_glossary(folder: Path, tmp_path: Path, text: str) -> Path:
    """A YAML file of a collection with a glossary beside it."""
    (tmp_path / "glossary.tsv").write_text(text, encoding="utf-8")
    config = tmp_path / "collection.yaml"
    config.write_text(f"source: {folder.resolve()}\nglossary: glossary.tsv\n", encoding="utf-8")
    return config


def test_queries_in_the_languages_of_a_glossary_find_documents(tmp_path: Path) -> None:
    """By words that no document has, in languages that queries are analysed in."""
    texts = {"a": "cells of lung cancer", "b": "lung function in athletes", "c": "the cancer of crabs"}
    corpus_of(tmp_path / "documents", texts)
    config = with_glossary(tmp_path / "documents", tmp_path, GLOSSARY)
    assert main(["--collection", str(config), "--output", str(tmp_path / "words")]) in (None, 0)
    names = (tmp_path / "words" / "words.txt").read_text(encoding="utf-8").split()
    stats = artifact.require(tmp_path / "words", "words").stats
    assert stats["query_language"] == "de+en+es+ja" and stats["words"] < len(names) and "癌" in names[stats["words"] :]
    weights = {
        id: {names[column] for column in row.nonzero()[0]}
        for shard in Bm25(tmp_path / "words").shards()
        for id, row in zip(shard.ids, shard.vectors.toarray(), strict=True)
    }
    for language, text in (("de", "Krebs"), ("es", "cáncer"), ("ja", "癌")):
        (word,) = Analyzer(language)(text)
        assert [id for id, words in weights.items() if word in words] == ["a", "c"], text
    assert Bm25(tmp_path / "words").language == "de+en+es+ja"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("de\tKrebs\tcancer\nde Krebs cancer\n", "glossary.tsv:2: should be a language, a text and its translation"),
        ("de\tKrebs\t \n", "glossary.tsv:1: should be a language, a text and its translation"),
        ("en\tcancer\tcancer\n", "glossary.tsv:1: the language of the text is 'en'"),
        ("ger\tKrebs\tcancer\n", "glossary.tsv:1: the language of the text is 'ger'"),
        ("\n", "glossary.tsv is empty"),
    ],
)
def test_broken_glossaries_name_the_line(tiny: Path, tmp_path: Path, text: str, message: str) -> None:
    config = with_glossary(tiny, tmp_path, text)
    with pytest.raises(CaiError, match=re.escape(message)):
        count_words(load_collection(str(config)), tmp_path / "words")
    assert not (tmp_path / "words").exists()
