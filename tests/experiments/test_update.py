"""Whole updates of a real run, compared with runs from scratch."""

import json
from http.server import HTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from cai_pyserini.cli.judge import main as judge
from cai_pyserini.cli.run import main as beir
from cai_pyserini.cli.update import main
from cai_pyserini.core import artifact, steps
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY as KEY
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments import versions
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import plan
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.update import evaluate, reload, update
from cai_pyserini.judging.judgments import Judgments
from cai_pyserini.judging.pool import stored_texts
from cai_pyserini.runs.trec import read_run, scores_by_query
from cai_pyserini.vectors.cache import VARIABLE
from tests.conftest import DATA
from tests.experiments.conftest import SYSTEMS, change, on_collection
from tests.servers import Handler, answering
from tests.service.conftest import served

pytestmark = pytest.mark.slow
CHANGED = "added 1, changed 1, deleted 1 of 12 documents"


def hits_of(run: Path, system: str, query: str = "bladder infection") -> dict[str, float]:
    """Document id -> score."""
    engine = Run(run).open(system)
    try:
        return {hit.id: hit.score for hit in engine.search([query], 20)[0]}
    finally:
        engine.close()


def scores(run: Path, system: str) -> dict[str, dict[str, float]]:
    return scores_by_query(read_run(run / "runs" / f"{parse_system(system).long_name}.trec"))


def out_of_date(run: Path) -> list[str]:
    """The steps that are not up to date."""
    opened = RunFolder(run)
    again = RunFolder(run, opened.experiment, earlier=opened)
    return [step.name for step, reason in steps.plan(plan(again, opened.systems)) if reason]


