"""The list of analyses, and their help."""

import subprocess
import sys
from importlib import import_module

import pytest

from cai_pyserini.analysis.__main__ import declared_settings
from tests.test_main import HEAVY


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom cai_pyserini.analysis.__main__ import main\ntry:\n    main(['explain', '--help'])\n"
    code += "except SystemExit:\n    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ") and not HEAVY & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name, declared", declared_settings().items())
def test_declared_settings_are_those_of_the_module(name: str, declared: type) -> None:
    module = import_module(f"cai_pyserini.analysis.{name}")
    settings = getattr(module, declared.__name__)
    assert settings.model_json_schema() == declared.model_json_schema() and callable(getattr(module, name))
