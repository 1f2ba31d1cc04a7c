"""Check the arguments of ./run_beir.sh before anything is installed: with Python's standard library alone.

The settings of a run are declared with pydantic, and their modules import others, none of which parsing a command line
needs: stand-ins take the places of all packages, and the command itself checks values and files later, also the one of
--config. Exits with 3 after showing the help, and with 4 if neither a collection nor that file is given.
"""

import sys
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, get_type_hints

from cai_pyserini.core import terminal


class _FieldInfo:
    """A field of a stand-in for settings."""

    def __init__(self, default: Any = ..., *, description: str = "", json_schema_extra: Any = None, **limits: Any):
        self.default, self.description, self.json_schema_extra = default, description, json_schema_extra
        self.annotation: Any = None

    def is_required(self) -> bool:
        return self.default is ...


class _BaseModel:
    """Settings with fields by name, whose values are not checked."""

    model_fields: ClassVar[dict[str, _FieldInfo]] = {}

    def __init_subclass__(cls) -> None:
        cls.model_fields = {}
        for name, annotation in get_type_hints(cls).items():
            if "ClassVar" not in str(annotation):
                default = getattr(cls, name, ...)
                cls.model_fields[name] = field = default if isinstance(default, _FieldInfo) else _FieldInfo(default)
                field.annotation = annotation

    def __init__(self, **values: Any):
        vars(self).update({name: field.default for name, field in self.model_fields.items()} | values)


class _Module(ModuleType):
    """A module whose names are classes that accept anything, and decorators that change nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        methods = {"__init__": lambda self, *given, **named: None, "__call__": lambda self, function: function}
        return type(name, (), methods | {"add_implicit_resolver": lambda *given: None})


class _StandIns(MetaPathFinder, Loader):
    """Imports a stand-in for every module that is neither ours nor Python's."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package = name.partition(".")[0]
        is_other = package not in sys.stdlib_module_names and package != __spec__.name.partition(".")[0]
        return ModuleSpec(name, self, is_package=True) if is_other else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "pydantic":
            given = {"BaseModel": _BaseModel, "Field": _FieldInfo, "ConfigDict": dict, "ValidationError": ValueError}
            vars(module).update(given)


def main(argv: list[str]) -> int:
    sys.meta_path.insert(0, _StandIns())

    from cai_pyserini.core import settings as core_settings
    from cai_pyserini.core.config import load_index_config, names
    from cai_pyserini.core.errors import CaiError
    from cai_pyserini.core.settings import flag, parse
    from cai_pyserini.experiments.names import parse_system
    from cai_pyserini.experiments.settings import RunSettings

    core_settings._read_partial = lambda kind, path: {}  # which PyYAML reads
    text = RunSettings.model_fields["collections"].description

    class Arguments(RunSettings):
        __doc__ = RunSettings.__doc__
        collections: list[str] = flag([], f"{text} (default: hpo)", positional=True)

    try:
        settings = parse(Arguments, argv, "./run_beir.sh")
    except SystemExit as end:
        return int(end.code or 3)
    if settings.config and not Path(settings.config).is_file():
        raise CaiError(f"no file {settings.config}")
    for name in {*settings.systems} - {"all"}:
        parse_system(name)
    for collection in settings.collections:
        if collection not in names("index_configs") and not Path(collection).exists():
            load_index_config(collection)  # which says why it is none, or is an index of Pyserini's
    return 0 if settings.collections or settings.config else 4


if __name__ == "__main__":
    terminal.run(partial(main, sys.argv[1:]))
