"""Explanations add up to the scores in the runs, and are shown in full."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cai_pyserini.analysis.explain import Case, explain_query, text
from cai_pyserini.cli.analyse import main
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.explanation import Explanation, Part
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.searcher import Term
from cai_pyserini.runs.trec import read_run, scores_by_query

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
def run(run_folder: Path) -> RunFolder:
    return RunFolder(run_folder)


Explain = Callable[..., dict[str, list[Explanation]]]


@pytest.fixture(scope="module")
def explain(run: RunFolder) -> Explain:
    """The explanations of a query by system."""
    opened = Run(run.folder)
    return lambda *arguments, **settings: explain_query(run, opened, *arguments, **settings).systems


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
    config = load_encoder(str(index_of(parse_system("joint-doc"), run).output))
    assert config.joint and words.keys() == {f"bm25:{t.term}" for t in bm25.terms} == {"bm25:bladder", "bm25:infect"}
    for term in bm25.terms:
        word = words[f"bm25:{term.term}"]
        assert word.document == pytest.approx(term.contribution, abs=config.joint.range / 127)
        assert word.contribution == pytest.approx(term.contribution * config.joint.alpha["bow"], rel=0.02)
        assert word.idf is None and word.impact == pytest.approx(word.document * 127 / config.joint.range)


@pytest.mark.slow
def test_relevant_and_chosen_documents_are_explained_at_any_rank(run: RunFolder, explain: Explain) -> None:
    # q4, "heart attack while running", has no word in common with d6, "myocardial infarction in a marathon runner".
    found = explain("q4", ["bm25", "splade-idf", "hybrid-splade-idf-minmax"], depth=1)
    assert found["bm25"] == [Explanation("bm25", "d6", None, 0.0, 1, [], [])]
    assert found["bm25"][0].heading == "not in the run: d6, score 0.0000, ★ relevant, grade 1"
    splade = found["splade-idf"][-1]
    ranked = list(scores_by_query(read_run(ranking_of(parse_system("splade-idf"), run).output))["q4"])
    assert splade.document == "d6" and splade.rank == ranked.index("d6") + 1 and splade.terms
    assert found["hybrid-splade-idf-minmax"][-1].parts[1].explanation.terms == splade.terms
    assert explain("q2", ["bm25"], documents=["d5"])["bm25"] == [Explanation("bm25", "d5", None, 0.0, None, [], [])]
    (judged,) = explain("d8", ["splade"], documents=["d8"])["splade"]
    assert (judged.grade, judged.relevant) == (0, False) and judged.score > 0


@pytest.mark.slow
def test_relevant_documents_are_limited_to_the_highest_grades(explain: Explain) -> None:
    """d1 has grade 2, d2 grade 1, and no other is relevant; d1, if among the best, is not repeated."""
    for depth, relevant, expected in ((0, 0, []), (0, 1, ["d1"]), (0, 3, ["d1", "d2"]), (2, 3, ["d1", "d3", "d2"])):
        found = explain("q1", ["bm25"], depth=depth, relevant=relevant)["bm25"]
        assert [explanation.document for explanation in found] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "query, system, documents, message",
    [
        ("nobody", "bm25", [], r"no query 'nobody' in .*run, which has 5: q1, q2, q3, q4, d8"),
        ("q1", "splade-idf-rrf", [], r"no system 'splade-idf-rrf'"),
        ("q1", "hybrid-cross-encoder", [], r"cross-encoder cannot be searched, only run: take one of"),
        ("q1", "bm25", ["d1", "d99"], r"document 'd99' is not in collection tiny"),
    ],
)
def test_unexplainable_documents_are_refused(
    query: str, system: str, documents: list[str], message: str, explain: Explain
) -> None:
    with pytest.raises(CaiError, match=message):
        explain(query, [system], documents=documents)


@pytest.mark.slow
def test_the_command(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    main(["explain", str(run.folder), "--query", "q2", "--depth", "1", "--output", str(output)])
    printed = capsys.readouterr().out
    assert re.findall("== (.*) ==", printed) == ["bm25", "splade-idf", "hybrid-splade-idf"]
    assert re.search(r"\n1\. d4, score \d\.\d{4}, ★ relevant, grade 1\n    Urinary tract infection Recurrent", printed)
    data = json.loads((output / "explain.json").read_text())
    assert data["text"] == "bladder infection" and list(data["documents"]) == ["d4"]
    (bm25,) = data["systems"]["bm25"]
    assert bm25["score"] == pytest.approx(sum(term["contribution"] for term in bm25["terms"]))
