"""Explanations add up to the scores in the runs, and are shown without loss."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.analysis.__main__ import main
from cai_pyserini.analysis.explain import explain_query, text
from cai_pyserini.analysis.finished_run import FinishedRun
from cai_pyserini.analysis.page import page
from cai_pyserini.beir.__main__ import main as beir
from cai_pyserini.beir.systems import parse_system
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import read_run, scores_by_query
from cai_pyserini.search.explanation import Case, Explanation, Part, Term

SINGLE = ["bm25", "splade", "splade-doc", "splade-idf", "splade-doc-idf"]
HYBRIDS = ["hybrid-splade-idf", "hybrid-splade-idf-minmax", "hybrid-splade-doc-idf", "hybrid-splade-doc-idf-minmax"]
FUSIONS = ["hybrid-splade-idf-rrf", "hybrid-splade-idf-product"]
EXACT = ["hybrid-splade-idf-exact", "hybrid-splade-idf-minmax-exact"]
DENSE = ["dense", "hybrid-dense-minmax", "hybrid-splade-idf-dense-minmax", "hybrid-splade-idf-dense-minmax-exact"]
JOINT = ["joint-splade-idf", "joint-splade-doc-idf", "joint-splade-idf-smooth", "fused-joint-splade-idf-dense-minmax"]
ZSCORE = ["hybrid-splade-idf-zscore", "hybrid-splade-idf-dense-zscore", "hybrid-splade-idf-zscore-exact"]
ALL = [*SINGLE, *HYBRIDS, *FUSIONS, *EXACT, *DENSE, *JOINT, *ZSCORE]
QUERIES = ["q1", "q2", "q3", "q4", "d8"]

TERM = Term("cancer", 1.5, 2, 3.25, 300, 9.75)


def explanation(document: str = "d1", rank: int | None = 1, score: float = 9.75, **changes: object) -> Explanation:
    values: dict = {"system": "splade-idf", "grade": None, "terms": [TERM], "parts": []} | changes
    return Explanation(document=document, rank=rank, score=score, **values)


def test_a_table_leaves_out_empty_columns() -> None:
    assert explanation().table(10) == [
        ["term", "query", "document", "idf", "impact", "contribution"],
        ["cancer", "1.5", "2", "3.25", "300", "9.7500"],
    ]
    assert explanation(terms=[Term("cancer", 1, 2, None, None, 0.5)]).table(10) == [
        ["term", "query", "document", "contribution"],
        ["cancer", "1", "2", "0.5000"],
    ]
    assert explanation(terms=[]).table(10) == []


def test_a_table_sums_the_terms_that_it_leaves_out() -> None:
    terms = [Term(name, 1, 1, None, None, value) for name, value in (("a", 4.0), ("b", 2.0), ("c", 1.0))]
    assert explanation(terms=terms).table(1)[2:] == [["2 others", "", "", "3.0000"]]
    assert explanation(terms=terms).table(2)[3:] == [["1 other", "", "", "1.0000"]]
    assert len(explanation(terms=terms).table(3)) == 4


def test_a_table_of_parts_has_their_ranks() -> None:
    parts = [Part(0.25, explanation(rank=None)), Part(0, explanation(rank=7, system="bm25"))]
    assert explanation(terms=[], parts=parts).table(1) == [
        ["part", "score", "rank", "share"],
        ["splade-idf", "9.7500", "-", "0.2500"],
        ["bm25", "9.7500", "7", "0.0000"],
    ]


def test_text_of_a_case() -> None:
    contents = {"d1": "cancer " * 20, "d2": "rats"}
    found = [explanation(grade=2), explanation("d2", None, 0, grade=0, terms=[])]
    assert text(Case("q", "cancer?", contents, {"splade-idf": found}), 10).splitlines() == [
        "q: cancer?",
        "",
        "== splade-idf ==",
        "",
        "1. d1, score 9.7500, ★ relevant, grade 2",
        "    " + " ".join(["cancer"] * 14) + "…",
        "    term    query  document   idf  impact  contribution",
        "    ---------------------------------------------------",
        "    cancer    1.5         2  3.25     300        9.7500",
        "",
        "not in the run: d2, score 0.0000, grade 0",
        "    rats",
        "    no terms",
    ]


@pytest.fixture(scope="module")
def run(run_folder: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of every kind of system but the cross-encoder on the tiny collection."""
    folder = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("explain") / "run"))
    beir([str(tiny), "--output", str(folder), "--dense", "splade-tiny", "--systems", *ALL])
    return FinishedRun(folder)


@pytest.fixture(scope="module")
def explained(run: FinishedRun) -> dict[str, Case]:
    return {query: explain_query(run, query, ALL, depth=100, relevant=0) for query in QUERIES}