def test_documents_in_a_new_language_are_named(run: Path, broken: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The fault: they are split into the words of the run's languages, and nothing says why they are not found."""
    with (broken / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write((DATA / "ja" / "corpus.jsonl").read_text(encoding="utf-8"))
    assert [*update(run, dry_run=True)] == ["added 60, changed 0, deleted 0 of 12 documents"]
    assert "documents are also in ja, but the run splits words as in en" in caplog.text
    assert "with the setting language en+ja" in caplog.text


def test_a_run_that_is_up_to_date_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}
    main([str(run)])
    assert capsys.readouterr().out == f"{run} is up to date\n"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"} == before
    assert list(run.parent.iterdir()) == [run]


def test_an_updated_run_equals_one_from_scratch(
    run: Path, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: a document that has not changed is encoded again, or gets the vector of another; one of the old
    collection is found, or one of the new is not; IDF, alpha or scores are those of the old one; a path of a
    configuration names the folder where the run was made."""
    monkeypatch.setenv(VARIABLE, "")
    change(broken)
    earlier = RunFolder(run).results
    main([str(run), "--dry-run"])
    assert list(run.parent.iterdir()) == [run] and not (run / "versions").exists()
    main([str(run), "--evaluate"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{CHANGED}\n") and f"\n{CHANGED}\n" in printed
    assert "- non-zeros per document: " in (run / "report.md").read_text()
    assert artifact.require(run / "vectors" / "documents", "encode").stats["found"] == 10
    beir([str(broken), "--output", str(tmp_path / "scratch"), "--systems", *SYSTEMS])
    updated, scratch = RunFolder(run).results, RunFolder(tmp_path / "scratch").results
    for name in SYSTEMS:
        ours = scores(run, name)
        assert ours == scores(tmp_path / "scratch", name) and "new" in ours["q2"]
        assert not any("d12" in hits for hits in ours.values())
        assert updated.systems[name]["nDCG@10"] == scratch.systems[name]["nDCG@10"]
    assert updated.alpha == scratch.alpha
    assert updated.counts == scratch.counts and updated.settings == earlier.settings
    assert not out_of_date(run)
    assert f"\n- {CHANGED}\n" in (run / "report.md").read_text()
    (before,) = versions.earlier(run)
    assert RunFolder(before).results == earlier
    assert "d12" in hits_of(before, "bm25", "naïve") and not hits_of(run, "bm25", "naïve")
    assert before == run / "versions" / "1" and list(run.parent.iterdir()) == [run]


def test_scores_of_the_earlier_collection_are_not_shown(
    run: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The faults: results.json has old scores; a system is no longer served, or the best no longer first; an
    evaluation after the update encodes again; judgments cannot be used, or those of an edited document count."""
    database, texts = run / "judgments.sqlite", RunFolder(run)
    judgments = Judgments(database, ["no", "yes"])
    judgments.limit_to(texts.topics, stored_texts(texts, ["d1", "d2"]))
    for document in ("d1", "d2"):
        judgments.add("q1", document, "ana", 1)
    change(broken)
    best_first = Run(run).systems
    list(update(run))
    assert "\nmade without evaluation: nothing is searched or evaluated; " in (run / "report.md").read_text()
    results = RunFolder(run).results
    assert not any(results.systems.values()) and not results.best and not any((run / "runs").iterdir())
    assert Run(run).systems == best_first and "new" in hits_of(run, "hybrid-splade-idf-minmax")
    documents = (run / "vectors" / "documents" / "manifest.json").stat().st_ino
    assert list(update(run)) == [f"{run} is up to date"]
    evaluate(run)
    assert RunFolder(run).results.scored and "d12" not in hits_of(run, "bm25", "Größe")
    judge(["compare", str(run), "bm25", "splade-idf", str(database)])
    printed = capsys.readouterr().out
    assert "\n1 queries\n" in printed and "\n1 grades do not count: " in printed
    assert (run / "vectors" / "documents" / "manifest.json").stat().st_ino == documents


def test_adapted_encoders_stay_as_they_are(adapted_run: Path, broken: Path, tmp_path: Path) -> None:
    """The faults: the encoder is trained again, or the IDF of its documents stays that of the old collection."""
    run = on_collection(adapted_run, broken, tmp_path / "runs" / "adapted", ["dense", "adapted-joint"])
    change(broken)
    before = artifact.require(run / "adapted", "adapt")
    (run / "update.json").write_text(json.dumps({"adaptation": {"created": before.created, "new": 1 / 12}}))
    lines = list(update(run))
    assert artifact.require(run / "adapted", "adapt") == before
    share = "25.0% of the documents; by the rule of thumb (above 20%), adapt it again"
    assert any(line.startswith("the encoder stays as adapted on ") and share in line for line in lines)
    assert "new" in hits_of(run, "adapted-joint") and "new" in hits_of(run, "dense")
    assert artifact.require(run / "adapted-idf", "idf").created > before.created
    assert json.loads((run / "update.json").read_text())["adaptation"]["new"] == pytest.approx(3 / 12)


def test_a_service_takes_the_new_run_over(
    run: Path, broken: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault: the service goes on with the old run."""

    def found(address: str) -> list[str]:
        url = f"{address}v1/joint/search?query=bladder+infection&hits=20"
        with urlopen(Request(url, headers={"X-API-Key": "sesame"}), timeout=60) as response:
            return [each["docid"] for each in json.load(response)["candidates"]]

    with served(run, "joint", key="sesame") as address:
        assert "new" not in found(address)
        change(broken)
        with monkeypatch.context() as patch:
            patch.setenv(KEY, "sesame")
            main([str(run), "--reload", address])
        assert "new" in found(address)
        assert capsys.readouterr().out.endswith(f"\n{address} has reopened joint\n")
        with pytest.raises(CaiError, match="has not reopened the run, which is up to date: HTTP 401: "):
            reload(address)
    with pytest.raises(CaiError, match="has not reopened the run, which is up to date: "):
        reload(address)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(302, "HTTP 302: /other"), (200, "no service"), (500, r"HTTP 500: X-API-Key: \*\*\* is wrong")],
)
def test_a_key_goes_to_the_service_alone(monkeypatch: pytest.MonkeyPatch, status: int, reason: str) -> None:
    """The faults: what a redirect names gets the key; the command says that the service has reopened its indexes; it
    prints the key that an answer repeats."""
    monkeypatch.setenv(KEY, "sesame")
    asked: list[str] = []

    class Elsewhere(Handler):
        def do_POST(self) -> None:
            asked.append(self.path)
            body = b"X-API-Key: sesame is wrong" if status == 500 else b'{"found": []}'
            self.answer(status, body, {"Location": "/other"} if status == 302 else {})

    message = f"has not reopened the run, which is up to date: {reason}"
    with answering(HTTPServer(("127.0.0.1", 0), Elsewhere)) as server, pytest.raises(CaiError, match=message):
        reload(f"http://127.0.0.1:{server.server_port}/")
    assert asked == ["/reload"]
