"""The distributions have everything that an installed package needs, and only declared packages are imported."""

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import setup
from cai_pyserini import __version__

ROOT = Path(__file__).parents[1]
FOLDERS = {"cai_pyserini": "", "encoders": "encoders/", "index_configs": "index_configs/"}  # and where they are packed
CODE = """
import sys
from importlib.metadata import distribution

import cai_pyserini
from cai_pyserini.core.config import load_encoder, load_index_config, names
from cai_pyserini.core.identity import changed_stages

print(cai_pyserini.__file__)
assert changed_stages() == {}  # has stages.json, and the sources it records
counts = len(names("encoders")), len(names("index_configs"))
print(*counts, load_encoder("splade-tiny").kind, load_index_config("hpo").hits)
(script,) = distribution("cai-pyserini").entry_points
for arguments in (["--help"], ["run", "--help"]):
    sys.argv = [script.name, *arguments]
    try:
        script.load()()
    except SystemExit as done:
        assert not done.code
"""


@pytest.mark.slow
def test_imported_packages_are_declared() -> None:
    imported: set[str] = set()
    for path in (ROOT / "cai_pyserini").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    declared = "\n".join([setup["options"]["install_requires"], *setup["options.extras_require"].values()])
    names = {name.lower().replace("_", "-") for name in re.findall(r"^[\w.-]+", declared, re.M)}
    packages = packages_distributions()
    missing = {
        module
        for module in imported - sys.stdlib_module_names - {"cai_pyserini"}
        if not names & {package.lower().replace("_", "-") for package in packages.get(module, [module])}
    }
    assert missing == set()


def test_the_versions_of_tests_are_those_that_are_allowed() -> None:
    """The fault: setup.cfg changes, and tests go on with other versions, or with whatever is the newest."""
    pins = (Requirement(line) for line in (ROOT / "tests" / "constraints.txt").read_text(encoding="utf-8").splitlines())
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = [text for name, text in setup["options.extras_require"].items() if name != "benchmark"]
    for line in "\n".join([setup["options"]["install_requires"], *extras]).splitlines():
        if line and not line.startswith(("#", "cai-pyserini")):
            wanted = Requirement(line)
            assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), (
                f"see Test in CONTRIBUTING.md: {line}"
            )


@pytest.mark.slow
def test_the_distributions_have_everything(tmp_path: Path) -> None:
    """The wheel is built from the sdist, and works in an empty folder."""
    clone = tmp_path / "clone"  # building leaves files behind
    for name in FOLDERS:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(clone)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    stem = f"cai_pyserini-{__version__}"
    with zipfile.ZipFile(tmp_path / "dist" / f"{stem}-py3-none-any.whl") as archive:
        archive.extractall(tmp_path / "site")
        wheel = archive.namelist()
    with tarfile.open(tmp_path / "dist" / f"{stem}.tar.gz") as archive:
        sdist = archive.getnames()
    metadata = (tmp_path / "site" / f"{stem}.dist-info" / "METADATA").read_text(encoding="utf-8")
    assert metadata.endswith(setup.absolute((ROOT / "README.md").read_text(encoding="utf-8")))
    for folder, place in FOLDERS.items():
        paths = [path for path in (clone / folder).rglob("*") if path.is_file()]
        assert {f"cai_pyserini/{place}{path.relative_to(clone / folder)}" for path in paths} <= {*wheel}
        assert {f"{stem}/{path.relative_to(clone)}" for path in paths} <= {*sdist}

    (tmp_path / "empty").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    run = [sys.executable, "-c", CODE]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path / "empty", env=environment)
    assert done.returncode == 0, done.stderr
    place, counts, *shown = done.stdout.splitlines()
    assert place.startswith(str(tmp_path / "site"))
    encoders, collections = (len(list((ROOT / folder).glob("*.yaml"))) for folder in ("encoders", "index_configs"))
    assert counts == f"{encoders} {collections} splade 100"
    assert shown[0].startswith("usage: cai-pyserini COMMAND")
    assert any(line.startswith("  --systems ") for line in shown)  # of run


