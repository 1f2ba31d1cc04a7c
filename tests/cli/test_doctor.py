"""What the doctor finds on this machine, and on simulated ones."""

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from cai_pyserini.cli import doctor
from cai_pyserini.cli.doctor import CHECKS, main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import install_command
from cai_pyserini.core.processes import processors
from cai_pyserini.indexes import jvm


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    works, text = doctor.packages()
    assert works is True and f"torch {torch.__version__.partition('+')[0]}" in text and "missing" not in text
    monkeypatch.setattr(doctor, "version", lambda name: "2.5.0" if name == "pyserini" else version(name))
    works, text = doctor.packages()
    assert works is None and text.endswith(f"2.3 and 2.4 only: {sys.executable} -m pip install 'pyserini>=2.3,<2.5'")

    absent = ["faiss-cpu"]

    def without(name: str) -> str:
        if name in absent:
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", without)
    works, text = doctor.packages()
    assert works is None and "; not installed: faiss-cpu, for models" in text
    assert text.endswith(install_command("encode"))
    absent.append("pyjnius")
    works, text = doctor.packages()
    assert works is False and text.endswith(f"; missing: pyjnius: {install_command()}")


def test_java(monkeypatch: pytest.MonkeyPatch) -> None:
    old = jvm.Java(Path("/old"), 17, frozenset(), "JAVA_HOME")
    new = jvm.Java(Path("/new"), 25, frozenset(), "PATH")
    monkeypatch.setattr(jvm, "candidates", lambda: [old, new])
    assert doctor.java() == (True, "Java 25 at /new (PATH); Java 17 (JAVA_HOME) is not used")
    monkeypatch.setattr(jvm, "candidates", lambda: [old])
    with pytest.raises(CaiError, match=r"needs Java 21 or later; found Java 17 at /old \(JAVA_HOME\)"):
        doctor.java()


def test_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    works, text = doctor.encoding()
    assert works is None and text.startswith(f"no GPU that torch sees: on {processors()} processors, in ")


def failing(error: Exception) -> Callable[[], doctor.Finding]:
    def check() -> doctor.Finding:
        raise error

    return check


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that fails does not stop the others."""
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda: (True, "fine"))
    monkeypatch.setitem(CHECKS, "encoding", lambda: (None, "none"))
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS) == 6
    assert lines[0] == "ok   Python         fine" and "note encoding       none" in lines
    for check in (
        lambda: (False, "broken"),
        *map(failing, (CaiError("broken"), ImportError("broken"), OSError("broken"))),
    ):
        monkeypatch.setitem(CHECKS, "encoding", check)
        assert main([]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 6 and lines[-2:] == ["FAIL encoding       broken", "ok   plugin         fine"]


def test_json_without_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault: a path or an error has a token or a proxy's password, which goes into a public report."""
    monkeypatch.setenv("HF_TOKEN", "hf_geheim")
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda: (None, "fine"))
    monkeypatch.setitem(CHECKS, "Java", failing(OSError("http://me:word@proxy:3128 refused hf_geheim")))
    assert main(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [*found] == ["version", "platform", "processors", "packages", "paths", "checks"]
    assert found["packages"]["torch"] == version("torch") and [*found["paths"]] == ["package", "python", "cache"]
    assert found["checks"][1] == {"name": "packages", "status": "note", "text": "fine"}
    assert found["checks"][2] == {"name": "Java", "status": "FAIL", "text": "http://proxy:3128 refused ***"}


@pytest.mark.slow
def test_this_machine(capsys: pytest.CaptureFixture[str], java: None) -> None:
    """Which runs these tests, and so has what is needed."""
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line[5:19].strip(): line[:4].strip() for line in lines}
    assert list(found) == list(CHECKS)
    assert {found[name] for name in ("Python", "packages", "Java", "Lucene", "plugin")} == {"ok"}
    assert lines[0] == f"ok   Python         {sys.version.split()[0]} at {sys.executable}"
