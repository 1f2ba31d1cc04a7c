"""The constants of recipes: none can be forgotten, and none of them costs a result that does not depend on it."""

import ast
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import constants as module
from cai_pyserini.core.constants import CONSTANT, ROOT, UNRECORDED, constants

# Constants that shape the results of a stage, wherever they stand: file, constant, stages that depend on it, and one
# that does not.
SHAPING = [
    ("core/artifact.py", "FORMAT", ["encode.encode", "words.words", "retrieval.search"], ""),
    ("models/splade.py", "POWER", ["encode.encode", "expand.expand", "trainer.splade"], "words.words"),
    ("vectors/shards.py", "SHARD", ["encode.encode", "words.words", "smooth.smooth"], "index.impact"),
    ("words/words.py", "SPANS", ["words.words"], "index.bm25"),
    ("words/words.py", "SEED", ["words.words"], "smooth.smooth"),
    ("words/words.py", "FORM", ["words.words"], "encode.encode"),
    ("collection/spans.py", "SHARE", ["words.words"], "encode.encode"),
    ("expand/expand.py", "LENGTH", ["expand.expand"], "encode.encode"),
    ("impact/impacts.py", "BEST", ["impact.impacts"], "index.impact"),
    ("impact/bm25.py", "NEAR", ["impact.impacts"], "words.words"),
    ("core/config.py", "JOINT_BITS", ["impact.impacts"], ""),
    ("smooth/neighbours.py", "DIMENSIONS", ["smooth.smooth"], "impact.impacts"),
    ("smooth/neighbours.py", "CANDIDATES", ["smooth.smooth"], "expand.expand"),
    ("retrieval/search.py", "PASSAGE_HITS", ["retrieval.search"], "fusion.fuse"),
    ("fusion/fusions.py", "RRF_K", ["fusion.fuse"], "retrieval.search"),
    ("trainer/splade.py", "LAMBDAS", ["trainer.splade"], "trainer.pretrain"),
]


def test_every_constant_that_shapes_a_result_is_in_its_recipe(tmp_path: Path) -> None:
    """A copy of the package in which all these constants are others, read by a process of its own."""
    copy = Path(shutil.copytree(ROOT, tmp_path / ROOT.name, ignore=shutil.ignore_patterns("__pycache__")))
    for file, name, _, _ in SHAPING:
        source = (copy / file).read_text()
        changed = re.sub(rf"^{name}(: .*)? = ", rf"{name}\1 = 1 and ", source, flags=re.MULTILINE)
        assert changed != source, (file, name)
        (copy / file).write_text(changed)
    stages = sorted({stage for _, _, stages, other in SHAPING for stage in (*stages, other) if stage})
    program = f"from cai_pyserini.core.constants import constants; print([constants(m) for m in {stages}])"
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    after = dict(zip(stages, ast.literal_eval(run.stdout), strict=True))
    for file, name, depending, other in SHAPING:
        key = f"{file.removesuffix('.py').replace('/', '.')}.{name}"
        for stage in depending:
            before = constants(f"cai_pyserini.{stage}")[key]
            assert after[stage][key] == f"1 and {before}", (stage, key)
        assert not other or key not in constants(f"cai_pyserini.{other}"), key


MODULES = ("__name__", "type(self).__module__", "write.__module__")  # those that make what a recipe is of


def test_every_recipe_has_the_constants() -> None:
    """No stage names itself: artifact.made_by does, which adds the constants."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict) and path.name != "artifact.py":
                keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                assert "stage" not in keys, f"{path}:{node.lineno}: use artifact.made_by"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "artifact.made_by":
                assert ast.unparse(node.args[0]) in MODULES, f"{path}:{node.lineno}"


def test_what_is_left_out_exists() -> None:
    for name, left_out in UNRECORDED.items():
        assert set(left_out) <= module._constants(name).keys(), name
        assert all(map(CONSTANT.fullmatch, left_out))


def test_constants_are_read_as_they_are_assigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stage.py").write_text(
        "import os\nA, B = 1, 2\n_C: int = 3  # a comment\nT = {}\nT['x'] = A\nS = flag(1, 'help')\nlower = Camel = 4\n"
        "def function():\n    from cai_pyserini.other import X\n    INSIDE = 7\n"
    )
    (tmp_path / "other.py").write_text("import cai_pyserini.third\nX = 'text'\n")
    (tmp_path / "third.py").write_text("Y = 5 *  2\nif Y:\n    Z = 6\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for cached in (module.constants, module._imports, module._constants, module._parsed):
        cached.cache_clear()
    try:
        found = {"A": "(1, 2)", "B": "(1, 2)", "_C": "3", "T": "{}; A", "INSIDE": "7"}
        expected = {f"stage.{name}": value for name, value in found.items()}
        assert constants("cai_pyserini.stage") == expected | {"other.X": "'text'", "third.Y": "5 * 2", "third.Z": "6"}
    finally:
        monkeypatch.undo()
        for cached in (module.constants, module._imports, module._constants, module._parsed):
            cached.cache_clear()


def test_what_java_makes_depends_on_the_version_of_pyserini() -> None:
    for stage in ("index.bm25", "index.impact", "words.words", "retrieval.search"):
        assert constants(f"cai_pyserini.{stage}")["pyserini"] == version("pyserini")
    for stage in ("encode.encode", "smooth.smooth", "idf.idf"):  # which run where it is not installed
        assert "pyserini" not in constants(f"cai_pyserini.{stage}")


def test_how_a_collection_is_read_is_in_its_fingerprint(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = BeirFolder(tiny, "tiny").fingerprint("documents")
    assert "collection.records.NAMES" in constants("cai_pyserini.collection.beir_folder")
    monkeypatch.setattr("cai_pyserini.collection.contract.constants", lambda module: {"collection.records.NAMES": "{}"})
    assert BeirFolder(tiny, "tiny").fingerprint("documents") != before