def test_a_release_is_what_passed_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: a tag of what failed, or of another version or date; notes whose links are dead; a push elsewhere."""
    address = setup.place("").removeprefix("https://").partition("/blob/")[0]
    origin, clone = tmp_path / f"{address}.git", tmp_path / "clone"
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Owner")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "owner@example.com")

    def git(*arguments: str | Path) -> str:
        return subprocess.run(["git", *arguments], cwd=clone, capture_output=True, text=True, check=True).stdout.strip()

    def release(*arguments: str) -> str:
        command = [clone / ".ci" / "release", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.strip()

    for name in (
        ".ci/release",
        ".gitignore",
        "CITATION.cff",
        "pyproject.toml",
        "setup.py",
        "cai_pyserini/core/version.py",
    ):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    changes = (
        f"# Changelog\n\n## [{__version__}] - unreleased\n\n- See\n  [a page](docs/a.md).\n\n## [0.0.1] - 2020-01-01\n"
    )
    (clone / "CHANGELOG.md").write_text(changes)
    (clone / ".ci" / "run").write_text("#!/bin/sh\nexit 1\n")
    (clone / ".ci" / "run").chmod(0o755)
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--message=All")
    git("init", "--quiet", "--bare", origin)
    git("remote", "add", "origin", tmp_path / "elsewhere")
    assert f"error: origin is not {address}" in release()
    git("remote", "set-url", "origin", origin)
    git("push", "--quiet", "origin", "main")
    assert release() == "error: nothing was released" and not git("status", "--porcelain") + git("tag")
    assert "'## [" in release("--check")
    (clone / ".ci" / "run").write_text("#!/bin/sh\n")
    assert release() == "error: there are changes that are not committed"
    git("commit", "--quiet", "--all", "--message=Repaired")
    assert release().endswith("is pushed: the workflow Release publishes it")
    assert git("ls-remote", origin, f"refs/tags/v{__version__}^{{}}").split()[0] == git("rev-parse", "main")
    assert (
        release("--check") == f"v{__version__}" and release("--notes") == f"- See [a page]({setup.place('docs/a.md')})."
    )
    assert "is tagged: raise VERSION" in release()


def test_windows_is_refused_in_a_sentence() -> None:
    """The fault: a user reads that there is no module fcntl, after an installation of minutes."""
    code = "import sys; sys.platform = 'win32'; import cai_pyserini"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr.splitlines()[-1].startswith("ImportError: cai-pyserini does not run on Windows")


# A Python that logs what would take minutes. A virtual environment of it has no pip before ensurepip.
PYTHON = """#!/bin/sh
folder=$(dirname "$(dirname "$0")")
case "$*" in
  "-c import pip") [ -e "$folder/pip" ] ;;
  "-m venv"*) mkdir -p "$3/bin" && sleep .3 && cp "$0" "$3/bin/python" ;;
  "-m ensurepip") touch "$folder/pip" ;;
  "-m pip"*" install "*) echo "$*" >> "$folder/installed" && sleep .3 ;;
  "-m cai_pyserini"*) echo "runs $*" ;;
  *"print(sys.executable)"*) echo "$0" ;;
  -c*) exec {executable} "$@" ;;
  *"/paper.py "*) exec {executable} -S "$@" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with nothing but what is needed to set it up, and a Python for that."""
    for name in ("run_beir.sh", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON.format(executable=sys.executable))
    (tmp_path / "bin" / "python").chmod(0o755)
    return tmp_path


def set_up(clone: Path) -> subprocess.Popen[str]:
    # find_python takes what sys.executable names.
    command = f'source {clone}/run_beir.sh; find_python() {{ echo {clone}/bin/python; }}; set_up "demo"'
    return subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, text=True)


def test_a_virtual_environment_that_is_there_keeps_what_it_has(clone: Path) -> None:
    """The faults: one without pip, as `uv venv` makes it, is emptied; or one whose Python does not run."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "mine").touch()
    python = clone / ".venv" / "bin" / "python"
    python.symlink_to("nowhere")
    process = set_up(clone)
    assert f"error: {python} does not run, or is older than 3.12: move" in process.communicate()[1]
    assert process.returncode and not (clone / ".venv" / "installed").exists()
    python.unlink()
    shutil.copy(clone / "bin" / "python", python)
    process = set_up(clone)
    process.communicate()
    assert not process.returncode and {"mine", "pip", ".set-up-demo"} <= {
        path.name for path in (clone / ".venv").iterdir()
    }


