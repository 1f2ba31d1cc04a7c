"""Find files inside installed Python packages (`pip:PACKAGE/PATH`), and check for missing packages."""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from cai_pyserini.core.errors import CaiError

PIP = "pip:"
ROOT = Path(__file__).parents[2]


def pip_path(spec: str) -> Path:
    """The file or folder that `pip:PACKAGE/PATH` names. The package is located, not imported."""
    package, _, path = spec.removeprefix(PIP).partition("/")
    try:
        located = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        raise CaiError(f"{spec}: package {package} is not installed: {install_command('demo')}") from None
    if not located.exists():
        raise CaiError(f"{spec}: the installed {package} {distribution(package).version} has no {path}")
    return located


def install_command(extra: str = "") -> str:
    """The pip command that installs this package with an extra, from this clone or from PyPI."""
    what = f"-e '{ROOT}" if (ROOT / "setup.cfg").is_file() else "'cai-pyserini"
    return f"{sys.executable} -m pip install {what}{f'[{extra}]' if extra else ''}'"


TRAINER = ("accelerate", "datasets")  # modules of the extra `trainer`


def require_trainer() -> None:
    """Raise CaiError if the extra `trainer` is missing."""
    require_modules(TRAINER, "trainer")


def require_modules(modules: tuple[str, ...], extra: str) -> None:
    """Raise CaiError if one of these modules of an extra is missing."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise CaiError(f"{', '.join(missing)} not installed: {install_command(extra)}")
