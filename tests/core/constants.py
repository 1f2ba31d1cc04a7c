"""The constants that shape results, which tests/core/test_identity.py compares with the recorded ones.

    python -m tests.core.constants

records them, in constants.json.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("constants.json")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
# Imported modules whose constants shape no result: help texts, messages, locks, paths, names of systems.
HARMLESS = {
    *("core.artifact", "core.files", "core.flags", "core.lock", "core.packages", "core.processes"),
    *("core.settings", "core.store", "core.terminal", "lucene.jvm", "experiments.experiment"),
    *("experiments.run_folder", "experiments.systems", "plugin.hook", "plugin.catalogues", "share.registry"),
}


def _modules() -> dict[str, ast.Module]:
    """The modules of the package, by dotted names without the package's."""
    files = (ROOT / "cai_pyserini").rglob("*.py")
    names = {path: path.relative_to(ROOT / "cai_pyserini").with_suffix("").as_posix() for path in files}
    return {name.replace("/", "."): ast.parse(path.read_text(encoding="utf-8")) for path, name in names.items()}


def _makes_recipes(module: ast.Module) -> bool:
    calls = (node.func for node in ast.walk(module) if isinstance(node, ast.Call))
    return any("recipe" in (getattr(call, "attr", None), getattr(call, "id", None)) for call in calls)


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cai_pyserini"):
            package = (node.module or "").removeprefix("cai_pyserini").removeprefix(".")
            yield package
            yield from (f"{package}.{name.name}" for name in node.names)


def constants() -> dict[str, str]:
    """module.NAME -> expression, for all modules that make recipes and the modules they import."""
    modules = _modules()
    todo = [name for name, module in modules.items() if _makes_recipes(module) and not name.startswith("cli.")]
    covered: set[str] = set()
    while todo:
        covered.add(name := todo.pop())
        todo += {*_imported(modules[name])} & modules.keys() - covered
    found: dict[str, str] = {}
    for name in sorted(covered - HARMLESS):
        for node in modules[name].body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                found |= {f"{name}.{each}": ast.unparse(node.value) for each in names if CONSTANT.fullmatch(each)}
    return found


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(constants(), indent=1) + "\n", encoding="utf-8")
