"""An installed wheel has everything: all folders, the YAML files, the page's template, Java's logging settings."""

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = """
import cai_pyserini
from cai_pyserini.core.config import load_encoder, load_index_config, names
print(cai_pyserini.__file__)
counts = len(names("encoders")), len(names("index_configs"))
print(*counts, load_encoder("splade-tiny").kind, load_index_config("hpo").hits)
"""


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


@pytest.mark.slow
def test_a_wheel_has_everything(tmp_path: Path) -> None:
    clone = tmp_path / "clone"  # building leaves files behind
    for name in ("cai_pyserini", "encoders", "index_configs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(clone)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        packed = {name.removeprefix("cai_pyserini/") for name in archive.namelist() if name.startswith("cai_pyserini/")}
    folders = (("cai_pyserini", ""), ("encoders", "encoders/"), ("index_configs", "index_configs/"))
    for folder, prefix in folders:
        paths = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert {prefix + str(path.relative_to(ROOT / folder)) for path in paths} <= packed
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path / "site")},
    )
    place, counts = done.stdout.splitlines()
    assert place.startswith(str(tmp_path / "site"))
    encoders, collections = (len(list((ROOT / folder).glob("*.yaml"))) for folder in ("encoders", "index_configs"))
    assert counts == f"{encoders} {collections} splade 100"
