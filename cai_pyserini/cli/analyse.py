"""Run an analysis: a module with a class of settings and a function of the module's name."""

import ast
from importlib import import_module
from pathlib import Path

from cai_pyserini.core import flags, terminal
from cai_pyserini.core import settings as core_settings
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Argv, Settings, parse


def declared_settings() -> dict[str, type[Settings]]:
    """The settings class of each analysis, by its name.

    Only these classes are executed, with the modules' imports from core.flags, core.settings and typing: the other
    imports take seconds, and --help should respond at once.
    """
    fast_modules = {flags.__name__, core_settings.__name__, "typing"}
    classes: dict[str, type[Settings]] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module in fast_modules]
        for node in module.body:
            if isinstance(node, ast.ClassDef) and "Settings" in map(ast.unparse, node.bases):
                namespace = {"__name__": f"{__package__}.{path.stem}"}
                exec(compile(ast.Module([*imports, node], []), path, "exec"), namespace)  # noqa: S102
                classes[path.stem] = namespace[node.name]  # type: ignore[assignment]
    return classes


def main(argv: Argv = None) -> None:
    classes = declared_settings()
    settings = parse(classes, argv, "cai-pyserini analyse", "Analyze collections, vocabularies and finished runs.")
    (name,) = (name for name, cls in classes.items() if isinstance(settings, cls))
    if (output := settings.output).is_file():
        raise CaiError(f"{output} is a file: choose a folder for --output")
    report = getattr(import_module(f"cai_pyserini.analysis.{name}"), name)(settings)
    files = report.write(output)
    print(f"{report.text}\n\n{output}: {', '.join(files)}")


if __name__ == "__main__":
    terminal.run(main)
