"""`cai-pyserini search`: by hand, and which settings go together."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cai_pyserini.cli.search import main
from cai_pyserini.core.errors import CaiError
from tests.conftest import stage_command

make_index = stage_command("index")

Output = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_a_query_is_answered_with_title_snippet_and_terms(run_folder: Path, capsys: Output) -> None:
    main([str(run_folder), "phytate and cancer", "--system", "joint", "--hits", "1"])
    hit, snippet, values, terms, end = capsys.readouterr().out.split("\n", 4)
    assert end == "\n"
    assert re.fullmatch(r"  1\. \d+\.\d{4}  d1  Phytate and colon cancer", hit)
    assert snippet.strip().startswith("Dietary phytate, found in the bran of cereals")
    assert values.strip() == "year: 1998"
    assert re.search(r"bm25:phytat [\d.]+ · .*cancer [\d.]+ · \d+ more [\d.]+$", terms)


@pytest.mark.slow
def test_hits_as_json(run_folder: Path, capsys: Output) -> None:
    index = str(run_folder / "indexes" / "splade-idf")
    main([index, "bladder", "salt", "--hits", "2", "--format", "json"])
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(hit["query"], hit["rank"]) for hit in hits] == [("bladder", 1), ("bladder", 2), ("salt", 1), ("salt", 2)]
    assert hits[0]["id"] == "d4" and hits[0]["title"] == "Urinary tract infection"
    assert sum(hits[0]["terms"].values()) == pytest.approx(hits[0]["score"], abs=1e-3)

    main([str(run_folder), "bladder", "--system", "hybrid-splade-idf", "--format", "json", "--hits", "1"])
    assert set(json.loads(capsys.readouterr().out)["parts"]) == {"bm25", "splade-idf"}


@pytest.mark.slow
@pytest.mark.parametrize("dash", [[], ["-"]])
def test_queries_come_from_the_standard_input(
    run_folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, dash: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("bladder infection\n\nsalt restriction\n"))
    main([str(run_folder), *dash, "--system", "bm25", "--hits", "1", "--format", "json"])
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["d4", "d5"]


def test_what_is_wrong_with_queries_is_said_before_an_index_is_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(CaiError, match="standard input has no queries"):
        main(["nowhere"])
    with caplog.at_level("INFO", "cai_pyserini"), pytest.raises(CaiError, match="nowhere"):
        main(["nowhere", "high", "blood", "pressure"])
    assert caplog.messages == ['these are 3 queries; a query of several words needs quotes: "high blood pressure"']


@pytest.mark.slow
def test_what_is_not_utf_8_is_an_error_in_one_line(run_folder: Path) -> None:
    where = [str(run_folder), "--system", "bm25"]
    for arguments in (["caf\udce9"], ["coffee", "--filter", "year:\udce9"], ["\udce9"]):
        with pytest.raises(CaiError, match=r"the argument '.*\\udce9' is not UTF-8; convert it"):
            main([*where, *arguments])
    command = [sys.executable, "-m", "cai_pyserini", "search", *where]
    environment = os.environ | {"LC_ALL": "C.UTF-8"}  # in POSIX, Python reads anything
    done = subprocess.run(command, input=b"caf\xe9\n", capture_output=True, env=environment)
    assert done.returncode == 1
    assert re.fullmatch(rb"error: the query 'caf\\udce9' is not UTF-8; .*\n", done.stderr), done.stderr


@pytest.mark.slow
def test_one_types_queries_on_a_terminal(run_folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pytest.importorskip("pty").openpty()
    os.write(ours, b"bladder\nxyzzy\n\n")
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        main([str(run_folder), "--system", "bm25", "--hits", "1"])
    os.close(ours)
    out, err = capsys.readouterr()
    assert "searching with bm25; an empty line ends" in err
    assert "d4  Urinary tract infection" in out and out.endswith("> no hits\n\n> ")


@pytest.mark.slow
def test_a_document_cannot_write_to_the_terminal(
    java: None, tmp_path: Path, on_terminal: Callable[..., str], capsys: Output
) -> None:
    text = "bladder \x1b[31mred\x1b[0m \x1b[1mbold\x1b[0m \x9b2J \u202eright to left"  # whose mark is not stored
    record = {"_id": "d\x1b[2J", "title": "one\n  2. 9.9999  d2\r\x1b]0;title\x07", "text": text}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(record))
    search = [str(tmp_path / "index"), "bladder"]
    make_index(["bm25", "--collection", str(tmp_path / "corpus.jsonl"), "--output", search[0]])
    got = on_terminal(sys.executable, "-m", "cai_pyserini", "search", *search)
    assert "\x1b[1mbladder\x1b[0m" in got  # ours
    assert r"\u001b[31mred\u001b[0m \u001b[1mbold\u001b[0m \u009b2J right to left" in got
    assert re.search(r"^  1\. \d\.\d{4}  d\\u001b\[2J  one 2\. 9\.9999 d2\\u000d\\u001b\]0;title\\u0007$", got, re.M)
    assert not re.search(r"\x1b(?!\[[01]m)|[\x07\x9b\u202e]", got)
    capsys.readouterr()
    main([*search, "--format", "json"])
    assert json.loads(capsys.readouterr().out)["snippet"] == text.replace("\u202e", "")


def test_a_mistyped_flag_is_answered_by_the_nearest(capsys: Output) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["r", "text", "--sytem", "s"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "unrecognized arguments: --sytem s; did you mean --system?" in line


@pytest.mark.slow
def test_flags_of_an_index_are_refused_for_a_run_and_others_for_an_index(run_folder: Path) -> None:
    with pytest.raises(CaiError, match="is a run folder: --encoder and --query are of an index"):
        main([str(run_folder), "text", "--encoder", "minilm"])
    with pytest.raises(CaiError, match="bm25 is an index: --system is of a run folder"):
        main([str(run_folder / "indexes" / "bm25"), "text", "--system", "bm25"])
