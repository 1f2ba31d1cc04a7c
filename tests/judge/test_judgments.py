"""The database of judgments, qrels, agreement and verdict: worked examples."""

import re
import sqlite3
from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.judge.__main__ import main
from cai_pyserini.judge.judgments import Judged, Judgments, qrels_of
from cai_pyserini.judge.verdict import agreement, verdict


@pytest.fixture
def judgments(tmp_path: Path) -> Judgments:
    return Judgments(tmp_path / "judgments.sqlite", new=True)


def judged(*grades: tuple[str, int], document: str = "d1") -> list[Judged]:
    return [Judged("q1", document, judge, grade) for judge, grade in grades]


def test_what_was_undone_or_corrected_does_not_count_and_is_kept(judgments: Judgments, tmp_path: Path) -> None:
    judgments.add("q1", "d1", "ana", 1)
    judgments.add("q1", "d1", "ana", 1)  # a key pressed twice
    judgments.add("q1", "d1", "ben", 0)
    judgments.add("q1", "d1", "ana", 3)
    judgments.add("q1", "d2", "ana", None)
    assert judgments.of("ana") == {"q1": {"d1": 3, "d2": None}} and judgments.counts() == {"q1": 2}
    assert judgments.undo("ana") == ("q1", "d2") and judgments.of("ana") == {"q1": {"d1": 3}}
    assert judgments.undo("ana") == ("q1", "d1") and judgments.of("ana") == {"q1": {"d1": 1}}
    assert judgments.undo("ana") == ("q1", "d1") and judgments.of("ana") == {}
    assert judgments.undo("ana") is None and judgments.of("ben") == {"q1": {"d1": 0}}
    other = Judgments(tmp_path / "judgments.sqlite")  # as another process has it
    assert other.all() == [Judged("q1", "d1", "ben", 0)] and other.judges() == ["ana", "ben"]
    with sqlite3.connect(tmp_path / "judgments.sqlite") as database:
        rows = database.execute("SELECT judge, grade, time, undoes FROM judgments ORDER BY number").fetchall()
    assert [(judge, grade, undoes) for judge, grade, _, undoes in rows] == [
        ("ana", 1, None), ("ben", 0, None), ("ana", 3, None), ("ana", None, None),
        ("ana", None, 4), ("ana", None, 3), ("ana", None, 1),
    ]  # fmt: skip
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for _, _, time, _ in rows)


@pytest.mark.parametrize(
    ("grades", "expected"),
    [
        ([3, 1, 1], {"majority": 1, "mean": 2, "max": 3, "last": 1}),
        ([2, 1], {"majority": 1, "mean": 2, "max": 2, "last": 1}),
        ([0, 0, 1], {"majority": 0, "mean": 0, "max": 1, "last": 1}),
    ],
)
def test_several_judges_make_one_grade(grades: list[int], expected: dict[str, int]) -> None:
    given = judged(*((f"judge {number}", grade) for number, grade in enumerate(grades)))
    assert {rule: qrels_of(given, rule) for rule in expected} == {
        rule: {"q1": {"d1": grade}} for rule, grade in expected.items()
    }


