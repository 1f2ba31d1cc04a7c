"""Explanations add up to the scores in the runs, and are shown in full."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.analysis.explain import explain_query, page, text
from cai_pyserini.cli.analyse import main
from cai_pyserini.cli.run import main as beir
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.explanation import Case, Explanation, Part, Term
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.runs.trec import read_run, scores_by_query

SINGLE = ["bm25", "splade", "splade-idf", "splade-doc-idf", "dense"]
JOINT = ["joint-doc", "joint-near"]
ZSCORE = "hybrid-splade-idf-dense-zscore"
HYBRIDS = [f"hybrid-splade-idf{fusion}" for fusion in ("", "-minmax", "-rrf", "-product")]
ALL = [*SINGLE, *JOINT, *HYBRIDS, ZSCORE, "fused-joint-dense-minmax"]
QUERIES = ["q1", "q4", "d8"]

TERM = Term("cancer", 1.5, 2, 3.25, 300, 9.75)


def explanation(document: str = "d1", rank: int | None = 1, score: float = 9.75, **changes: object) -> Explanation:
    values: dict = {"system": "splade-idf", "grade": None, "terms": [TERM], "parts": []} | changes
    return Explanation(document=document, rank=rank, score=score, **values)


def test_a_table_leaves_out_empty_columns_and_sums_up_other_terms() -> None:
    terms = [Term(name, 1, 1, None, None, value) for name, value in (("a", 4.0), ("b", 2.0), ("c", 1.0))]
    header, first, others = explanation(terms=terms).table(1)
    assert header == ["term", "query", "document", "contribution"]
    assert first == ["a", "1", "1", "4.0000"] and others == ["2 others", "", "", "3.0000"]
    assert explanation(terms=terms).table(2)[3:] == [["1 other", "", "", "1.0000"]]
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
def run(run_folder: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of every kind of system except the cross-encoder on the tiny collection."""
    folder = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("explain") / "run"))
    beir([str(tiny), "--output", str(folder), "--dense", "splade-tiny", "--systems", *ALL])
    return RunFolder(folder)


@pytest.fixture(scope="module")
def opened(run: RunFolder) -> Run:
    return Run(run.folder)


Explain = Callable[..., dict[str, list[Explanation]]]


@pytest.fixture(scope="module")
def explain(run: RunFolder, opened: Run) -> Explain:
    """The explanations of a query by system."""
    return lambda *arguments, **settings: explain_query(run, opened, *arguments, **settings).systems


@pytest.fixture(scope="module")
def explained(explain: Explain) -> dict[str, dict[str, list[Explanation]]]:
    return {query: explain(query, ALL, depth=100, relevant=0) for query in QUERIES}


@pytest.mark.slow
@pytest.mark.parametrize("system", ALL)
def test_explained_scores_are_those_of_the_run(system: str, run: RunFolder, explained: dict) -> None:
    """Including d8, a query that is also a document, which its run leaves out."""
    tolerance = 6e-5 if system == "bm25" else 2e-6  # Anserini rounds BM25's scores to 4 decimals
    hits = read_run(parse_system(system).ranking(run).output)
    for query in QUERIES:
        expected = hits[hits["query_id"] == query]
        found = explained[query][system]
        assert [e.document for e in found] == list(expected["doc_id"])
        assert [e.rank for e in found] == list(range(1, len(found) + 1))
        assert [e.score for e in found] == pytest.approx(list(expected["score"]), abs=tolerance)


@pytest.mark.slow
def test_splade_terms_are_those_of_the_index(run: RunFolder, explain: Explain) -> None:
    folder = run.folder
    indexed = {r["id"]: r["vector"] for _, r in jsonl.read(folder / "impacts" / "splade-idf" / "00000.jsonl")}
    scale = json.loads((folder / "indexes" / "splade-idf" / "manifest.json").read_text())["stats"]["document_scale"]
    found = explain("q3", ["splade-doc-idf"])["splade-doc-idf"]
    assert len(found) == 4
    for explanation in found:
        assert explanation.terms == sorted(explanation.terms, key=lambda term: -term.contribution)
        for term in explanation.terms:
            assert term.query == 1 and term.impact == indexed[explanation.document][term.term]
            assert term.contribution == pytest.approx(term.document) == pytest.approx(term.impact / scale)


