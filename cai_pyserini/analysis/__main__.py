"""The analyses: modules that declare settings, and answer a question with a function named like the module."""

import ast
from importlib import import_module
from pathlib import Path

from cai_pyserini.core import flags, terminal
from cai_pyserini.core import settings as core_settings
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Argv, Settings, parse


def declared_settings() -> dict[str, type[Settings]]:
    """The settings class of each analysis, by its name.

    Of the modules, only these classes are executed, with what they import from core.flags and core.settings: the other
    imports take seconds, and --help should respond at once.
    """
    light = {flags.__name__, core_settings.__name__, "typing"}
    found: dict[str, type[Settings]] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module in light]
        for node in module.body:
            if isinstance(node, ast.ClassDef) and "Settings" in map(ast.unparse, node.bases):
                names = {"__name__": f"{__package__}.{path.stem}"}
                exec(compile(ast.Module([*imports, node], []), path, "exec"), names)  # noqa: S102
                found[path.stem] = names[node.name]  # type: ignore[assignment]
    return found


def main(argv: Argv = None) -> None:
    kinds = declared_settings()
    settings = parse(
        kinds, argv, "python -m cai_pyserini.analysis", "Analyze collections, vocabularies and finished runs."
    )
    (name,) = (name for name, kind in kinds.items() if isinstance(settings, kind))
    if (output := settings.output).is_file():
        raise CaiError(f"{output} is a file: choose a folder for --output")
    report = getattr(import_module(f"cai_pyserini.analysis.{name}"), name)(settings)
    files = report.write(output)
    print(f"{report.text}\n\n{output}: {', '.join(files)}")


if __name__ == "__main__":
    terminal.run(main)
