"""The languages of collections, documents and queries, guessed or declared."""

from pathlib import Path

import pytest

from cai_pyserini.collections.contract import Collection, Record
from cai_pyserini.collections.languages import language_of, languages_of, likely_languages
from cai_pyserini.collections.passages import passages
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from tests.conftest import DATA, json_lines

TEXTS = {language: [line["text"] for line in json_lines(DATA / language / "corpus.jsonl")] for language in ("de", "ja")}
OTHERS = {
    "cs": "Hory na severu země jsou pokryty hlubokým sněhem a v zimě sem přijíždí mnoho lyžařů z celé Evropy.",
    "en": "Salmon return to the rivers where they were born, spawn there in autumn, and die soon afterwards.",
    "nb": "Fjellene i nord er dekket av snø om vinteren, og mange kommer hit for å gå på ski med barna sine.",
    "wuu": "侬好，今朝阿拉一道去外滩白相好伐？伊讲上海闲话蛮灵光个，伲才勿大会讲。",
}


def records(texts: dict[str, str], **metadata: str) -> list[Record]:
    return [Record("", id, "", text, metadata) for id, text in texts.items()]


def numbered(*texts: str) -> dict[str, str]:
    return {f"d{number}": text for number, text in enumerate(texts)}


@pytest.mark.parametrize(
    "texts, expected",
    [
        (TEXTS["de"], "de"),
        (TEXTS["de"] + TEXTS["ja"], "de+ja"),
        (TEXTS["de"] * 2 + [OTHERS["en"]], "de"),  # one of 121 documents
        (TEXTS["de"] + [OTHERS["en"]] * 2, "de+en"),
        ([OTHERS["nb"], OTHERS["wuu"]], "no+zh"),  # languages that share an analyzer
        ([OTHERS["cs"]] * 9, "cs"),
        (["", "12:45", "XQ-7"], "en"),
        (["頭蓋神経節形態異常", "手指尖足骨骨折", "網膜下液", "くしゃみがとまらない", "手足のしびれ"], "ja"),
        (["高血压的治疗方法很多", "治疗糖尿病", "网膜下液", "手指骨折"], "zh"),
    ],
)
def test_the_languages_of_a_collection_are_those_of_enough_documents(texts: list[str], expected: str) -> None:
    """The faults: a prefix stands for all of a collection that is sorted by language; Japanese names without kana are
    Chinese."""
    assert "+".join(sorted(languages_of(records(numbered(*texts))))) == expected


def test_a_declared_language_counts_before_a_guess() -> None:
    german, languages = numbered(TEXTS["de"][0]), ["de", "ja", "no"]
    assert [language_of(each, languages) for each in records(german)] == ["de"]
    for declared, expected in {"ja": "ja", "nb-NO": "no", "de_AT": "de", "fr": "de", "": "de"}.items():
        assert [language_of(each, languages) for each in records(german, language=declared)] == [expected]
    assert languages_of(records(german, language="fr")) == ["fr"]


@pytest.mark.parametrize("value", ["eng", "English", "python", "de; en"])
def test_metadata_that_are_no_known_language_are_guessed(value: str) -> None:
    """The fault: English documents with the language `eng`, or of code, were searched as those of another language."""
    assert languages_of(records({"d1": OTHERS["en"]}, language=value)) == ["en"]
    assert language_of(records({"d1": OTHERS["en"]}, language=value)[0], ["de", "en"]) == "en"


def test_a_short_query_can_be_in_several_languages() -> None:
    assert likely_languages("Was hilft gegen die Schmerzen im Knie?", ("de", "en", "ja")) == ["de"]
    assert likely_languages("花粉でくしゃみ", ("de", "en", "ja", "zh")) == ["ja"]
    assert {*likely_languages("Hypertension", ("de", "en", "ja"))} == {"de", "en"}


def collection_of(folder: Path, lines: list[dict], **settings: object) -> Collection:
    jsonl.write(folder / "corpus.jsonl", lines)
    return open_collection(IndexConfig(name="made", source=str(folder), **settings))


def test_documents_of_a_mixed_collection_know_their_language(tmp_path: Path) -> None:
    """The faults: passages are guessed one by one, or cut as in another language; an index of words stays as it is
    when a document turns out to be in another language."""
    lines = [{"_id": id, "text": text} for id, text in (("de", "\n\n".join(TEXTS["de"])), ("ja", TEXTS["ja"][0]))]
    mixed = collection_of(tmp_path, lines, language=["ja", "de"], passages=20)
    assert {(record.id.partition("#")[0], record.language) for record in mixed.records()} == {
        ("de", "de"),
        ("ja", "ja"),
    }
    for id, text in (("de", lines[0]["text"]), ("ja", lines[1]["text"])):
        expected = [text[start:end] for start, end, _ in passages(text, 20, 0, id)]
        assert [record.text for record in mixed.records() if record.id.startswith(f"{id}#")] == expected
    before = {language: fingerprint(tmp_path, lines, language) for language in ("de", "de+ja")}
    lines[1]["metadata"] = {"language": "de"}
    after = {language: fingerprint(tmp_path, lines, language) for language in ("de", "de+ja")}
    assert before["de"] == after["de"] and before["de+ja"] != after["de+ja"]
    lines[1] = {"_id": "ar", "text": "مرض السكري هو ارتفاع مزمن في مستوى السكر في الدم"}
    guessed = collection_of(tmp_path, lines, language="de+ja").records()  # a filter by language finds no other one
    assert [record.metadata for record in guessed] == [{"language": "de"}, {"language": "ar"}]


def fingerprint(folder: Path, lines: list[dict], language: str) -> str:
    return collection_of(folder, lines, language=language, metadata={"language": "string"}).fingerprint("documents")


@pytest.mark.parametrize("language", ["xx", "de+xx", ["de", "xx"], [], False, ["no", False]])
def test_other_languages_are_refused(language: object) -> None:
    with pytest.raises(CaiError, match=r"language: .* should be one of af, am, .*, zu, or several, such as de\+en"):
        IndexConfig(name="made", source="x").replace(language=language)
