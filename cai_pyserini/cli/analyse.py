"""`cai-pyserini analyse`: each analysis is a module whose function of the same name answers its question."""

from importlib import import_module
from typing import Any

from cai_pyserini.analysis.settings import ANALYSES
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Group, Main


def _analyse(settings: Any) -> None:
    (name,) = (name for name, kind in ANALYSES.items() if isinstance(settings, kind))
    if (output := settings.output).is_file():
        raise CaiError(f"{output} is a file: choose a folder for the output")
    report = getattr(import_module(f"cai_pyserini.analysis.{name}"), name)(settings)
    files = report.write(output)
    print(f"{report.text}\n\n{output}: {', '.join(files)}")


main = Main(Group("Analyse collections and finished runs.", ANALYSES), "analyse", _analyse)
