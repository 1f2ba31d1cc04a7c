"""Whole updates of a real run, compared with runs from scratch."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
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
from tests.experiments.conftest import SYSTEMS, change, on_collection
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
    main([str(run), "--evaluate"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{CHANGED}\n")
    assert "- since the earlier run, IDF has moved by 0." in (run / "report.md").read_text()
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
    judge(["compare", str(run), "bm25", "splade-idf", str(database)])
    printed = capsys.readouterr().out
    assert "\nof 1 queries, B wins" in printed and "\n1 grades do not count: " in printed
    documents = (run / "vectors" / "documents" / "manifest.json").stat().st_ino
    assert list(update(run)) == [f"{run} is up to date"]
    evaluate(run)
    assert RunFolder(run).results.scored and "d12" not in hits_of(run, "bm25", "Größe")
    assert (run / "vectors" / "documents" / "manifest.json").stat().st_ino == documents


def test_what_would_be_done(run: Path, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(broken)
    main([str(run), "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == CHANGED and any(line.startswith("index joint-splade-idf ") for line in lines[1:])
    assert list(run.parent.iterdir()) == [run]


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


@contextmanager
def requests(url: str) -> Iterator[list[list[str]]]:
    """Meanwhile, two clients ask again and again, and one at the end: the ids of each answer."""
    answers: list[list[str]] = []
    over = threading.Event()

    def ask() -> list[str]:
        with urlopen(Request(url, headers={"X-API-Key": "sesame"}), timeout=60) as response:
            return [each["docid"] for each in json.load(response)["candidates"]]

    def ask_on() -> None:
        while not over.wait(0.1):
            answers.append(ask())

    answers.append(ask())  # loads the model
    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask_on) for _ in range(2)]
        try:
            yield answers
        finally:
            over.set()
        for client in clients:
            client.result()
    answers.append(ask())


def test_a_service_takes_the_new_run_over_without_losing_a_request(
    run_of_two: Path, broken: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The faults: a request fails while files move, or during the reload; the service goes on with the old run."""
    with served(run_of_two, "joint", key="sesame") as address:
        with requests(f"{address}v1/joint/search?query=bladder+infection&hits=20") as answers:
            change(broken)
            with monkeypatch.context() as patch:
                patch.setenv(KEY, "sesame")
                main([str(run_of_two), "--reload", address])
        assert "new" not in answers[0] and "new" in answers[-1] and len(answers) > 4
        assert capsys.readouterr().out.endswith(f"\n{address} has reopened joint\n")
        with pytest.raises(CaiError, match="has not reopened the run, which is up to date: HTTP Error 401"):
            reload(address)
    with pytest.raises(CaiError, match="has not reopened the run, which is up to date: "):
        reload(address)


@pytest.mark.parametrize(
    ("status", "reason"), [(302, r"HTTP Error 302: .* it is at http://127"), (308, "it is at"), (200, "no service")]
)
def test_a_key_goes_to_the_service_alone(monkeypatch: pytest.MonkeyPatch, status: int, reason: str) -> None:
    """The fault: what a redirect names gets the key, and the command says that the service has reopened its indexes."""
    monkeypatch.setenv(KEY, "sesame")
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(status if self.path == "/reload" else 200)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/other")  # type: ignore[attr-defined]
            self.end_headers()
            self.wfile.write(b'{"found": []}')

        do_POST = do_GET

        def log_message(self, *of: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(CaiError, match=f"has not reopened the run, which is up to date: .*{reason}"):
            reload(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert asked == ["POST /reload"]


def test_a_full_disk_leaves_the_run_as_it_was(
    mounting: list[str], run_folder: Path, broken: Path, tmp_path: Path
) -> None:
    run = on_collection(run_folder, broken, tmp_path / "tiny", ["bm25"])
    change(broken)
    disk, pages = tmp_path / "disk", sum(-(-path.stat().st_size // 4096) for path in run.rglob("*") if path.is_file())
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=$1 tmpfs "$2" || exit 77; cp -r "$3" "$2/run" && "$4" -m cai_pyserini update "$2/run"'
    )
    script += '; diff -rq -x .lock -x versions "$3" "$2/run" && ls "$2/run/versions"'
    arguments = [str((pages + 8) * 4096), str(disk), str(run), sys.executable]
    done = subprocess.run([*mounting, script, "sh", *arguments], capture_output=True, text=True, check=False)
    assert "o space left on" in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 0 and done.stdout.splitlines()[-2:] == ["2", "current"], done.stdout