@pytest.mark.slow
def test_words_of_a_joint_index_have_bm25s_weight(run: RunFolder, explain: Explain) -> None:
    (joint,), (splade,), (bm25,) = explain("q2", ["joint-doc", "splade-doc-idf", "bm25"], documents=["d4"]).values()
    words = {term.term: term for term in joint.terms if term.term.startswith("bm25:")}
    assert [term for term in joint.terms if term.term not in words] == splade.terms
    config = load_encoder(str(parse_system("joint-doc").index(run).output))
    assert config.joint and words.keys() == {f"bm25:{t.term}" for t in bm25.terms} == {"bm25:bladder", "bm25:infect"}
    for term in bm25.terms:
        word = words[f"bm25:{term.term}"]
        assert word.document == pytest.approx(term.contribution, abs=config.joint.range / 127)
        assert word.contribution == pytest.approx(term.contribution * config.joint.alpha["bow"], rel=0.02)
        assert word.idf is None and word.impact == pytest.approx(word.document * 127 / config.joint.range)


@pytest.mark.slow
@pytest.mark.parametrize("document, absent", [("d5", False), ("d7", True)])
def test_shares_of_a_zscore(document: str, absent: bool, run: RunFolder, explain: Explain) -> None:
    """A document missing from a part has the share of the part's last hit."""
    (explained,) = explain("q3", [ZSCORE], documents=[document])[ZSCORE]
    hits = scores_by_query(read_run(parse_system("bm25").ranking(run).output))["q3"]
    bm25, splade, dense = explained.parts
    assert (bm25.explanation.rank is None) == absent
    values = np.array(list(hits.values()))
    score = values[-1] if absent else hits[document]
    assert bm25.share == pytest.approx(2 * (score - values.mean()) / values.std(), abs=1e-5)
    assert explained.score == pytest.approx(bm25.share + splade.share + dense.share) and splade.share != 0
    assert splade.explanation.terms and not dense.explanation.terms


@pytest.mark.slow
@pytest.mark.parametrize("system", HYBRIDS)
def test_a_part_without_the_document_counts_0(system: str, explain: Explain) -> None:
    (explained,) = explain("d8", [system], documents=["d3"])[system]
    bm25, splade = explained.parts
    assert bm25.explanation.rank is None and bm25.share == 0 and splade.explanation.rank is not None
    if system == "hybrid-splade-idf":
        assert splade.share == pytest.approx(splade.explanation.score, abs=1e-6)
    if system.endswith("-rrf"):
        assert splade.share == pytest.approx(1 / (60 + splade.explanation.rank))
    assert explained.score == (0 if system.endswith("-product") else splade.share)


@pytest.mark.slow
def test_relevant_and_chosen_documents_are_explained_at_any_rank(run: RunFolder, explain: Explain) -> None:
    # q4, "heart attack while running", has no word in common with d6, "myocardial infarction in a marathon runner".
    found = explain("q4", ["bm25", "splade-idf", "hybrid-splade-idf-minmax"], depth=1)
    assert found["bm25"] == [Explanation("bm25", "d6", None, 0.0, 1, [], [])]
    assert found["bm25"][0].heading == "not in the run: d6, score 0.0000, ★ relevant, grade 1"
    splade = found["splade-idf"][-1]
    ranked = list(read_run(parse_system("splade-idf").ranking(run).output).query("query_id == 'q4'")["doc_id"])
    assert splade.document == "d6" and splade.rank == ranked.index("d6") + 1 and splade.terms
    assert found["hybrid-splade-idf-minmax"][-1].parts[1].explanation == splade
    assert explain("q2", ["bm25"], documents=["d5"])["bm25"] == [Explanation("bm25", "d5", None, 0.0, None, [], [])]
    # A query that is a document of the collection is removed from its run.
    (judged,) = explain("d8", ["splade"], documents=["d8"])["splade"]
    assert (judged.rank, judged.grade, judged.relevant) == (None, 0, False) and judged.score > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, documents",
    [
        ({"depth": 0, "relevant": 0}, []),
        ({"depth": 0, "relevant": 1}, ["d1"]),  # of grade 2
        ({"depth": 0, "relevant": 3}, ["d1", "d2"]),  # d2 of grade 1; no other is relevant
        ({"depth": 2, "relevant": 3}, ["d1", "d3", "d2"]),  # d1, among the best, is not repeated
    ],
)
def test_relevant_documents_are_limited_to_the_highest_grades(
    settings: dict, documents: list[str], explain: Explain
) -> None:
    assert [e.document for e in explain("q1", ["bm25"], **settings)["bm25"]] == documents


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
def test_a_page_escapes_and_marks(run: RunFolder, opened: Run, explain: Explain) -> None:
    found = explain("q2", ["bm25", "joint-doc", "hybrid-splade-idf"], documents=["d4"])
    contents = "<script>alert('x')</script> Bladders & rats"
    source = page(run, opened, Case("q2", "<b>bladder</b>", {"d4": contents}, found), 10)
    structure = Structure(source)
    assert {"script", "b"}.isdisjoint(tag for tag, _ in structure.tags)
    assert structure.texts["h1"] == structure.texts["title"] == ["q2: <b>bladder</b>"]
    assert structure.texts["article"][0].count(contents) == 1
    assert structure.texts["mark"] == ["Bladders"] * 3 and "details" not in structure.texts
    assert "http" not in source and "src=" not in source and "@import" not in source  # needs no network
    # "infect" is a term of the document in the index, but not of this text.
    rows = re.findall(r'<tr( class="expansion")? style="--bar: \d+%"><th scope="row">([\w:]+)', source)
    expansion = ' class="expansion"'
    assert {("", "bladder"), (expansion, "infect"), ("", "bm25:bladder"), (expansion, "bm25:infect")} <= set(rows)


