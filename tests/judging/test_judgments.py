"""The database of judgments, qrels, agreement and verdict: worked examples."""

import re
import sqlite3
from pathlib import Path

import pytest

from cai_pyserini.cli.judge import RUBRIC, main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.judgments import Judgment, Judgments, qrels_of
from cai_pyserini.judging.pool import stored_texts
from cai_pyserini.judging.verdict import agreement, verdict
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.trec import run_of


@pytest.fixture
def judgments(tmp_path: Path) -> Judgments:
    return Judgments(tmp_path / "judgments.sqlite", RUBRIC)


def judged(*grades: tuple[str, int], document: str = "d1") -> list[Judgment]:
    return [Judgment("q1", document, judge, grade) for judge, grade in grades]


def test_undone_or_corrected_grades_do_not_count_but_stay(judgments: Judgments, tmp_path: Path) -> None:
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
    other = Judgments(tmp_path / "judgments.sqlite")  # like another process
    assert other.all() == [Judgment("q1", "d1", "ben", 0)] and other.judges() == ["ana", "ben"]
    with sqlite3.connect(tmp_path / "judgments.sqlite") as database:
        rows = database.execute("SELECT judge, grade, time, undoes FROM judgments ORDER BY number").fetchall()
    assert [(judge, grade, undoes) for judge, grade, _, undoes in rows] == [
        ("ana", 1, None), ("ben", 0, None), ("ana", 3, None), ("ana", None, None),
        ("ana", None, 4), ("ana", None, 3), ("ana", None, 1),
    ]  # fmt: skip
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for _, _, time, _ in rows)


@pytest.mark.parametrize(("grades", "expected"), [([3, 1, 1], 1), ([2, 1], 1), ([0, 0, 1], 0), ([1, 2, 2, 0, 0], 0)])
def test_the_majority_of_several_judges_counts(grades: list[int], expected: int) -> None:
    given = judged(*((f"judge {number}", grade) for number, grade in enumerate(grades)))
    assert qrels_of(given) == {"q1": {"d1": expected}}


TOPICS = {"q1": "does fiber help", "q2": "salt"}
STORED = {id: Stored(id, "", f"the text of {id}") for id in ("d1", "d2", "d3")}


def test_a_grade_counts_only_for_the_texts_that_were_judged(judgments: Judgments, tmp_path: Path) -> None:
    """The faults: the grade of an edited text, of a deleted document, or of another collection's query
    with the same id counts; a document is not judged again, or its new grade is merged with the old one."""
    judgments.limit_to(TOPICS, STORED.get)
    for query in TOPICS:
        for document in STORED:
            judgments.add(query, document, "ana", 3)
    judgments.add("q1", "d1", "ben", None)
    other = Judgments(tmp_path / "judgments.sqlite")
    other.limit_to(
        {"q1": " does fiber  help", "q2": "sugar"},
        {"d1": Stored("d1", "", "the text  of d1"), "d2": Stored("d2", "", "another text")}.get,
    )
    assert [row[:4] for row in other.all()] == [("q1", "d1", "ana", 3)]  # white space does not matter
    assert other.counts() == {"q1": 1} and other.of("ana") == {"q1": {"d1": 3}}
    assert len(other.outdated()) == 5 and (other.left_out() or "").startswith("5 grades do not count")
    other.add("q1", "d2", "ana", 0)
    assert other.of("ana") == {"q1": {"d1": 3, "d2": 0}} and len(other.outdated()) == 4
    assert judgments.of("ana")["q1"]["d2"] == 3, "another collection has another text"
    assert judgments.undo("ana") == ("q2", "d3")
    assert other.limit_to({}, STORED.get) is None and not other.all()


def test_the_rubric_belongs_to_the_database(tmp_path: Path, run_folder: Path) -> None:
    path = tmp_path / "judgments.sqlite"
    assert Judgments(path, ["no", "it's it"]).rubric == ["no", "it's it"]
    assert Judgments(path, RUBRIC).rubric == Judgments(path).rubric == ["no", "it's it"]
    arguments = ["serve", str(run_folder), "--systems", "bm25", "--database", str(path)]
    with pytest.raises(CaiError, match=r"have another meaning \(no, it's it\): leave --rubric out, or choose another"):
        main([*arguments, "--rubric", "it's it", "no"])