@pytest.mark.slow
@pytest.mark.parametrize("system", ALL)
def test_explained_scores_are_those_of_the_run(system: str, run: FinishedRun, explained: Mapping[str, Case]) -> None:
    # write_run rounds to 6 decimals, Anserini BM25's scores to 4; a hybrid adds up rounded scores.
    tolerance = 6e-5 if system == "bm25" else 2e-6
    hits = read_run(run.layout.run(parse_system(system)))
    for query in QUERIES:
        expected = hits[hits["query_id"] == query]
        found = explained[query].systems[system]
        assert [e.document for e in found] == list(expected["doc_id"])
        assert [e.rank for e in found] == list(range(1, len(found) + 1))
        assert [e.score for e in found] == pytest.approx(list(expected["score"]), abs=tolerance)


@pytest.mark.slow
def test_a_bm25_term_worked_example(run: FinishedRun) -> None:
    (bladder,) = [t for t in explain_query(run, "q2", ["bm25"]).systems["bm25"][0].terms if t.term == "bladder"]
    # One of 12 documents has it, once; that document has 8 words that are no stop words, and all documents have 108.
    idf = math.log(1 + (12 - 1 + 0.5) / (1 + 0.5))
    assert (bladder.query, bladder.document, bladder.impact) == (1, 1, None)
    assert bladder.idf == pytest.approx(idf)
    assert bladder.contribution == pytest.approx(idf * 1 / (1 + 0.9 * (1 - 0.4 + 0.4 * 8 / (108 / 12))), rel=1e-5)


@pytest.mark.slow
def test_splade_terms_are_those_of_the_index(run: FinishedRun) -> None:
    folder = run.layout.folder
    indexed = {r["id"]: r["vector"] for _, r in jsonl.read(folder / "impacts" / "splade-idf" / "00000.jsonl")}
    manifest = json.loads((folder / "indexes" / "splade-idf" / "manifest.json").read_text())
    scale = manifest["stats"]["document_scale"]
    found = explain_query(run, "q3", ["splade-doc-idf", "splade"])
    assert len(found.systems["splade-doc-idf"]) == 4
    for explanation in found.systems["splade-doc-idf"]:
        assert explanation.terms == sorted(explanation.terms, key=lambda term: -term.contribution)
        for term in explanation.terms:
            assert term.query == 1 and term.idf is not None and term.impact == indexed[explanation.document][term.term]
            assert term.impact == pytest.approx(term.document * term.idf * scale, abs=0.51)
            assert term.contribution == pytest.approx(term.impact / scale)
    assert {term.idf for term in found.systems["splade"][0].terms} == {None}


@pytest.mark.slow
def test_words_of_a_joint_index_have_bm25s_weight(run: FinishedRun) -> None:
    found = explain_query(run, "q2", ["joint-splade-doc-idf", "splade-doc-idf", "bm25"], documents=["d4"]).systems
    (joint,), (splade,), (bm25,) = found.values()
    words = {term.term: term for term in joint.terms if term.term.startswith("bm25:")}
    assert [term for term in joint.terms if term.term not in words] == splade.terms
    config = load_encoder(str(run.layout.index(parse_system("joint-splade-doc-idf"))))
    assert config.joint and words.keys() == {f"bm25:{term.term}" for term in bm25.terms} == {
        "bm25:bladder",
        "bm25:infect",
    }
    for term in bm25.terms:
        word = words[f"bm25:{term.term}"]
        assert word.document == pytest.approx(term.contribution, abs=config.joint.range / 127)
        assert word.contribution == pytest.approx(term.contribution * config.joint.alpha["bow"], rel=0.02)
        assert word.idf is None and word.impact == pytest.approx(word.document * 127 / config.joint.range)


@pytest.mark.slow
@pytest.mark.parametrize("document, absent", [("d5", False), ("d7", True)])
def test_shares_of_a_zscore(document: str, absent: bool, run: FinishedRun) -> None:
    """A document that a part has not found has the share of the part's last one."""
    name = "hybrid-splade-idf-dense-zscore"
    (explained,) = explain_query(run, "q3", [name], documents=[document]).systems[name]
    last = scores_by_query(read_run(run.layout.run(parse_system("bm25"))))["q3"]
    bm25, splade, dense = explained.parts
    assert (bm25.explanation.rank is None) == absent
    values = np.array(list(last.values()))
    score = values[-1] if absent else last[document]
    assert bm25.share == pytest.approx(2 * (score - values.mean()) / values.std(), abs=1e-5)
    assert explained.score == pytest.approx(bm25.share + splade.share + dense.share) and splade.share != 0


