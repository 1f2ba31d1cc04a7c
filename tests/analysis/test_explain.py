"""Explanations add up to the scores in the runs."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from cai_pyserini.analysis.cost import FinishedRun
from cai_pyserini.analysis.explain import Explanation, Page, explain, table
from cai_pyserini.cli import CaiError
from cai_pyserini.systems import System
from cai_pyserini.trec import read_run
from tests.conftest import Command, json_lines

SINGLE = ["bm25", "splade", "splade-doc", "splade-idf", "splade-doc-idf"]
HYBRID = ["hybrid-splade-idf", "hybrid-splade-idf-minmax", "hybrid-splade-doc-idf", "hybrid-splade-doc-idf-minmax"]
MORE = ["hybrid-splade-idf-rrf", "hybrid-splade-idf-product"]
QUERIES = ["q1", "q2", "q3", "q4", "d8"]


@pytest.fixture(scope="module")
def run(line: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory, command: Command) -> FinishedRun:
    """The run of all systems on the tiny collection."""
    folder = Path(shutil.copytree(line, tmp_path_factory.mktemp("explain") / "run"))
    done = command("cai_pyserini.beir", tiny, "--output", folder, "--systems", *SINGLE, *HYBRID, *MORE)
    assert done.returncode == 0, done.stderr
    return FinishedRun(folder)


@pytest.fixture(scope="module")
def explained(run: FinishedRun) -> dict[str, dict[str, list[Explanation]]]:
    return {query: explain(run, query, SINGLE + HYBRID + MORE, depth=100) for query in QUERIES}


@pytest.mark.parametrize("system", SINGLE + HYBRID + MORE)
def test_explained_scores_are_those_of_the_run(
    system: str, run: FinishedRun, explained: Mapping[str, Mapping[str, list[Explanation]]]
) -> None:
    # write_run rounds to 6 decimals, Anserini BM25's scores to 4.
    tolerance = 6e-5 if system == "bm25" else 6e-7
    hits = read_run(run.run_path(System.parse(system)))
    for query in QUERIES:
        wanted = hits[hits.query_id == query]
        got = explained[query][system]
        assert [e.document for e in got] == list(wanted.doc_id)
        assert [e.rank for e in got] == list(range(1, len(got) + 1))
        assert [e.score for e in got] == pytest.approx(list(wanted.score), abs=tolerance)


def test_a_bm25_term_worked_example(run: FinishedRun) -> None:
    (bladder,) = [term for term in explain(run, "q2", ["bm25"])["bm25"][0].terms if term.term == "bladder"]
    # One of 12 documents has it, once; that document has 8 words that are no stop words, and all documents have 108.
    idf = math.log(1 + (12 - 1 + 0.5) / (1 + 0.5))
    assert (bladder.query, bladder.document, bladder.impact) == (1, 1, None)
    assert bladder.idf == pytest.approx(idf)
    assert bladder.contribution == pytest.approx(idf * 1 / (1 + 0.9 * (1 - 0.4 + 0.4 * 8 / (108 / 12))), rel=1e-5)


def test_splade_terms_are_those_of_the_index(run: FinishedRun) -> None:
    indexed = {r["id"]: r["vector"] for r in json_lines(run.folder / "impacts" / "splade-idf" / "00000.jsonl")}
    scale = json.loads((run.folder / "indexes" / "splade-idf" / "manifest.json").read_text())["document_scale"]
    for explanation in explain(run, "q3", ["splade-doc-idf"])["splade-doc-idf"]:
        assert explanation.terms == sorted(explanation.terms, key=lambda term: -term.contribution)
        for term in explanation.terms:
            assert term.query == 1 and term.idf is not None and term.impact == indexed[explanation.document][term.term]
            assert term.impact == pytest.approx(term.document * term.idf * scale, abs=0.51)
            assert term.contribution == pytest.approx(term.impact / scale)
    assert all(term.idf is None for term in explain(run, "q3", ["splade"], 1)["splade"][0].terms)


def test_documents_are_marked_with_rank_and_grade(run: FinishedRun) -> None:
    best, second = explain(run, "q1", ["bm25"], depth=2)["bm25"]
    assert (best.document, best.rank, best.grade) == ("d1", 1, 2)
    assert second.rank == 2
    (judged,) = explain(run, "d8", ["splade"], documents=["d4"])["splade"]
    assert judged.grade == 0


def test_a_document_that_was_not_found_is_explained(run: FinishedRun) -> None:
    found = explain(run, "q2", ["bm25", "splade", "hybrid-splade-idf-minmax"], documents=["d5"])
    assert found["bm25"] == [Explanation("bm25", "d5", None, 0.0, None, [], [])]
    assert [e.document for e in found["splade"]] == ["d5"]


def test_a_part_that_lacks_the_document_counts_0(run: FinishedRun) -> None:
    for fusion in ("", "-minmax", "-rrf", "-product"):
        first = explain(run, "d8", [f"hybrid-splade-idf{fusion}"], depth=1)[f"hybrid-splade-idf{fusion}"][0]
        bm25, splade = first.parts
        assert bm25.explanation.rank is None and bm25.share == 0
        share = {"-minmax": 1, "-rrf": 1 / 61}.get(fusion, round(splade.explanation.score, 6))
        assert splade.share == pytest.approx(share, abs=1e-6)
        assert first.score == (0 if fusion == "-product" else splade.share)


def test_a_table_sums_the_terms_that_it_leaves_out(run: FinishedRun) -> None:
    (first,) = explain(run, "q1", ["splade"], depth=1)["splade"]
    header, *rows, rest = table(first, 3)
    assert header == ["term", "query", "document", "idf", "impact", "contribution"]
    assert len(rows) == 3 and rest[0] == f"{len(first.terms) - 3} others"
    assert sum(float(row[-1]) for row in [*rows, rest]) == pytest.approx(first.score, abs=3e-4)
    assert len(table(first, 1000)) == len(first.terms) + 1


def test_a_page_escapes_and_marks(run: FinishedRun) -> None:
    explained = explain(run, "q2", ["bm25", "splade-idf", "hybrid-splade-idf"], documents=["d4"])
    contents = {"d4": "<script>alert('x')</script> Bladders & rats"}
    page = Page(run, "q2", contents, 10).html(explained)
    assert "<script" not in page and "&lt;<mark" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; " in page and "</mark> &amp; rats</p>" in page
    marked = page.split("<mark style=")[1:]
    assert len(marked) == 3 and all(mark.split(">")[1] == "Bladders</mark" for mark in marked)
    assert "http" not in page and "src=" not in page and "@import" not in page
    # "infect" is a term of the document in the index, but not of this text.
    assert re.search(r"<tr class=expansion style=[^>]*><td>infect</td>", page)
    assert re.search(r"<tr style=[^>]*><td>bladder</td>", page)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nobody", ["bm25"]), r"no query 'nobody' in .*run, which has 5: q1, q2"),
        (("q1", ["splade-idf-rrf"]), r"no system 'splade-idf-rrf'"),
        (("q1", ["hybrid-splade-doc"]), r"has no run of hybrid-splade-doc; it has bm25, hybrid-splade-doc-idf"),
        (("q1", ["hybrid-dense"]), r"no explanation of hybrid-dense: only scores of BM25, SPLADE and their hybrids"),
        (("q1", ["bm25"], 5, ["d1", "d99"]), r"document 'd99' is not among the 12 of"),
    ],
)
def test_what_cannot_be_explained_is_refused(run: FinishedRun, arguments: tuple, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        explain(run, *arguments)


def test_the_command(run: FinishedRun, tmp_path: Path, command: Command) -> None:
    arguments = ["--run-folder", run.folder, "--query", "q2", "--depth", "1"]
    done = command("cai_pyserini.analysis.explain", *arguments, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "q2: bladder infection"
    assert [line for line in lines if line.startswith("==")] == [
        "== bm25 ==",
        "== splade-idf ==",
        "== hybrid-splade-idf ==",
    ]
    assert lines[4].startswith("1. d4, ") and " ★ grade 1: Urinary tract infection Recurrent" in lines[4]
    data = json.loads((tmp_path / "out" / "explain.json").read_text())
    assert data["text"] == "bladder infection" and list(data["documents"]) == ["d4"]
    (bm25,) = data["systems"]["bm25"]
    assert bm25["score"] == pytest.approx(sum(term["contribution"] for term in bm25["terms"]))
    assert (tmp_path / "out" / "explain.html").read_text().startswith("<!DOCTYPE html>")