@pytest.mark.parametrize("name", ["judged.tsv", "judged.txt", "judged.qrels"])
def test_exported_qrels_are_those_of_a_collection(
    judgments: Judgments, run_folder: Path, broken: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = stored_texts(RunFolder(run_folder), {"d1", "d2", "d4"})
    judgments.limit_to(RunFolder(run_folder).topics, stored)
    for judge, grade in (("ana", 3), ("ben", 3), ("cleo", 2)):
        judgments.add("q1", "d1", judge, grade)
    judgments.add("q2", "d4", "ben", 0)
    judgments.add("q3", "d4", "ben", None)
    output = broken / "qrels" / name
    arguments = ["export", str(run_folder), str(broken.parent / "judgments.sqlite"), "--output", str(output)]
    main(arguments)
    assert capsys.readouterr().out == f"{output}: 2 judgments of 2 queries\n"
    assert BeirFolder(broken, "tiny").qrels("judged") == {"q1": {"d1": 3}, "q2": {"d4": 0}}
    judgments.limit_to({"q1": "another collection's query"}, stored)
    judgments.add("q1", "d2", "ben", 3)
    main(arguments)
    assert "\n1 grades do not count: query or document had another text" in capsys.readouterr().out
    assert BeirFolder(broken, "tiny").qrels("judged") == {"q1": {"d1": 3}, "q2": {"d4": 0}}


def test_files_that_are_refused(tmp_path: Path, run_folder: Path) -> None:
    """The fault: tables are made in a database of another program."""
    (tmp_path / "text").write_text("this is no database, " * 100)
    sqlite3.connect(tmp_path / "other").executescript("CREATE TABLE bookmarks (x)")
    reasons = {"none": "no file .*none", "text": "not a database", "other": "no such"}
    for name, reason in reasons.items():
        before = (tmp_path / name).read_bytes() if name != "none" else b""
        with pytest.raises(CaiError, match=reason):
            main(["agree", str(tmp_path / name)])
        if name != "none":
            with pytest.raises(CaiError, match=reason):
                Judgments(tmp_path / name, RUBRIC)
            assert (tmp_path / name).read_bytes() == before
    empty = Judgments(tmp_path / "empty", RUBRIC)
    arguments = ["export", str(run_folder), str(tmp_path / "empty"), "--output", str(tmp_path / "qrels.json")]
    with pytest.raises(CaiError, match="empty has no grade: make some with"):
        main(arguments)
    empty.add("q1", "d1", "ana", 1)  # of an unknown text
    with pytest.raises(CaiError, match=r"empty has no grade: 1 grades do not count.*judge them again"):
        main(arguments)
    empty.limit_to(RunFolder(run_folder).topics, stored_texts(RunFolder(run_folder), {"d1"}))
    empty.add("q1", "d1", "ana", 1)
    with pytest.raises(CaiError, match=r"qrels\.json: its name should end with \.txt"):
        main(arguments)
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")  # of a collection
    with pytest.raises(CaiError, match=r"test\.tsv is a file that this command has not made"):
        main([*arguments[:-1], str(tmp_path / "test.tsv")])
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(run_folder), "bm25", "bm25", str(tmp_path / "empty")])


