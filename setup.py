"""The long description of the package: README.md, whose links lead to the repository as it is at the release."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?![a-z]+:|#)([^()\s]+)\)")


def place(path: str, is_image: bool = False) -> str:
    """The address of a file of the repository, at the release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search('VERSION = "(.+)"', (ROOT / "cai_pyserini" / "core" / "version.py").read_text(encoding="utf-8"))
    assert version
    return f"{project['urls']['Repository']}/{'raw' if is_image else 'blob'}/v{version[1]}/{path}"


def absolute(text: str) -> str:
    """A text of Markdown in the root, with absolute links."""
    return LINK.sub(lambda link: f"{link[1]}({place(link[2], link[1].startswith('!'))})", text)


if __name__ == "__main__":
    from setuptools import setup

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(long_description=absolute(readme), long_description_content_type="text/markdown")
