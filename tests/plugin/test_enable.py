"""The plugin, enabled in a separate environment: plain `python -m pyserini.…` knows our encoders."""

import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from cai_pyserini.cli.plugin import main
from cai_pyserini.plugin import hook
from tests.plugin.conftest import ranking, search_arguments

ROOT = Path(__file__).parents[2]  # its package is tested, even in a worktree


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the packages of this one, to enable the plugin in."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "outer.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in sys.path if "site-packages" in path)
    )
    return folder / "bin" / "python"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the one in this environment's site-packages."""
    path = tmp_path / "cai_pyserini.pth"
    monkeypatch.setattr(hook, "pth_path", lambda: path)
    return path


def test_commands(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("disable", "enable", "enable", "disable", "disable"):
        main([command])
        assert capsys.readouterr().out == f"{command}d: {elsewhere}\n"
        assert elsewhere.exists() == (command == "enable")


@pytest.mark.slow
def test_enabled_plugin(environment: Path, run_folder: Path, topics: Path, tmp_path: Path) -> None:
    """Also, Pyserini needs no network; if a firewall drops packets, each attempt takes minutes."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}

    def python(*arguments: object) -> str:
        command = [str(environment), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(environment.parent.parent) in python("-m", "cai_pyserini", "plugin", "enable")
    run = tmp_path / "run.trec"
    arguments = search_arguments(run_folder / "indexes" / "splade-idf", topics, "splade-tiny", run)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        clean |= dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{silent.getsockname()[1]}")
        python("-m", "pyserini.search.lucene", *arguments)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert ranking(run) == ranking(run_folder / "runs" / "splade-idf.trec")
    modules = [f"cai_pyserini{name}" for name in ("", ".core", ".core.version", ".plugin", ".plugin.hook")]
    slow = ("cai", "jnius", "torch", "typing", "yaml")
    imported = f"import sys; print(sorted(m for m in sys.modules if m.startswith({slow})))"
    assert python("-c", imported) == f"{sorted(modules)}\n"
    python("-m", "cai_pyserini", "plugin", "disable")
    assert python("-c", imported) == "[]\n"


def test_the_line_does_nothing_once_the_package_is_gone() -> None:
    done = subprocess.run([sys.executable, "-S", "-I", "-c", hook.LINE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
