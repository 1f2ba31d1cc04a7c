"""Compared systems: letters, tables in every format, and what other programs make of them."""

import csv
import json
import shutil
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from cai_pyserini.core.tables import Cell, render
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.significance import Comparison

SYSTEMS = {
    "bm25": {"nDCG@10": 0.5, "P@1": 0.25},
    "a_b & 100%": {"nDCG@10": 0.61236, "P@1": 0.5},
    "<i>x</i>|$y^2$\\{~#}": {"nDCG@10": 0.61244, "P@1": 0.75},
}
BM25, PERCENT, MARKUP = SYSTEMS
BETTER = Comparison(0.1, (0.05, 0.15), 0.4, 0.001, 0.0001)
COMPARED = Compared(
    measures=["nDCG@10", "P@1"],
    queries=1234,
    systems=SYSTEMS,
    intervals={BM25: (0.45, 0.55), PERCENT: (0.55, 0.65), MARKUP: (0.56, 0.66)},
    baseline=BM25,
    comparisons={PERCENT: BETTER, MARKUP: Comparison(0.11, (-0.01, 0.2), -0.4, 0.06, 0.0000001)},
    pairs={BM25: {PERCENT: BETTER, MARKUP: BETTER}, PERCENT: {MARKUP: Comparison(0.01, (-0.1, 0.1), 0.1, 0.9, 0.8)}},
)


def test_letters_name_the_systems_that_are_significantly_worse() -> None:
    assert COMPARED.letters == {BM25: "a", PERCENT: "b", MARKUP: "c"}
    assert COMPARED.better == {BM25: "", PERCENT: "a", MARKUP: "a"}
    worse = {BM25: {PERCENT: replace(BETTER, difference=-0.1)}}
    assert replace(COMPARED, pairs=worse).better == {BM25: "b", PERCENT: "", MARKUP: ""}
    none = replace(COMPARED, pairs={BM25: {PERCENT: Comparison(0.1)}})
    assert not none.letters and "letters" not in none.render()
    many = {f"s{number}": {"AP": 0.5} for number in range(53)}
    pairs = {"s0": {"s1": BETTER}}
    assert not replace(COMPARED, systems=many, pairs=pairs).letters
    assert replace(COMPARED, systems=dict([*many.items()][:52]), pairs=pairs).better["s1"] == "a"


def test_as_a_text() -> None:
    lines = str(COMPARED).splitlines()
    assert [" ".join(line.split()) for line in lines[:5]] == [
        "system nDCG@10 95% interval P@1",
        "-" * len(lines[0]),
        "bm25 a 0.5000 [0.4500, 0.5500] 0.2500",
        "a_b & 100% b *0.6124 a [0.5500, 0.6500] 0.5000",
        r"<i>x</i>|$y^2$\{~#} c *0.6124 a [0.5600, 0.6600] *0.7500",
    ]
    assert lines[5:8] == [
        "1,234 queries",
        "*: best of its column",
        "letters: significantly better in nDCG@10 than the systems with these letters (two-sided paired t-test, "
        "p < 0.05, Holm-corrected over 3 pairs)",
    ]
    assert "a_b & 100% +0.1000† [+0.0500, +0.1500] +0.40 0.001 <0.001" in " ".join(str(COMPARED).split())
    assert "10,000 permutations (rand.), Holm-corrected over 2 systems" in lines[-3]


def test_markdown_escapes_what_is_markup() -> None:
    text = COMPARED.render("markdown", "hpo")
    assert r"| \<i>x\</i>\|$y^2$\\{~#}<sup>c</sup> | 0.6124<sup>a</sup> |" in text.replace("**", "")
    assert "\n\nhpo, 1,234 queries; bold: best of its column; letters: " in text
    assert render([["a", "b"], ["[x](javascript:y)", "*z*\n`"]], "markdown").splitlines()[-1] == (
        r"| [x\](javascript:y) | \*z\* \` |"
    )


