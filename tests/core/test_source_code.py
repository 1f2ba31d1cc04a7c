"""Which stages are made again when a file of the package is edited: those whose results it shapes, and no others."""

import io
import json
import re
import runpy
import shutil
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import pytest

from cai_pyserini.cli.run import main as run
from cai_pyserini.core import identity
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.file_formats import FORMATS
from cai_pyserini.core.identity import STAGES, Stage, changed_stages, code_of_stages
from cai_pyserini.core.source_code import MACHINERY, NAME, PACKAGE, SourceCode, recorded
from cai_pyserini.models import idf
from tests.conftest import DATA

ENCODE = {f"encode {role} {kind}" for role in ("documents", "queries") for kind in ("splade", "dense", "dense idf")}
QUERIES = {name for name in ENCODE if "queries" in name}
SPLADE = {name for name in ENCODE if name.endswith("splade")}
SEARCH = {f"search {kind}" for kind in ("bm25", "dense", "impact")}
MODELS = SEARCH - {"search bm25"}
FOLDERS = {"collection beir_folder", "collection file_folder"}
READING = FOLDERS | {"beir check", "beir evaluation", "collection hpo", "collection ir_dataset", "idf", "words"}
MAIN_WAY = {  # its files, in order, and the stages that each of them shapes
    "experiments.systems": set(),
    "experiments.artifacts": set(),
    "experiments.index_artifacts": set(),
    "experiments.ranking_artifacts": set(),
    "experiments.plan": set(),
    "core.steps": set(),
    "experiments.execute": set(),
    "collections.contract": READING | ENCODE | SEARCH | {"expand", "fusion rerank", "index bm25", "index impact"},
    "collections.beir_folder": FOLDERS,
    "models.idf": {"expand", "idf", "idf power", "impact", "search dense"} | {n for n in ENCODE if n.endswith("idf")},
    "vectors.encode": ENCODE | {"expand"},
    "vectors.shards": ENCODE | MODELS | {"expand", "idf power", "impact", "index dense", "near", "smooth", "words"},
    "models.encoder": ENCODE | MODELS | {"expand", "idf power", "impact"},
    "models.splade": SPLADE | {"search impact"},
    "models.head": SPLADE | {"search impact"},
    "indexes.words": {"words"},
    "vectors.bm25": {"idf power", "impact"},
    "vectors.quantization": {"impact"},
    "vectors.weighting": {"impact"},
    "indexes.impact_index": {"index impact"},
    "vectors.queries": QUERIES | MODELS | {"expand", "idf power", "impact"},
    "indexes.engines": SEARCH,
    "indexes.retrieve": SEARCH,
    "indexes.searcher": SEARCH,
    "runs.trec": SEARCH | {"beir evaluation", "fusion fuse", "fusion rerank"},
    "runs.measures": {"beir evaluation"},
    "experiments.report": set(),
}
BRANCHES = re.compile("(adapt|convert|export|judge|plugin|ship|text|trainer)")  # off this way
OTHERS = {"<": "<=", ">": ">=", "+": "-", "*": "+", "and": "or", "min": "max", "True": "False", "not": ""}
EDITS = 4  # edits per file, at most
Edited = Callable[[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    folder = tmp_path_factory.mktemp("clone")
    return Path(shutil.copytree(PACKAGE, folder / NAME, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="module")
def parsed() -> SourceCode:
    """The code of all stages, none of it as recorded."""
    source = SourceCode()
    for code in code_of_stages().values():
        source.closure(code)
    return source


@pytest.fixture(scope="module")
def before(copy: Path, parsed: SourceCode) -> tuple[dict[str, str], SourceCode]:
    source = SourceCode(copy)
    source.files |= parsed.files
    return {name: source.digest(code) for name, code in code_of_stages().items()}, source


def without(pristine: SourceCode, edited: Path) -> SourceCode:
    """Code whose files have been read, but not the edited one."""
    source = SourceCode(pristine.root)
    name = edited.relative_to(source.root).as_posix()
    name = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") if name.endswith(".py") else name
    source.files |= {other: file for other, file in pristine.files.items() if other != name}
    return source


def changed(edited: Path, text: str, before: tuple[dict[str, str], SourceCode]) -> set[str]:
    """The stages whose code is another one if a file of the copy has this text."""
    digests, pristine = before
    original = edited.read_bytes()
    edited.write_text(text, encoding="utf-8")
    source = without(pristine, edited)
    try:
        return {name for name, code in code_of_stages().items() if source.digest(code) != digests[name]}
    finally:
        edited.write_bytes(original)


def edits(text: str) -> Iterator[str]:
    """The text with another number or operator, at up to EDITS places."""
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.NUMBER or token.string in OTHERS
    ]
    for token in tokens[:: max(1, len(tokens) // EDITS)]:
        lines = text.splitlines(keepends=True)
        (row, start), (_, end), line = token.start, token.end, lines[token.start[0] - 1]
        lines[row - 1] = line[:start] + OTHERS.get(token.string, f"1{token.string}") + line[end:]
        yield "".join(lines)


def inert(text: str) -> str:
    """The text with other comments, docstrings and line breaks."""
    text = re.sub(r"(?m)^(?=def |class )", "\n# A comment.\n", text.replace('"""', '"""Edited. ', 1))
    text = re.sub(r"(?m)^(    return [\w.]+\()(.*\))$", r"\1  # a comment" + "\n        \\2", text)
    return "# A comment.\n\n" + text


def test_the_main_way_is_that_of_the_documentation_and_short() -> None:
    page = (PACKAGE.parent / "docs/design/architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The main way")[2].partition("What else")[0]
    files = re.findall(r"\]\(\.\./\.\./cai_pyserini/(\w+/\w+)\.py\)", table)
    assert [file.replace("/", ".") for file in files] == [*MAIN_WAY]
    assert sum(len((PACKAGE / f"{file}.py").read_text(encoding="utf-8").splitlines()) for file in files) < 5500


@pytest.mark.parametrize("module", MAIN_WAY)
def test_an_edit_changes_the_code_of_the_stages_behind_it(
    module: str, copy: Path, before: tuple[dict[str, str], SourceCode]
) -> None:
    """Faults: results of other code count as up to date; an edit of the IDF encodes all documents again."""
    path = copy.joinpath(*module.split(".")).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    edited_texts = [*edits(text)]
    assert edited_texts
    for edited in edited_texts:
        found = {name for name in changed(path, edited, before) if not BRANCHES.match(name)}
        assert found == MAIN_WAY[module], edited
    assert not changed(path, inert(text), before)


@pytest.mark.parametrize(
    ("file", "stages"),
    {
        "core/lock.py": set(),
        "collections/file_text.py": {"collection file_folder", *(f"text {name}" for name in FORMATS)},
        "collections/text/mail.py": {"text eml", "text docx", "text pptx", "text xlsx"},
        "models/dense.py": {*(name for name in ENCODE if "dense" in name), "expand", "search dense"},
        "service/app.py": set(),
        "trainer/pairs.py": set(),
    }.items(),
)
def test_an_edit_elsewhere(file: str, stages: set[str], copy: Path, before: tuple[dict[str, str], SourceCode]) -> None:
    """Infrastructure shapes nothing; a program that is named in a string does (file_text); so do imports inside
    functions (dense)."""
    text = (copy / file).read_text(encoding="utf-8")
    branches = re.compile("(adapt|export|judge|plugin|ship|trainer)")
    found = changed(copy / file, next(edits(text)), before)
    assert {name for name in found if not branches.match(name)} == stages


def test_a_data_file_counts_where_a_module_names_it(copy: Path, before: tuple[dict[str, str], SourceCode]) -> None:
    assert changed(copy / "plugin" / "index.md.jinja", "another card", before) == {"ship"}


@pytest.mark.parametrize(
    ("code", "needed"),
    {
        "def late():\n    from cai_pyserini.runs import fusions": "runs.fusions",
        "from cai_pyserini.runs.fusions import FUSIONS": "runs.fusions",
        "from ..runs.fusions import FUSIONS": "runs.fusions",
        "from ..runs import fusions": "runs.fusions",
        "from . import nearer": "vectors.nearer",
        "import cai_pyserini.vectors.own.formula": "vectors.own.formula",
        "from cai_pyserini.vectors import own": "vectors.own",
        "import_module('cai_pyserini.runs.fusions')": "runs.fusions",
        "(Path(__file__).parent / 'own/table.json').read_text()": "vectors/own/table.json",
    }.items(),
)
def test_every_form_of_import_is_seen(code: str, needed: str, tmp_path: Path) -> None:
    files = ("runs/fusions.py", "vectors/nearer.py", "vectors/own/__init__.py", "vectors/own/formula.py")
    for name in (*files, "vectors/own/table.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "vectors/bm25.py").write_text(code, encoding="utf-8")
    assert {needed, "vectors"} <= {*SourceCode(tmp_path).closure("vectors.bm25")}


def test_code_that_is_edited_while_it_runs_is_refused(
    copy: Path, before: tuple[dict[str, str], SourceCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: in a notebook that reloads an edited formula, the old scores are up to date."""
    source = SourceCode(copy)
    source.files |= before[1].files
    monkeypatch.setattr(identity, "_running", lambda: source)
    path = copy / "vectors" / "bm25.py"
    text = path.read_text(encoding="utf-8")
    identity.code("impact")
    path.write_text(inert(text), encoding="utf-8")
    identity.code("impact")
    path.write_text(text + "\nX = 1\n", encoding="utf-8")
    with pytest.raises(CaiError, match=r"the code of impact has been edited since .* \(vectors.bm25\)"):
        identity.code("impact")
    identity.code("idf")
    path.write_text(text, encoding="utf-8")


def test_a_stage_that_is_not_recorded_or_has_lost_a_module_is_changed_code(
    copy: Path, before: tuple[dict[str, str], SourceCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults: a new reader ends every command with a KeyError; a module that has moved hides all edits."""
    source = SourceCode(copy)
    source.files |= before[1].files
    monkeypatch.setattr(identity, "_running", lambda: source)
    source.bytes_digest = "edited"
    monkeypatch.setitem(STAGES, "own", Stage("own", "vectors.moved"))
    assert changed_stages.__wrapped__().keys() >= {"own"}


def test_imports_are_those_that_the_linter_sees(parsed: SourceCode) -> None:
    """The fault: an import of another form is overlooked, and edits of what it brings count as up to date."""
    graph = grimp.build_graph(NAME, exclude_type_checking_imports=True, cache_dir=None)
    packages = {module for module in graph.modules if graph.find_children(module)}
    for name, file in parsed.files.items():
        if "/" not in name:
            imported = graph.find_modules_directly_imported_by(f"{NAME}.{name}") - packages
            assert {module.removeprefix(f"{NAME}.") for module in imported} <= {*file.needs}, name


def test_recipes_are_made_in_the_code_of_their_stage(parsed: SourceCode) -> None:
    """The fault: a stage is declared with another module than the one that makes its results."""
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for stage in re.findall(r"recipe\(\s*\"([^\"]+)\"", path.read_text(encoding="utf-8")):
            codes = [code for name, code in code_of_stages().items() if name == stage or name.startswith(f"{stage} ")]
            assert any(module in parsed.closure(code) for code in codes), (stage, module)


def test_machinery_is_what_makes_artifacts(parsed: SourceCode) -> None:
    """The fault: a module that shapes results is taken for machinery because artifacts begin to use it."""
    todo, found = ["core.artifact"], set[str]()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += parsed.read(name).needs
    names = ("bars", "database", "flags", "packages", "processes", "settings", "steps", "terminal")
    others = {f"core.{name}" for name in names}
    machinery = {name for name in MACHINERY if name.startswith("core.")}
    assert {name for name in found if "." in name and "/" not in name} == machinery - others


def test_the_recorded_code_is_the_running_code(parsed: SourceCode) -> None:
    stages, digest = recorded()
    found = {name: parsed.digest(code) for name, code in code_of_stages().items()}
    remedy = "record it with `python -m tests.core.stages`, and raise the versions of what changes"
    assert found == {name: stage.code for name, stage in stages.items()}, remedy
    assert parsed.bytes_digest == digest and not changed_stages(), remedy


def test_without_sources_the_version_is_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an archive, or where only byte code is installed."""
    monkeypatch.setattr(identity, "_running", lambda: SourceCode(tmp_path / "archive.zip"))
    assert changed_stages.__wrapped__() == {}


@pytest.fixture
def edited(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edited]:
    """Edit a module of the copy, whose code then counts as the running one, and return its names."""
    originals: dict[Path, str] = {}

    def edit(module: str, expression: str, other: str) -> dict[str, Any]:
        path = copy / module
        originals[path] = text = path.read_text(encoding="utf-8")
        assert expression in text
        path.write_text(text.replace(expression, other), encoding="utf-8")
        source = SourceCode(copy)
        monkeypatch.setattr(identity, "_running", lambda: source)
        monkeypatch.setattr(identity, "changed_stages", cache(changed_stages.__wrapped__))
        identity._note_change.cache_clear()
        return runpy.run_path(str(path))

    yield edit
    for path, text in originals.items():
        path.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_a_run_of_an_edited_clone_has_other_scores(
    edited: Edited, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: with another formula, the run is up to date and has the scores of the formula before."""

    def results() -> dict[str, Any]:
        run([f"{DATA}/tiny.yaml", "--systems", "splade-idf", "--output", str(tmp_path / "run")])
        return json.loads((tmp_path / "run" / "results.json").read_text())

    def notes() -> list[str]:
        return [name for message in caplog.messages for name in re.findall("the code of (.*) differs from", message)]

    shutil.copytree(run_folder, tmp_path / "run")
    before = results()
    assert not notes()
    names = edited("models/idf.py", "np.log(documents / frequencies)", "documents**3.0")
    monkeypatch.setattr(idf, "FORMULAS", names["FORMULAS"])
    after = results()
    assert notes() == ["idf", "impact"]
    scores = [each["systems"]["splade-idf"]["nDCG@10"] for each in (before, after)]
    assert scores[0] != scores[1]
    assert [each["provenance"]["changed_code"] for each in (before, after)] == [[], ["idf", "impact"]]
    again = {name for name, digest in after["made"].items() if before["made"][name] != digest}
    kinds = ("idf", "impacts/splade-idf", "indexes/splade-idf", "runs/splade-idf.trec", "evaluations/splade-idf.json")
    assert again == {*kinds}