@pytest.mark.parametrize("name", ["judged.tsv", "judged.txt", "judged.qrels"])
def test_exported_qrels_are_those_of_a_collection(
    judgments: Judgments, broken: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for judge, grade in (("ana", 3), ("ben", 2)):
        judgments.add("q1", "d1", judge, grade)
    judgments.add("q2", "d4", "ben", 0)
    judgments.add("q3", "d4", "ben", None)
    output = broken / "qrels" / name
    main(["export", str(broken.parent / "judgments.sqlite"), "--output", str(output), "--rule", "max"])
    assert capsys.readouterr().out == f"{output}: 2 judgments of 2 queries\n"
    assert BeirFolder(broken, "tiny").qrels("judged") == {"q1": {"d1": 3}, "q2": {"d4": 0}}


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, " * 100)
    sqlite3.connect(tmp_path / "other").executescript("CREATE TABLE judgments (x)")
    for name, reason in (("none", "no file .*none"), ("text", "not a database"), ("other", "no such")):
        with pytest.raises(CaiError, match=reason):
            main(["agree", str(tmp_path / name)])
    Judgments(tmp_path / "empty", new=True)
    with pytest.raises(CaiError, match=r"qrels\.json: its name should end with \.txt"):
        main(["export", str(tmp_path / "empty"), "--output", str(tmp_path / "qrels.json")])
    with pytest.raises(CaiError, match="no judgments yet"):
        main(["compare", str(tmp_path), "a", "b", str(tmp_path / "empty")])


def test_agreement_worked_example() -> None:
    """50 documents: 20 both 1, 15 both 0, 5 and 10 apart. Observed .7, expected .5: kappa .4 (Wikipedia's example)."""
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    rows = [row for n, (a, b) in enumerate(pairs) for row in judged(("ana", a), ("ben", b), document=f"d{n}")]
    assert agreement(rows).splitlines()[2].split() == ["ana", "and", "ben", "50", "70%", "0.400", "0.400"]
    assert "too few" not in agreement(rows) and "too few" in agreement(rows[:40])
    # 20 times 3 and 3, 10 times 0 and 0, 10 times 0 and 1, nobody gave 2. By squares of differences, 10 are observed
    # and 160 expected; by ranks among the grades that occur, 70 would be.
    far = [
        row
        for n in range(40)
        for row in judged(("ana", 3 * (n % 2)), ("ben", 3 if n % 2 else n % 4 // 2), document=f"d{n}")
    ]
    assert agreement(far).splitlines()[2].split()[-2:] == ["0.600", "0.938"]
    assert agreement(judged(("ana", 1), ("ben", 1))).splitlines()[2].split()[-2:] == ["–", "–"]
    assert agreement(judged(("ana", 1))) == "no document has the grades of two judges"


def runs(folder: Path, queries: int, better: int) -> dict[str, dict[str, int]]:
    """Runs a and b with the relevant document at rank 2, but for `b` at rank 1 for `better` queries, and qrels."""
    (folder / "runs").mkdir()
    for name in "ab":
        lines = []
        for number in range(queries):
            ranked = ["good", "bad"] if name == "b" and number < better else ["bad", "good"]
            lines += [f"q{number} Q0 {id} {rank} {-rank} x\n" for rank, id in enumerate([*ranked, "new"], 1)]
        (folder / "runs" / f"{name}.trec").write_text("".join(lines))
    return {f"q{number}": {"good": 1, "bad": 0} for number in range(queries)}


def test_verdict_worked_example(tmp_path: Path) -> None:
    """Differences in nDCG are 1 - 1 / log2(3) = .3691 for 2 of 20 queries: mean .0369, standard deviation .1136."""
    lines = verdict(tmp_path, "a", "b", runs(tmp_path, 20, 2), 0.1).splitlines()
    assert lines[0] == "A: a, mean nDCG@10 of judged documents 0.6309"
    assert lines[2].startswith("B - A: +0.0369, 95% confidence interval +0.0000 to +0.0")
    assert lines[5] == "unjudged of the best 10: a 33.3%, b 33.3%"
    # (1.960 + .8416)² · (.1136 / .0369)² = 74.3, and (.1136 / .1)² · 7.849 = 10.1
    assert [line.strip() for line in lines[-2:]] == [
        "a difference of 0.0369 as observed: 75 queries, 55 more",
        "a difference of 0.1000: 11 queries, 0 more",
    ]


def test_a_verdict_needs_queries_and_differences(tmp_path: Path) -> None:
    qrels = runs(tmp_path, 20, 12)
    assert verdict(tmp_path, "a", "b", qrels, 0.02).endswith("decided: b is better, p < 0.05")
    assert verdict(tmp_path, "b", "a", qrels, 0.02).endswith("decided: b is better, p < 0.05")
    few = {query: qrels[query] for query in list(qrels)[:9]}
    assert verdict(tmp_path, "a", "b", few, 0.02).splitlines()[-1].startswith("not decided; judge at least 10 queries")
    assert "not decided; judge" in verdict(tmp_path, "a", "a", qrels, 0.02)
    none = {query: {"bad": 0} for query in qrels}
    assert "20 queries have no relevant document" in verdict(tmp_path, "a", "b", none, 0.02)