@pytest.mark.slow
def test_documents_have_rank_and_grade(run: FinishedRun) -> None:
    best, second = explain_query(run, "q1", ["bm25"], depth=2, relevant=0).systems["bm25"]
    assert (best.document, best.rank, best.grade) == ("d1", 1, 2)
    assert second.rank == 2
    # A query that is a document of the collection is removed from its run.
    (judged,) = explain_query(run, "d8", ["splade"], documents=["d8"]).systems["splade"]
    assert (judged.rank, judged.grade, judged.relevant) == (None, 0, False) and judged.score > 0


@pytest.mark.slow
def test_relevant_documents_are_explained_wherever_they_are(run: FinishedRun) -> None:
    systems = ["bm25", "splade-idf", "hybrid-splade-idf-minmax"]
    # q4, "heart attack while running", has no word in common with d6, "myocardial infarction in a marathon runner".
    found = explain_query(run, "q4", systems, depth=1)
    assert found.systems["bm25"] == [Explanation("bm25", "d6", None, 0.0, 1, [], [])]
    splade = found.systems["splade-idf"][-1]
    ranked = list(read_run(run.layout.run(parse_system("splade-idf"))).query("query_id == 'q4'")["doc_id"])
    assert splade.document == "d6" and splade.rank == ranked.index("d6") + 1 and splade.terms
    assert found.systems["hybrid-splade-idf-minmax"][-1].parts[1].explanation == splade
    assert "not in the run: d6, score 0.0000, ★ relevant, grade 1" in text(found, 3)


@pytest.mark.slow
def test_relevant_documents_are_limited_to_the_highest_grades(run: FinishedRun) -> None:
    def documents(relevant: int) -> list[str]:
        found = explain_query(run, "q1", ["splade"], depth=0, relevant=relevant).systems["splade"]
        return [explanation.document for explanation in found]

    assert documents(0) == []
    assert documents(1) == ["d1"]  # of grade 2
    assert sorted(documents(3)) == ["d1", "d2"]  # d2 of grade 1; no other is relevant
    # A relevant document among the best is not repeated.
    found = explain_query(run, "q1", ["splade"], depth=12, relevant=3).systems["splade"]
    assert [e.document for e in found].count("d1") == 1


@pytest.mark.slow
def test_a_document_that_was_not_found_is_explained(run: FinishedRun) -> None:
    found = explain_query(run, "q2", ["bm25", "splade", "hybrid-splade-idf-minmax"], documents=["d5"]).systems
    assert found["bm25"] == [Explanation("bm25", "d5", None, 0.0, None, [], [])]
    assert [e.document for e in found["splade"]] == ["d5"]


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["", "-minmax", "-rrf", "-product"])
def test_a_part_that_lacks_the_document_counts_0(fusion: str, run: FinishedRun) -> None:
    first = explain_query(run, "d8", [f"hybrid-splade-idf{fusion}"], documents=["d3"])
    (explained,) = first.systems[f"hybrid-splade-idf{fusion}"]
    bm25, splade = explained.parts
    assert bm25.explanation.rank is None and bm25.share == 0 and splade.explanation.rank is not None
    if fusion == "":
        assert splade.share == pytest.approx(splade.explanation.score, abs=1e-6)
    if fusion == "-rrf":
        assert splade.share == pytest.approx(1 / (60 + splade.explanation.rank))
    assert explained.score == (0 if fusion == "-product" else splade.share)


@pytest.mark.slow
def test_every_part_of_an_exact_hybrid_has_a_share(run: FinishedRun) -> None:
    found = explain_query(run, "d8", ["hybrid-splade-idf-exact"], documents=["d3"]).systems["hybrid-splade-idf-exact"]
    assert [part.share for part in found[0].parts] == pytest.approx(
        [part.explanation.score for part in found[0].parts], abs=1e-4
    )


@pytest.mark.slow
def test_three_parts(run: FinishedRun) -> None:
    name = "hybrid-splade-idf-dense-minmax"
    (first,) = explain_query(run, "q1", [name], depth=1, relevant=0).systems[name]
    assert [part.explanation.system for part in first.parts] == ["bm25", "splade-idf", "dense"]
    assert first.score == pytest.approx(sum(part.share for part in first.parts)) and 1 < first.score <= 3
    assert first.parts[1].explanation.terms and not first.parts[2].explanation.terms