@pytest.mark.slow
def test_a_page_suits_screen_readers(run: RunFolder, opened: Run) -> None:
    case = explain_query(run, opened, "q1", ["bm25", ZSCORE], depth=1, relevant=0)
    structure = Structure(page(run, opened, case, 10))
    assert ("html", {"lang": "en"}) in structure.tags
    assert [tag for tag, _ in structure.tags if re.fullmatch(r"h\d", tag)] == ["h1", "h2", "h3", "h2", "h3"]
    assert structure.texts["caption"] == ["bm25, terms", f"{ZSCORE}, parts", "bm25, terms", "splade-idf, terms"]
    assert all("scope" in attributes for tag, attributes in structure.tags if tag == "th")
    labelled = [attributes["aria-labelledby"] for tag, attributes in structure.tags if tag == "section"]
    assert labelled == [attributes["id"] for tag, attributes in structure.tags if tag == "h2"]
    assert "dense: no terms" in structure.texts["article"][1]
    words = [f"word{i}" for i in range(100)]  # a long text is cut at a word, and keeps the rest
    case.documents.update(dict.fromkeys(case.documents, " ".join(words)))
    texts = Structure(page(run, opened, case, 10)).texts
    (shown, _), (rest, _) = [t for t in texts["p"] if t.startswith("word0")], texts["details"]
    assert shown.endswith("…") and len(shown) <= 501
    assert shown.removesuffix("…").split() + rest.removeprefix("the rest of the text").split() == words


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nobody", ["bm25"]), r"no query 'nobody' in .*run, which has 5: q1, q2, q3, q4, d8"),
        (("q1", ["splade-idf-rrf"]), r"no system 'splade-idf-rrf'"),
        (("q1", ["hybrid-splade-doc"]), r"has no run of splade-doc; it has bm25, dense"),
        (("q1", ["hybrid-cross-encoder"]), r"cross-encoder cannot be searched, only run: take one of"),
        (("q1", ["bm25"], 5, 0, ["d1", "d99"]), r"document 'd99' is not in collection tiny"),
    ],
)
def test_unexplainable_documents_are_refused(explain: Explain, arguments: tuple, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        explain(*arguments)


@pytest.mark.slow
def test_the_command(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    main(["explain", str(run.folder), "--query", "q2", "--depth", "1", "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "q2: bladder infection"
    headings = [line for line in lines if line.startswith("==")]
    assert headings == ["== bm25 ==", "== splade-idf ==", "== hybrid-splade-idf =="]
    assert re.fullmatch(r"1\. d4, score \d\.\d{4}, ★ relevant, grade 1", lines[4])
    assert lines[5].startswith("    Urinary tract infection Recurrent")
    assert lines[-1] == f"{output}: explain.json, explain.html"
    data = json.loads((output / "explain.json").read_text())
    assert data["text"] == "bladder infection" and list(data["documents"]) == ["d4"]
    (bm25,) = data["systems"]["bm25"]
    assert bm25["score"] == pytest.approx(sum(term["contribution"] for term in bm25["terms"]))
    assert (output / "explain.html").read_text().startswith("<!DOCTYPE html>")