def test_of_two_first_starts_one_waits(clone: Path) -> None:
    """The fault: one empties the virtual environment of the other."""
    first, second = set_up(clone), set_up(clone)
    printed = sorted(process.communicate()[1] for process in (first, second))
    assert not first.returncode and not second.returncode
    assert printed[0].startswith("setting up ") and printed[1] == "waiting for another start, which sets up .venv\n"
    assert len((clone / ".venv" / "installed").read_text().splitlines()) == 1


@pytest.mark.skipif(
    sys.platform != "linux" or any(Path("/dev").glob("nvidia*")) or Path("/proc/driver/nvidia").exists(),
    reason="only Linux without an NVIDIA driver takes PyTorch for CPUs",
)
@pytest.mark.parametrize(
    ("version", "driver", "installed"),
    [("99.0+cpu", False, ["torch-99.0+cpu.dist-info"]), ("99.0+cpu", True, []), ("99.0", False, []), ("", False, [])],
    ids=["none", "driver", "of PyPI", "unreachable"],
)
def test_pytorch_for_cpus_where_there_is_no_driver(
    clone: Path, version: str, driver: bool, installed: list[str]
) -> None:
    """The faults: CUDA for machines without a GPU, none for those with one; an index that cannot be reached, or has
    PyPI's builds, or lacks what PyTorch depends on, makes the set-up fail."""
    index = clone / "simple" / "torch"
    index.mkdir(parents=True)
    wheel = f"torch-{version}-py3-none-any.whl"
    (index / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\nRequires-Dist: on-no-index\n"
    with zipfile.ZipFile(index / wheel, "w") as archive:
        for name, text in {
            "METADATA": metadata,
            "WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"torch-{version}.dist-info/{name}", text)
    if driver:
        shutil.copy(clone / "bin" / "python", clone / "bin" / "nvidia-smi")
    environment = {
        "PATH": f"{clone / 'bin'}:{os.defpath}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_TARGET": str(clone / "site"),
        "TORCH_INDEX": f"file://{index.parent}" if version else "http://127.0.0.1:9",
    }
    command = ["bash", "-euo", "pipefail", "-c", f"source {clone}/run_beir.sh; cpu_torch {sys.executable}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not done.returncode and ("taking PyPI's" in done.stderr) == (not installed and not driver), done
    assert sorted(path.name for path in clone.glob("site/*.dist-info")) == installed


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ("--help", "whose arguments it takes", 0),
        ("", "runs -m cai_pyserini run --config /dev/fd/", 0),
        ("--systems bm25 --output x", "runs -m cai_pyserini run --systems bm25 --output x --config /dev/fd/", 0),
        ("--paper --help", "--repeats REPEATS", 0),
        ("--paper --repeets 3", "error: unrecognized arguments: --repeets 3", 2),
        ("--config setup.cfg", "runs -m cai_pyserini run --config setup.cfg\n", 0),
    ],
)
def test_arguments_are_those_of_run(clone: Path, arguments: str, said: str, code: int) -> None:
    """The faults: --help has to wait for a set-up; flags without a collection are refused."""
    for name in ("benchmarks", "cai_pyserini"):
        (clone / name).symlink_to(ROOT / name)
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(clone / "bin" / "python")}
    command = [clone / "run_beir.sh", *arguments.split()]
    process = subprocess.run(command, capture_output=True, text=True, cwd=clone, env=environment, check=False)
    assert said in process.stdout + process.stderr and process.returncode == code, process
    assert ("setting up" in process.stderr) == ("runs" in said) == (clone / ".venv").exists()
