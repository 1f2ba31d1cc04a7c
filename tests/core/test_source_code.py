"""Which stages are made again when a file of the package is edited: those whose results it shapes, and no others."""

import io
import json
import re
import shutil
import tokenize
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grimp
import numpy as np
import pytest

from cai_pyserini import __version__
from cai_pyserini.collections.formats import SUFFIXES
from cai_pyserini.core import identity
from cai_pyserini.core.identity import STAGES, changed_stages, code_of_stages
from cai_pyserini.core.source_code import MACHINERY, NAME, PACKAGE, SourceCode, recorded
from cai_pyserini.vectors.cache import VARIABLE
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import Command

ENCODE = {f"encode {role} {kind}" for role in ("documents", "queries") for kind in ("splade", "dense", "dense idf")}
QUERIES = {name for name in ENCODE if "queries" in name}
SPLADE = {name for name in ENCODE if name.endswith("splade")}
SEARCH = {f"search {kind}" for kind in ("bm25", "dense", "impact")}
MODELS = SEARCH - {"search bm25"}
FOLDERS = {"collection beir_folder", "collection file_folder"}
READING = FOLDERS | {"beir check", "beir evaluation", "collection hpo", "collection ir_dataset", "idf", "words"}
MAIN_WAY = {  # its files, in order, and the stages that each of them shapes
    "experiments.plan": set(),
    "core.steps": set(),
    "experiments.execute": set(),
    "collections.contract": READING | ENCODE | SEARCH | {"expand", "fusion rerank", "index bm25", "index impact"},
    "collections.beir_folder": FOLDERS,
    "impacts.document_frequencies": {"idf"},
    "models.idf": {*("expand", "idf", "impact", "search dense"), *(name for name in ENCODE if name.endswith("idf"))},
    "vectors.encode": ENCODE | {"expand"},
    "vectors.shards": ENCODE | SEARCH | {"expand", "impact", "index dense", "near", "smooth", "words"},
    "models.encoder": ENCODE | MODELS | {"expand", "impact"},
    "models.splade": SPLADE | {"search impact"},
    "models.head": SPLADE | {"search impact"},
    "lucene.words": {"words"},
    "impacts.bm25": {"impact"},
    "impacts.quantization": {"impact"},
    "impacts.weighting": {"impact"},
    "lucene.impact_index": {"index impact"},
    "vectors.queries": QUERIES | MODELS | {"expand", "impact"},
    "lucene.searcher": SEARCH,
    "lucene.retrieve": SEARCH,
    "runs.trec": SEARCH | {"beir evaluation", "fusion fuse", "fusion rerank"},
    "runs.measures": {"beir evaluation"},
    "experiments.report": set(),
}
BRANCHES = re.compile("(adapt|convert|export|judge|plugin|ship|text|trainer)")  # off this way
OTHERS = {"<": "<=", ">": ">=", "+": "-", "*": "+", "and": "or", "min": "max", "True": "False", "not": ""}
EDITS = 12  # of each kind per file


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    folder = tmp_path_factory.mktemp("clone")
    return Path(shutil.copytree(PACKAGE, folder / NAME, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="module")
def before(copy: Path) -> tuple[dict[str, str], SourceCode]:
    source = SourceCode(copy)
    return {name: source.digest(code) for name, code in code_of_stages().items()}, source


def changed(edited: Path, text: str, before: tuple[dict[str, str], SourceCode]) -> set[str]:
    """The stages whose code is another one if a file of the copy has this text."""
    digests, pristine = before
    original = edited.read_bytes()
    edited.write_text(text, encoding="utf-8")
    source = SourceCode(pristine.root)
    name = edited.relative_to(source.root).as_posix()
    name = name.removesuffix(".py").replace("/", ".") if name.endswith(".py") else name
    source.files |= {other: file for other, file in pristine.files.items() if other != name}
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


def inert(text: str) -> Iterator[str]:
    """The text with other comments, docstrings and line breaks."""
    yield "# A comment.\n\n" + text
    yield text.replace('"""', '"""Edited. ', 1)
    lines = text.splitlines(keepends=True)
    for number in [number for number, line in enumerate(lines) if line.startswith(("def ", "class "))][:EDITS]:
        yield "".join([*lines[:number], "\n# A comment.\n", *lines[number:]])
    yield re.sub(r"(?m)^(    return [\w.]+\()(.*\))$", r"\1  # a comment" + "\n        \\2", text, count=1)


def test_the_main_way_is_that_of_the_documentation() -> None:
    page = (PACKAGE.parent / "docs/design/architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The main way")[2].partition("What else")[0]
    files = re.findall(r"\]\(\.\./\.\./cai_pyserini/(\w+/\w+)\.py\)", table)
    assert [file.replace("/", ".") for file in files] == [*MAIN_WAY]


@pytest.mark.parametrize("module", MAIN_WAY)
def test_an_edit_changes_the_code_of_the_stages_behind_it(
    module: str, copy: Path, before: tuple[dict[str, str], SourceCode]
) -> None:
    """Faults: results of other code count as up to date; an edit of the IDF encodes all documents again."""
    path = copy.joinpath(*module.split(".")).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    edited_texts = [*edits(text)]
    assert len(edited_texts) >= 4
    for edited in edited_texts:
        found = {name for name in changed(path, edited, before) if not BRANCHES.match(name)}
        assert found == MAIN_WAY[module], edited
    for edited in inert(text):
        assert not changed(path, edited, before), edited


@pytest.mark.parametrize(
    ("file", "stages"),
    {
        "core/bars.py": set(),
        "core/lock.py": set(),
        "core/settings.py": set(),
        "core/store.py": set(),
        "core/terminal.py": set(),
        "collections/file_text.py": {"collection file_folder", *(f"text {name}" for name in {*SUFFIXES.values()})},
        "collections/text/mail.py": {"text eml", "text docx", "text pptx", "text xlsx"},
        "models/dense.py": {*(name for name in ENCODE if "dense" in name), "expand", "search dense"},
        "service/app.py": set(),
        "trainer/loss.py": set(),
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
    assert changed(copy / "share" / "index.md.jinja", "another card", before) == {"ship"}


def test_a_new_import_brings_its_module(copy: Path, before: tuple[dict[str, str], SourceCode]) -> None:
    path, fusions = copy / "impacts" / "bm25.py", copy / "runs" / "fusions.py"
    text = path.read_text(encoding="utf-8") + "\n\ndef late():\n    from cai_pyserini.runs import fusions\n"
    assert changed(path, text, before) == changed(path, text + "    pass\n", before) >= {"impact"}
    original = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    source = SourceCode(copy)
    after = {name: source.digest(code) for name, code in code_of_stages().items()}, source
    assert "impact" in changed(fusions, fusions.read_text(encoding="utf-8") + "\nX = 1\n", after)
    path.write_text(original, encoding="utf-8")


def test_imports_are_those_that_the_linter_sees() -> None:
    """The fault: an import of another form is overlooked, and edits of what it brings count as up to date."""
    graph, source = grimp.build_graph(NAME, exclude_type_checking_imports=True, cache_dir=None), SourceCode()
    for code in code_of_stages().values():
        source.closure(code)
    packages = {module for module in graph.modules if graph.find_children(module)}
    for name, file in source.files.items():
        if "/" not in name:
            imported = graph.find_modules_directly_imported_by(f"{NAME}.{name}") - packages
            assert {module.removeprefix(f"{NAME}.") for module in imported} <= {*file.needs}, name


def test_recipes_are_made_in_the_code_of_their_stage() -> None:
    """The fault: a stage is declared with another module than the one that makes its results."""
    source = SourceCode()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for stage in re.findall(r"recipe\(\s*\"([^\"]+)\"", path.read_text(encoding="utf-8")):
            codes = [code for name, code in code_of_stages().items() if name == stage or name.startswith(f"{stage} ")]
            assert any(module in source.closure(code) for code in codes), (stage, module)


def test_machinery_is_what_makes_artifacts() -> None:
    """The fault: a module that shapes results is taken for machinery because artifacts begin to use it."""
    source, todo, found = SourceCode(), ["core.artifact"], set[str]()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += source.read(name).needs
    others = {f"core.{name}" for name in ("cache", "cluster", "database", "flags", "processes", "settings", "steps")}
    assert found - {"core/stages.json"} == {name for name in MACHINERY if name.startswith("core.")} - others


def test_formats_are_read_by_declared_code() -> None:
    assert isinstance(code := STAGES["text"].code, dict) and code.keys() == {*SUFFIXES.values()}


def test_the_recorded_code_is_the_running_code() -> None:
    changes = changed_stages()
    assert not changes, "record it with `python -m tests.core.stages`, and raise the versions of what changes"
    assert recorded()[0].keys() == code_of_stages().keys()


def test_without_sources_the_version_is_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an archive, or where only byte code is installed."""
    monkeypatch.setattr(identity.source_code, "SourceCode", partial(SourceCode, tmp_path / "archive.zip"))
    assert changed_stages.__wrapped__() == {}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone to edit, with its encoders."""
    folder = tmp_path / "clone"
    shutil.copytree(PACKAGE, folder / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("encoders", "index_configs"):
        (folder / name).symlink_to(PACKAGE.parent / name)
    return folder


def edit(path: Path, expression: str, other: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert expression in text
    path.write_text(text.replace(expression, other), encoding="utf-8")


@pytest.mark.slow
def test_a_run_of_an_edited_clone_has_other_scores(clone: Path, tiny: Path, tmp_path: Path, command: Command) -> None:
    """The fault: with another formula, the run is up to date and has the scores of the formula before."""
    arguments = ("run", tiny, "--systems", "bm25", "splade-idf", "--output", tmp_path / "run", "--precision=float32")
    made = []
    for edited in (False, True):
        if edited:
            edit(clone / NAME / "models" / "idf.py", "np.log(documents / np.maximum(frequencies, 1))", "documents**3.0")
        done = command(NAME, *arguments, cwd=clone, PYTHONPATH=str(clone))
        assert not done.returncode, done.stderr
        assert re.findall("the code of (.*) differs from", done.stderr) == ["idf", "impact"] * edited
        made.append(json.loads((tmp_path / "run" / "results.json").read_text()))
    systems, outputs = ([each[key] for each in made] for key in ("systems", "made"))
    assert systems[0]["splade-idf"]["nDCG@10"] != systems[1]["splade-idf"]["nDCG@10"]
    assert systems[0]["bm25"]["nDCG@10"] == systems[1]["bm25"]["nDCG@10"]
    assert [each["provenance"]["changed_code"] for each in made] == [[], ["idf", "impact"]]
    again = {name for name, digest in outputs[1].items() if outputs[0][name] != digest}
    kinds = ("idf", "impacts/splade-idf", "indexes/splade-idf", "runs/splade-idf.trec", "evaluations/splade-idf.json")
    assert again == {*kinds}


@pytest.mark.slow
def test_an_edited_clone_takes_no_vectors_of_other_code_from_the_cache(
    clone: Path, tiny: Path, tmp_path: Path, command: Command
) -> None:
    """The fault: with another activation, vectors of the activation before come from the cache."""
    vectors = []
    for name in ("before", "after"):
        if name == "after":
            edit(clone / NAME / "models" / "head.py", "torch.log1p(torch", "torch.sqrt(torch")
        arguments = ("--collection", tiny, "--encoder", "splade-tiny", "--precision", "float32")
        place, variables = tmp_path / name, {"PYTHONPATH": str(clone), VARIABLE: str(tmp_path / "cache")}
        done = command(NAME, "stage", "encode", *arguments, "--output", place, cwd=clone, **variables)
        assert not done.returncode, done.stderr
        assert (f"the code of encode differs from {__version__}: made again" in done.stderr) == (name == "after")
        vectors.append(Vectors(place).shard(0).vectors)
    before, after = vectors
    assert abs(np.sqrt(np.expm1(before.toarray())) - after.toarray()).max() < 1e-4