class Structure(HTMLParser):
    """The tags of a page, checked for nesting, with their attributes and the text in each."""

    def __init__(self, source: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data


@pytest.mark.slow
def test_a_page_escapes_and_marks(run: FinishedRun) -> None:
    case = explain_query(run, "q2", ["bm25", "splade-idf", "hybrid-splade-idf"], documents=["d4"])
    case = Case("q2", "<b>bladder</b>", {"d4": "<script>alert('x')</script> Bladders & rats"}, case.systems)
    source = page(run, case, 10)
    structure = Structure(source)
    assert {"script", "b"}.isdisjoint(tag for tag, _ in structure.tags)
    assert structure.texts["h1"] == ["q2: <b>bladder</b>"]
    assert structure.texts["title"] == ["q2: <b>bladder</b>"]
    assert structure.texts["article"][0].count("<script>alert('x')</script> Bladders & rats") == 1
    assert structure.texts["mark"] == ["Bladders"] * 3
    assert "http" not in source and "src=" not in source and "@import" not in source  # it needs no network
    # "infect" is a term of the document in the index, but not of this text.
    rows = re.findall(r'<tr( class="expansion")? style="--bar: \d+%"><th scope="row">(\w+)', source)
    assert (' class="expansion"', "infect") in rows and ("", "bladder") in rows


@pytest.mark.slow
def test_a_page_marks_the_words_of_a_joint_index(run: FinishedRun) -> None:
    case = explain_query(run, "q2", ["joint-splade-doc-idf"], documents=["d4"])
    source = page(run, Case("q2", "bladder", {"d4": "Bladders"}, case.systems), 10)
    assert Structure(source).texts["mark"] == ["Bladders"]
    rows = re.findall(r'<tr( class="expansion")? style="--bar: \d+%"><th scope="row">([\w:]+)', source)
    assert ("", "bm25:bladder") in rows and (' class="expansion"', "bm25:infect") in rows


@pytest.mark.slow
def test_a_page_can_be_read_aloud(run: FinishedRun) -> None:
    case = explain_query(run, "q1", ["bm25", "hybrid-splade-idf-dense-minmax"], depth=1, relevant=0)
    structure = Structure(page(run, case, 10))
    tags = structure.tags
    assert ("html", {"lang": "en"}) in tags
    headings = [tag for tag, _ in tags if re.fullmatch(r"h\d", tag)]
    assert headings == ["h1", "h2", "h3", "h2", "h3"]
    assert structure.texts["caption"] == [
        "bm25, terms",
        "hybrid-splade-idf-dense-minmax, parts",
        "bm25, terms",
        "splade-idf, terms",
    ]
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")
    labelled = [attributes["aria-labelledby"] for tag, attributes in tags if tag == "section"]
    assert labelled == [attributes["id"] for tag, attributes in tags if tag == "h2"]
    assert "dense: no terms" in structure.texts["article"][1]


@pytest.mark.slow
def test_a_page_cuts_long_texts_at_a_word_and_keeps_the_rest(run: FinishedRun) -> None:
    case = explain_query(run, "q2", ["bm25"], documents=["d4"])
    words = [f"word{i}" for i in range(100)]
    structure = Structure(page(run, Case("q2", "x", {"d4": " ".join(words)}, case.systems), 10))
    (shown,) = [shown for shown in structure.texts["p"] if shown.startswith("word0")]
    (rest,) = structure.texts["details"]
    shown_words = shown.removesuffix("…").split()
    assert shown.endswith("…") and len(shown) <= 501
    assert shown_words + rest.removeprefix("the rest of the text").split() == words
    short = Structure(page(run, Case("q2", "x", {"d4": "short"}, case.systems), 10))
    assert "details" not in short.texts and "short" in short.texts["p"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nobody", ["bm25"]), r"no query 'nobody' in .*run, which has 5: q1, q2, q3, q4, d8"),
        (("q1", ["splade-idf-rrf"]), r"no system 'splade-idf-rrf'"),
        (("q1", ["hybrid-splade-doc"]), r"has no run of hybrid-splade-doc; it has bm25, dense"),
        (("q1", ["hybrid-cross-encoder"]), r"no explanation of cross-encoder: .* not made of terms"),
        (("q1", ["bm25"], 5, 0, ["d1", "d99"]), r"document 'd99' is not in collection tiny"),
    ],
)
def test_what_cannot_be_explained_is_refused(run: FinishedRun, arguments: tuple, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        explain_query(run, *arguments)


@pytest.mark.slow
def test_the_command(run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    main(["explain", "--run-folder", str(run.layout.folder), "--query", "q2", "--depth", "1", "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "q2: bladder infection"
    assert [line for line in lines if line.startswith("==")] == [
        "== bm25 ==",
        "== splade-idf ==",
        "== hybrid-splade-idf ==",
    ]
    assert re.fullmatch(r"1\. d4, score \d\.\d{4}, ★ relevant, grade 1", lines[4])
    assert lines[5].startswith("    Urinary tract infection Recurrent")
    assert lines[-1] == f"{output}: explain.json, explain.html"
    data = json.loads((output / "explain.json").read_text())
    assert data["text"] == "bladder infection" and list(data["documents"]) == ["d4"]
    (bm25,) = data["systems"]["bm25"]
    assert bm25["score"] == pytest.approx(sum(term["contribution"] for term in bm25["terms"]))
    assert (output / "explain.html").read_text().startswith("<!DOCTYPE html>")