@pytest.mark.parametrize("format, delimiter", [("csv", ","), ("tsv", "\t")])
def test_csv_has_all_numbers(format, delimiter: str) -> None:
    rows = {row["system"]: row for row in csv.DictReader(StringIO(COMPARED.render(format)), delimiter=delimiter)}
    assert [*rows] == [*SYSTEMS]
    assert rows[MARKUP] == {
        "system": MARKUP,
        "queries": "1234",
        "nDCG@10": "0.61244",
        "P@1": "0.75",
        "low": "0.56",
        "high": "0.66",
        "better than": "bm25",
        "baseline": "bm25",
        "difference": "0.11",
        "p": "0.06",
        "p_randomization": "1e-07",
        "effect": "-0.4",
        "difference low": "-0.01",
        "difference high": "0.2",
    }
    assert rows[BM25]["difference"] == rows[BM25]["p"] == ""


def test_latex_has_booktabs_and_a_caption_that_says_the_test() -> None:
    text = COMPARED.to_latex("hpo_100%")
    for line in (
        r"\caption{hpo\_100\%, 1,234 queries; bold: best of its column; letters: significantly better in nDCG@10 than",
        r"(two-sided paired t-test, p $<$ 0.05, Holm-corrected over 3 pairs); intervals: 95\% confidence, uncorrected,",
        r"a\_b \& 100\%\textsuperscript{b} & \textbf{0.6124}\textsuperscript{a} & [0.5500, 0.6500] & 0.5000 \\",
        r"a\_b \& 100\% & +0.1000\textsuperscript{$\dagger$} & [+0.0500, +0.1500] & +0.40 & 0.001 & $<$0.001 \\",
        r"& [$-$0.0100, +0.2000] & $-$0.40 & 0.060 & $<$0.001 \\",
        r"\toprule",
    ):
        assert line in text, line


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX is installed")
def test_latex_compiles(tmp_path: Path) -> None:
    characters = "".join(map(chr, range(32, 127))) + "−±†–—…αΔäé\n\t"
    strange = render([["system", "R"], [Cell(f"x{characters}y", True, "†"), "-1 [-2, -0.3] hybrid-splade-1"]], "latex")
    text = "\n".join([COMPARED.to_latex(characters), strange, COMPARED.to_latex()])
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{'\n'}{text}{'\n'}\end{{document}}"
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0 and (tmp_path / "table.pdf").exists(), done.stdout[-2000:]


def test_values_of_queries_are_compared() -> None:
    values = {"a": [0.0, 0.0] + [0.25] * 8, "b": [1.0, 1.0] + [0.25] * 8}
    per_query = {name: {"AP": {f"q{n}": v for n, v in enumerate(row)}} for name, row in values.items()}
    compared = Compared.of(per_query, "a")
    found = compared.comparisons["b"]
    # Differences 1, 1 and eight times 0: t = 1.5 with 9 degrees of freedom. Of the permutations, half have two equal
    # signs. Ten draws from the differences are all 0 with a chance of 10.7%; at least 5 are 1 with one of 3.3%, at
    # least 6 with one of .6%.
    assert found.p == pytest.approx(0.1679, abs=5e-5) and found.p_randomization == 0.5
    assert found.effect == pytest.approx(1.5 / 10**0.5) and found.interval == pytest.approx((0, 0.5))
    assert compared.systems == {"a": {"AP": pytest.approx(0.2)}, "b": {"AP": pytest.approx(0.4)}}
    assert [*compared.changes("b").items()][:3] == [("q0", 1.0), ("q1", 1.0), ("q2", 0.0)]
    assert " 2, 0, 8\n" in str(compared)
    assert compared.by_query().splitlines()[:2] == ["query\trun\tmeasure\tvalue", "q0\ta\tAP\t0.0"]
    back = Compared.of(per_query, "b").comparisons["a"]
    assert (back.difference, back.effect) == (-found.difference, pytest.approx(-found.effect))
    assert back.p == found.p and back.interval == pytest.approx((-0.5, 0))
    assert json.loads(json.dumps(compared.data()))["pairs"]["a"]["b"]["p"] == found.p
