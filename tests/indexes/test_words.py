"""Word counts, compared with Anserini's text index."""

import json
from collections import Counter
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.spans import SPANS_PER_TEXT
from cai_pyserini.core import artifact
from cai_pyserini.indexes import words as stage
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.indexes.words import count_words
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import DATA, corpus_of, json_lines, stage_command
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


def test_words_without_spaces_are_their_own_forms(tmp_path: Path) -> None:
    collection = BeirFolder(DATA / "ja", "ja")
    collection.language = "ja"
    forms = {line["word"]: line["form"] for line in json_lines(count_words(collection, tmp_path) / "lexicon.jsonl")}
    assert len(forms) > 50 and forms["花粉"] == "花粉" and forms["入れる"] == "入れる"