def test_agreement_worked_example() -> None:
    """50 documents: 20 both 1, 15 both 0, 5 and 10 apart. Observed .7, expected .5: kappa .4 (Wikipedia's example)."""
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    rows = [row for n, (a, b) in enumerate(pairs) for row in judged(("ana", a), ("ben", b), document=f"d{n}")]
    assert agreement(rows).splitlines()[2].split() == ["ana", "and", "ben", "50", "70%", "0.400", "0.400"]
    assert "too few" not in agreement(rows) and "too few" in agreement(rows[:40])
    # 20 times 3 and 3, 10 times 0 and 0, 10 times 0 and 1, nobody gave 2. Squared differences: 10 are observed
    # and 160 expected; with ranks among the used grades, 70 would be.
    far = [
        row
        for n in range(40)
        for row in judged(("ana", 3 * (n % 2)), ("ben", 3 if n % 2 else n % 4 // 2), document=f"d{n}")
    ]
    assert agreement(far).splitlines()[2].split()[-2:] == ["0.600", "0.938"]
    assert agreement(judged(("ana", 1), ("ben", 1))).splitlines()[2].split()[-2:] == ["–", "–"]
    assert agreement(judged(("ana", 1))) == "no document has the grades of two judges"
    apart = [Judgment("q1", "d1", judge, 1, texts=judge) for judge in ("ana", "ben")]  # they read different texts
    assert agreement(apart) == "no document has the grades of two judges"


def runs(queries: int, better: int) -> tuple[dict[str, Rankings], dict[str, dict[str, int]]]:
    """Runs a and b with the relevant document at rank 2, but for `b` at rank 1 for `better` queries, and qrels."""
    made = {}
    for name in "ab":
        ranked = {
            f"q{number}": ["good", "bad"] if name == "b" and number < better else ["bad", "good"]
            for number in range(queries)
        }
        made[name] = run_of({query: [*zip([*ids, "new"], (3, 2, 1), strict=True)] for query, ids in ranked.items()})
    return made, {f"q{number}": {"good": 1, "bad": 0} for number in range(queries)}


def test_verdict_worked_example() -> None:
    """Differences in nDCG are 1 - 1 / log2(3) = .3691 for 2 of 20 queries: mean .0369, standard deviation .1136."""
    lines = verdict(*runs(20, 2), 0.1).splitlines()
    assert lines[0].split(maxsplit=1) == ["system", "nDCG@10 of judged documents      95% interval"]
    (compared,) = [line.split() for line in lines if line.startswith("b ") and "2, 0, 18" in line]
    assert compared[:3] == ["b", "+0.0369", "[+0.0000,"] and compared[4] == "+0.32"
    assert "unjudged of the best 10: a 33.3%, b 33.3%" in lines
    # (1.960 + .8416)² · (.1136 / .0369)² = 74.3, and (.1136 / .1)² · 7.849 = 10.1
    assert [line.strip() for line in lines[-2:]] == [
        "a difference of 0.0369 as observed: 75 queries, 55 more",
        "a difference of 0.1000: 11 queries, 0 more",
    ]


def test_a_verdict_needs_queries_and_differences() -> None:
    made, qrels = runs(20, 12)
    assert verdict(made, qrels, 0.02).endswith("decided: b is better, p < 0.05")
    assert verdict({name: made[name] for name in "ba"}, qrels, 0.02).endswith("decided: b is better, p < 0.05")
    few = {query: qrels[query] for query in list(qrels)[:9]}
    assert verdict(made, few, 0.02).splitlines()[-1].startswith("not decided; judge at least 10 queries")
    assert "not decided; judge" in verdict({"a": made["a"], "c": made["a"]}, qrels, 0.02)
    none = {query: {"bad": 0} for query in qrels}
    assert "20 queries have no relevant document" in verdict(made, none, 0.02)


def test_queries_without_hits_have_nothing_unjudged() -> None:
    """The fault: a query without hits counts as ten unjudged hits."""
    made, qrels = runs(4, 0)
    some = made["b"][made["b"].queries == made["b"].query_ids.index("q0")]
    lines = verdict({"a": made["a"], "b": some}, qrels | {"q9": {"good": 1}}, 0.02).splitlines()
    assert (
        "unjudged of the best 10: a 33.3%, b 33.3%" in lines and "1 queries have no hits, and count 0 for both" in lines
    )
    assert "a 33.3%, b no hits" in verdict({"a": made["a"], "b": some[some.queries < 0]}, qrels, 0.02)
