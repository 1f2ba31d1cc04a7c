"""bm25-grams: BM25 of words and of their n-grams, in one index of impacts, without any model."""

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as beir
from cai_pyserini.core.config import GRAM, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.grams import grams, weighted_grams
from cai_pyserini.engine.open import Run
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.retrieve import word_queries
from cai_pyserini.plugin.index import ship_index
from cai_pyserini.vectors.bm25 import stored_lengths
from tests.conftest import corpus_of, stage_command
from tests.indexes import stock

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]
DOCUMENTS = {
    "key": "Den Haustürschlüssel hat der Nachbar.",
    "door": "Die Tür klemmt seit gestern.",
    "lock": "Der Schlosser wechselt das Sicherheitsschloss.",
    "house": "Die Häuser der Straße sind alt.",
    "mixed": "血圧 und Blutdruckmessung",
}
TITLE = "bm25-grams"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grams")
    corpus_of(folder / "corpus", DOCUMENTS)
    (folder / "german.yaml").write_text("source: corpus\nlanguage: de\n", encoding="utf-8")
    beir([str(folder / "german.yaml"), "--output", str(folder / "run"), "--systems", "bm25", TITLE])
    return folder / "run"


def test_compounds_are_found_marked_and_explained(run: Path) -> None:
    """The faults: a part of a compound finds nothing, or finds it without a word of why; a word is marked because it
    has a sequence of letters of the query, as many words have."""
    engines = Run(run)
    assert not engines.open("bm25").search("Schlüssel", 5)
    engine = engines.open(TITLE)
    assert engine.description == "BM25 (the words of the query and parts of them)"
    (found,) = engine.find(["Schlüssel"], 5)
    assert [hit.id for hit in found.hits] == ["key", "lock"]
    key, lock = found.describe(found.hits)
    assert [piece for piece, strength in key.snippet if strength] == ["Haustürschlüssel"]
    assert [piece for piece, strength in lock.snippet if strength] == []  # it only has _sch and schl
    (hit,) = engine.describe("Wer hat die Schlüssel?", 1)
    assert [piece for piece, strength in hit.snippet if strength] == ["Haustürschlüssel"]  # and no stop word
    asked = engine.asked("Schlüssel")
    assert asked.reasons(key.explanation.scored, DOCUMENTS["key"])["part"].keys() == {"Schlüssel"}


def test_scores_are_those_of_two_bm25(run: Path) -> None:
    """Recomputed from texts; impacts are rounded to 7 bits."""
    analyze, documents = Analyzer("de"), len(DOCUMENTS)
    query, expected = "Häuser und Schlüssel", dict.fromkeys(DOCUMENTS, 0.0)
    for split, weights in ((analyze, Counter(analyze(query))), (grams, weighted_grams(query))):
        counts = {id: Counter(split(text)) for id, text in DOCUMENTS.items()}
        average = sum(count.total() for count in counts.values()) / documents
        for term, weight in weights.items():
            having = [id for id, count in counts.items() if term in count]
            idf = math.log1p((documents - len(having) + 0.5) / (len(having) + 0.5))
            for id in having:
                length = float(stored_lengths([counts[id].total()])[0])
                saturation = 0.9 * (0.6 + 0.4 * length / average)
                expected[id] += weight * idf * counts[id][term] / (counts[id][term] + saturation)
    hits = Run(run).open(TITLE).search(query, 5)
    assert {hit.id: hit.score for hit in hits} == {
        id: pytest.approx(score, rel=0.03) for id, score in expected.items() if score
    }


def test_stock_pyserini_searches_it(run: Path) -> None:
    index = run / "indexes" / TITLE
    queries = word_queries(load_encoder(str(index)))
    assert queries
    (found,) = stock.search(index, queries.impacts("Schlüssel"))
    assert [id for id, _ in found] == ["key", "lock"]
    assert "schl" in {term.removeprefix(GRAM) for _, _, terms in stock.everything(index) for term in terms}


def test_it_needs_neither_torch_nor_an_encoder(run: Path) -> None:
    """The fault: an index of words alone loads, or even runs, a model that it keeps nothing of."""
    program = (
        "import sys; from pathlib import Path; from cai_pyserini.engine.open import open_systems;"
        f"[engine] = open_systems([Path('{run}')], ['{TITLE}']).values(); print(engine.search('Schlüssel', 1)[0].id);"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert output == "key\n"
    assert not [*(run / "vectors").glob("*")]


def test_it_is_shipped_without_a_model(run: Path, tmp_path: Path) -> None:
    """The faults: the archive is named after an encoder that the index has nothing of, or wants a copy of one."""
    entry = ship_index(run / "indexes" / TITLE, tmp_path / "shipped", with_encoder=True)
    assert entry.name == f"german.{TITLE}"
    assert "No model encodes queries" in (tmp_path / "shipped" / entry.readme).read_text(encoding="utf-8")


def test_the_code_that_encodes_is_not_part_of_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a new version of the stage encode refuses indexes that it had no part in."""
    monkeypatch.setattr("cai_pyserini.models.encoder.code", lambda *_: {"version": 99})
    assert Run(run).open(TITLE).search("Schlüssel", 1)


def test_stages_make_the_same(run: Path, tmp_path: Path) -> None:
    """As in docs/reference/cli: words, their n-grams, impacts."""
    collection = str(run.parent / "german.yaml")
    words, parts, impacts = (str(tmp_path / name) for name in ("words", "grams", "impacts"))
    stage_command("words")(["--collection", collection, "--output", words])
    stage_command("words")(["--collection", collection, "--grams", "--output", parts])
    impact = stage_command("impact")
    impact(["--words", words, "--grams", parts, "--output", impacts])
    own = run / "impacts" / TITLE
    assert Path(impacts, "00000.jsonl").read_bytes() == (own / "00000.jsonl").read_bytes()
    with pytest.raises(CaiError, match="neither --vectors nor --words"):
        impact(["--output", impacts])
    with pytest.raises(CaiError, match="--grams has no effect without --words"):
        impact(["--vectors", words, "--grams", parts, "--output", impacts])


def test_a_glossary_finds_documents_by_queries_in_another_language(tmp_path: Path) -> None:
    """The fault: translations that are in the counts do not reach the index, or queries are not split in their
    language. Own words and their ranking stay."""
    corpus_of(tmp_path / "corpus", DOCUMENTS)
    (tmp_path / "glossary.tsv").write_text(
        "en\tkeys\tHaustürschlüssel\nen\tthe keys\tder Schlüssel\n", encoding="utf-8"
    )
    (tmp_path / "german.yaml").write_text("source: corpus\nlanguage: de\nglossary: glossary.tsv\n", encoding="utf-8")
    beir([str(tmp_path / "german.yaml"), "--output", str(tmp_path / "run"), "--systems", TITLE])
    engine = Run(tmp_path / "run").open(TITLE)
    assert engine.search("Where are the keys that I lost?", 1)[0].id == "key"
    assert [hit.id for hit in engine.search("Schlüssel", 5)] == ["key", "lock"]
    index = tmp_path / "run" / "indexes" / TITLE
    queries = word_queries(load_encoder(str(index)))
    assert queries and stock.search(index, queries.impacts("the keys"))[0][0][0] == "key"
