"""The documentation: its links lead somewhere, its command lines are understood, its tutorial works."""

import ast
import asyncio
import doctest
import importlib
import importlib.util
import io
import json
import logging
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import setup
from cai_pyserini import __version__
from cai_pyserini.__main__ import COMMANDS
from cai_pyserini.__main__ import main as command_line
from cai_pyserini.analysis.settings import ANALYSES
from cai_pyserini.cli.export import main as export
from cai_pyserini.core import settings
from cai_pyserini.core.config import EncoderConfig, IndexConfig, Joint, load_encoder, load_index_config, names
from cai_pyserini.core.settings import Settings, parse
from cai_pyserini.engine.open import open_systems
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import plan
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunSettings
from cai_pyserini.runs.fusions import DEFAULT, FUSIONS
from cai_pyserini.service.mcp import create_server
from cai_pyserini.service.queue import Service

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
PUNCTUATION = set("();<>|&")
EXAMPLES = doctest.DocTestParser()


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return [code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match("[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            yield target


def shell_words(code: str) -> Iterator[list[str]]:
    """The simple commands of a bash block, each as its words. Variables are 1, here-documents are left out."""
    end = None
    for line in code.replace("\\\n", " ").splitlines():
        if end:
            end = None if line == end else end
            continue
        if found := re.search(r"<<(\w+)", line):
            end = found[1]
        reader = shlex.shlex(re.sub(r"\$\w+|\$!", "1", line), posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words: list[str] = []
        for word in [*reader, ";"]:
            if set(word) <= PUNCTUATION:
                yield words
                words = []
            elif words or word not in ("do", "then", "until"):
                words.append(word)


def our_command(words: Sequence[str]) -> list[str] | None:
    """The arguments of one of our commands; None for any other, and for a benchmark."""
    words = [word for i, word in enumerate(words) if i or "=" not in word]
    if not words:
        return None
    program = Path(words[0]).name
    if program == "run_beir.sh":
        return None if "--paper" in words else ["run", *(words[1:] or ["hpo"])]
    if program == "cai-pyserini":
        arguments = words[1:]
    elif program == "python" and "cai_pyserini" in words:
        arguments = words[words.index("cai_pyserini") + 1 :]
    else:
        return None
    return None if arguments[:1] == ["-m"] else arguments


class Parsed(Exception):
    """A command line has been parsed."""


def parses(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command line as the command does, and go no further. Raises SystemExit if it is refused."""
    assert arguments[0] in COMMANDS, arguments
    module = importlib.import_module(f"cai_pyserini.cli.{arguments[0]}")

    def parse_only(*given: object) -> None:
        parse(*given)  # type: ignore[call-overload]
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(module if hasattr(module, "parse") else settings, "parse", parse_only)
        patch.setattr(settings, "_read_partial", lambda kind, path: {"collections": ["hpo"]})  # of --config
        patch.setattr(Path, "exists", lambda path: " " not in path.name)  # inputs of an example do, queries do not
        with pytest.raises(Parsed):
            module.main(arguments[1:])


def benchmarks() -> list[list[str]]:
    """The command lines of benchmarks on all pages, each as `python SCRIPT ARGUMENT …`."""
    commands = [words for page in PAGES for code in blocks(page, "bash") for words in shell_words(code)]
    commands = [[word for word in words if "=" not in word] for words in commands]
    return [words for words in commands if len(words) > 1 and words[1].startswith("benchmarks/")]


def test_there_are_pages_of_every_kind() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert all(list((ROOT / "docs" / kind).glob("*.md")) for kind in ("how-to", "reference", "experiments", "design"))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert not list(broken_links(page))


def test_the_readme_is_whole_on_pypi() -> None:
    """The faults: PyPI shows README.md alone, so that a relative link or a Mermaid drawing is dead; a link leads to
    another repository, since the address has changed in some files only."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    *_, owner, repository = urls["Repository"].split("/")
    assert urls["Documentation"] == f"https://{owner.lower()}.github.io/{repository}/"
    for place, page in (("README.md", "Repository"), ("CITATION.cff", "Repository"), ("mkdocs.yml", "Documentation")):
        text = (ROOT / place).read_text(encoding="utf-8")
        assert urls[page] in text, f"{place} has another address than pyproject.toml: see Release in CONTRIBUTING.md"
    text = setup.absolute((ROOT / "README.md").read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^()\s]+)\)", FENCE.sub("", text))
    assert "```mermaid" not in text and "<img" not in text and all(link.startswith("https://") for link in links)
    assert all(link.startswith(urls["Documentation"]) for link in links if ".github.io/" in link)
    files = [link for link in links if link.startswith(f"{urls['Repository']}/") and "/actions/" not in link]
    for link in files:
        path, _, anchor = link.split("/", 7)[7].partition("#")
        assert link.split("/")[5:7] in (["blob", f"v{__version__}"], ["raw", f"v{__version__}"]), link
        assert (ROOT / path).exists() and (not anchor or anchor in anchors(ROOT / path)), link
    assert len(files) > 30


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_command_lines_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in blocks(page, "bash"):
        for words in shell_words(code):
            if arguments := our_command(words):
                try:
                    parses(arguments, monkeypatch)
                except SystemExit:
                    pytest.fail(f"refused: {shlex.join(words)}")
            elif scripts := [word for word in words if word.startswith("tests/") and word.endswith((".py", ".sh"))]:
                assert all((ROOT / script).is_file() for script in scripts), words


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted({words[1] for words in benchmarks()}))
def test_command_lines_of_benchmarks_are_understood(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a page names a command that has since lost a flag, or a script that no longer imports."""

    def parse_only(parser: ArgumentParser) -> None:
        parse_args(parser, words[2:])
        raise Parsed

    parse_args = ArgumentParser.parse_args
    monkeypatch.setattr(ArgumentParser, "parse_args", parse_only)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    try:
        main = runpy.run_path(str(ROOT / script))["main"]
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    for words in benchmarks():
        if words[1] == script:
            with pytest.raises(Parsed):
                main()


def test_every_benchmark_is_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")} - {"harness.py"}
    assert not {script for script in scripts if f"benchmarks/{script}" not in pages}


def test_wrong_command_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--no-such-flag"], ["--bits", "99"], []):
        with pytest.raises(SystemExit):
            parses(["stage", "impact", *arguments], monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_are_python_and_yaml(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse("\n".join(example.source for example in EXAMPLES.get_examples(code)) if ">>>" in code else code)
    for code in blocks(page, "yaml"):
        if "collections" in (values := yaml.safe_load(code)):
            RunSettings(**values)
            continue
        kind = EncoderConfig if "checkpoint" in values else IndexConfig
        kind(name="example", **values)


def test_examples_have_the_right_types(tmp_path: Path) -> None:
    """The fault: what the documentation shows is an error in an editor. Not of mteb and mcp, whose own types take a
    minute, nor of fragments for contributors."""
    for page in PAGES:
        found = blocks(page, "python")
        if found and page.stem not in ("mteb", "mcp", "CONTRIBUTING"):
            code = [doctest.script_from_examples(block) if ">>>" in block else block for block in found]
            code = code if "import " in code[0] else ["import cai_pyserini as cai\n", *code]
            (tmp_path / f"{page.stem}.py").write_text("\n".join(code), encoding="utf-8")
    wrong = tmp_path / "wrong.py"
    calls = 'cai.index(["a"], sytem="bm25")', 'cai.index(["a"]).search("a").title'
    wrong.write_text("\n".join(["import cai_pyserini as cai", *calls]), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = json.loads(done.stdout)["generalDiagnostics"]
    assert [error["message"] for error in errors if error["file"] != str(wrong)] == []
    assert [error["rule"] for error in errors] == ["reportCallIssue", "reportAttributeAccessIssue"]


@pytest.mark.parametrize(
    ("page", "kinds"), [("encoder-yaml", [EncoderConfig, Joint]), ("index-configs", [IndexConfig])]
)
def test_the_reference_of_yaml_files_has_every_key(page: str, kinds: list[type[Settings]]) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    for kind, table in zip(kinds, text.split("| key | default | meaning |")[1:], strict=True):
        rows = re.findall(r"^\| (`.+?) \| (.+?) \|", table, re.MULTILINE)
        documented = {key: default for keys, default in rows for key in re.findall(r"`(\w+)`", keys)}
        assert documented.keys() == kind.model_fields.keys()
        for key, field in kind.model_fields.items():
            if isinstance(field.default, bool | int | float | str):
                assert (str(field.default).lower() or "none") in re.split(", ", documented[key].strip("`"))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module docs/generate.py."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def test_the_reference_has_a_table_of_fusions(generate: ModuleType) -> None:
    assert generate.FUSION_TABLE in (ROOT / "docs" / "reference" / "systems.md").read_text(encoding="utf-8")
    rows = [f"`-{name}` | {fusion.description}" for name, fusion in FUSIONS.items() if name != DEFAULT]
    assert all(row in generate.fusion_table() for row in rows)


def test_the_reference_of_python_is_that_of_the_docstrings(generate: ModuleType) -> None:
    assert generate.PYTHON.read_text(encoding="utf-8") == generate.python(), "run: python docs/generate.py"


def test_the_page_of_analyses_has_them_all() -> None:
    page = (ROOT / "docs" / "experiments" / "analysis.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[`(\w+)`\]", page, re.MULTILINE)) == ANALYSES.keys()


def test_the_page_of_models_has_every_encoder() -> None:
    page = (ROOT / "docs" / "how-to" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|", page.split("## Rerankers")[0], re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == names("encoders")


def test_files_that_contributing_names_exist() -> None:
    prose = FENCE.sub("", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    named = set(re.findall(r"`(\w+/[\w/]*(?:\.py)?)`", prose))
    roots = (ROOT, ROOT / "cai_pyserini", ROOT / "tests")
    assert len(named) > 20 and not {path for path in named if not any((root / path).exists() for root in roots)}


def test_pages_that_the_code_names_exist() -> None:
    files = [ROOT / "run_beir.sh", *(ROOT / "index_configs").glob("*.yaml"), *(ROOT / "encoders").glob("*.yaml")]
    files += [*(ROOT / "cai_pyserini").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    named = {found for file in files for found in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))}
    assert len(named) > 2 and not {page for page in named if not (ROOT / page).is_file()}


def bash(code: str) -> str:
    """What bash prints."""
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def executed(code: str, background: list[subprocess.Popen[bytes]]) -> str:
    """What a bash block prints. Our commands run in this process, unless they go on in the background."""
    printed, others, logger = io.StringIO(), "", logging.getLogger("cai_pyserini")
    with tempfile.TemporaryFile("w+") as of_background:
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line) if line.startswith("cai-pyserini ") else []
            if words or line == "kill $!":
                printed.write(bash(others))
                others = ""
            if words and words[-1] == "&":
                command = [sys.executable, "-m", "cai_pyserini", *words[1:-1]]
                background.append(subprocess.Popen(command, stdout=of_background, stderr=of_background))
            elif words:
                logger.addHandler(handler := logging.StreamHandler(printed))
                with redirect_stdout(printed), redirect_stderr(printed):
                    command_line(words[1:])
                logger.removeHandler(handler)
            elif line == "kill $!":
                background[-1].terminate()
            else:
                others += f"{line}\n"
        printed.write(bash(others))
        of_background.seek(0)
        return of_background.read() + printed.getvalue()


def without_measurements(line: str) -> str:
    """A line without its fractions, dates and widths, which differ between machines and days, and without its level."""
    line = re.sub("--+", "--", re.sub("^(note|warning): ", "", line))
    return " ".join(re.sub(r"\d+\.\d+|\d{4}-\d\d-\d\d", "0", line).split())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), [("tutorial", ""), ("tutorial-files", "debian-policy")])
def test_a_tutorial_prints_what_it_shows(
    name: str,
    package: str,
    java: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The page shows the lines that are printed, in their order; it may leave some out."""
    needed = ["curl", *(["apt-get", "dpkg-deb", "zcat"] if package else [])]
    if missing := [program for program in needed if not shutil.which(program)]:
        pytest.skip(f"there is no {missing[0]}")
    monkeypatch.chdir(tmp_path)
    if package and subprocess.run(["apt-get", "download", package], check=False).returncode:
        pytest.skip(f"{package} cannot be downloaded")
    Path("tests").symlink_to(ROOT / "tests")
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    is_shown_version = not package or all(path.name.split("_")[1] in page for path in Path().glob(f"{package}_*.deb"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        page = re.sub(r"\b876\d\b", str(free.getsockname()[1]), page)
    caplog.set_level(logging.INFO, "cai_pyserini")
    background: list[subprocess.Popen[bytes]] = []
    try:
        for language, code in FENCE.findall(page):
            if language == "bash":
                printed = executed(code, background)
            elif is_shown_version:
                lines = map(without_measurements, printed.splitlines())
                absent = [line for line in code.splitlines() if without_measurements(line) not in lines]
                assert not absent, printed  # from the first absent line on
    finally:
        for process in background:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_the_notebook_works(java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(ROOT / "tests")
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "clear the outputs: they are those of one machine"
            *statements, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(statements, []), "notebook", "exec"), names)
            if isinstance(last, ast.Expr):  # which a notebook shows
                shown = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
                assert repr(shown)
            else:
                exec(compile(ast.Module([last], []), "notebook", "exec"), names)
    assert names["run"].systems[0] == "trio" and names["rankings"][1]["doc_id"][0] == "d4"


def executed_python(code: str, **names: Any) -> str:
    """What Python prints."""
    with redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, "page", "exec"), {"__name__": "page"} | names)
    return printed.getvalue()


@pytest.mark.slow
def test_the_session_of_an_assistant_is_as_shown(run_folder: Path, java: None) -> None:
    """With a server in this process; tests/service has one that is started as assistants start it."""
    page = ROOT / "docs" / "how-to" / "mcp.md"
    (code,), (shown,) = blocks(page, "python"), blocks(page, "")
    tasks: list[asyncio.Task[None]] = []

    def server() -> Any:
        service = Service(lambda: open_systems([run_folder], ["joint", "bm25"]))
        tasks.append(asyncio.create_task(service.work()))
        return create_server(service)

    started = "StdioServerParameters(command=sys.executable, args=ARGUMENTS)"
    assert started in code
    assert executed_python(code.replace(started, "server_here()"), server_here=server) == shown


@pytest.mark.slow
def test_mteb_scores_an_exported_encoder_as_shown(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the tiny collection has the same score, if the model encodes the queries too."""
    index = str(run_folder / "indexes" / "splade-idf")
    export(["sentence-transformers", "--encoder", "splade-tiny", "--output", str(tmp_path / "model")])
    export(["sentence-transformers", "--encoder", index, "--query", "bow", "--output", str(tmp_path / "table")])
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(ROOT / "tests")
    page = ROOT / "docs" / "how-to" / "mteb.md"
    (code,), (shown,) = blocks(page, "python"), blocks(page, "")
    assert executed_python(code) == shown
    scores = json.loads((run_folder / "results.json").read_text(encoding="utf-8"))["systems"]["splade"]
    assert float(shown.split()[1]) == pytest.approx(scores["nDCG@10"], abs=1e-4)


def test_the_systemd_unit_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = (ROOT / "docs" / "deploy" / "cai-pyserini.service").read_text(encoding="utf-8")
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    parses(our_command(command.split()) or pytest.fail(command), monkeypatch)
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    for text, understood in ((unit, True), (f"{unit}[Service]\nNoSuchKey=yes\n", False)):
        (tmp_path / "search.service").write_text(text.replace(command.split()[0], sys.executable))
        verify = ["systemd-analyze", "verify", str(tmp_path / "search.service")]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert (not done.stderr) == understood, done.stderr


def test_the_containerfile_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "docs" / "deploy" / "Containerfile"
    text = path.read_text(encoding="utf-8")
    entry, default = (json.loads(*re.findall(f"^{name} (.*)$", text, re.MULTILINE)) for name in ("ENTRYPOINT", "CMD"))
    parses(our_command(entry + default) or pytest.fail(text), monkeypatch)
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("there is no hadolint")
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def drawing(*names: str) -> list[str]:
    """The steps of systems as a Mermaid flowchart."""
    experiment = Experiment(collection=load_index_config("hpo"), encoder=load_encoder("splade-tiny"))
    steps = plan(RunFolder(Path("runs/hpo/splade-tiny"), experiment), [parse_system(name) for name in names])
    ids = {step.output: f"s{number}" for number, step in enumerate(steps)}
    lines = ["flowchart LR"]
    for step in steps:
        lines.append(f'  {ids[step.output]}["{step.name}"]')
        lines += [f"  {ids[path]} --> {ids[step.output]}" for path in step.inputs]
    return lines


def test_the_drawing_of_stages_is_the_plan_of_a_run() -> None:
    (shown,) = blocks(ROOT / "docs" / "reference" / "stages.md", "mermaid")
    assert shown.splitlines() == drawing("joint", "hybrid-splade-idf")
