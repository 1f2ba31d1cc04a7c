"""The source code that shapes a stage's results, and its digest.

The code of a stage is its modules and the files of this package that they need, directly or through others: imported
modules, also inside functions, with the packages they are in; modules run as programs, which are named in strings; data
files beside or below a module that names them. Comments, docstrings and line breaks do not count.

`stages.json` records each stage's version with the digest that its code had, and the digest of the bytes of all files:
while these are the recorded ones, no file has to be parsed.
"""

import ast
import hashlib
import io
import json
import re
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple

NAME = __name__.partition(".")[0]
PACKAGE = Path(__file__).parents[1]
TABLE = resources.files(__package__) / "stages.json"  # also in a package without folders
# Shape no result: they decide where and when files are written, on how many processors, and what is shown meanwhile;
# settings that shape results are in recipes.
MACHINERY = {
    *("core.artifact", "core.bars", "core.database", "core.errors", "core.file_formats", "core.files", "core.flags"),
    *("core.identity", "core.lock", "core.manifest", "core.packages"),
    *("core.processes", "core.settings", "core.source_code", "core.steps", "core.terminal"),
    *("core.version", "indexes/logging.properties", "vectors.speed"),
}
# Choose a reader, whose code is in the digest of the collection or the text that it returns.
CHOOSING = {"collections.readers", "collections.file_text"}
NO_CODE = re.compile(r"stages\.json|.*\.(pyc|yaml)")  # YAML files are inside installed packages only
BESIDE = re.compile(r"[\w/-]+(\.\w+)+")  # a path of a file


class Source(NamedTuple):
    """A file of the package."""

    code: str  # the digest of what counts
    needs: list[str]  # other files, by their names here


class SourceCode:
    """The files of a package in `root`, as they are now. A module is named without the package's name, as in
    models.head, a data file by its path."""

    def __init__(self, root: Path = PACKAGE):
        self.root = root
        self.files: dict[str, Source] = {}  # those parsed so far
        paths = (path for path in root.rglob("*") if not NO_CODE.fullmatch(path.name) and path.is_file())
        self._data = {path: (_modified(path), path.read_bytes()) for path in sorted(paths)}

    @cached_property
    def bytes_digest(self) -> str:
        """The digest of the bytes of all files."""
        files = (f"{path.relative_to(self.root)} {_digest(data)}\n" for path, (_, data) in self._data.items())
        return _digest("".join(files).encode())

    @property
    def has_sources(self) -> bool:
        return self._path(__name__.partition(".")[2]).is_file()

    def digest(self, code: str) -> str:
        """The digest of a stage's code: modules, and modules to leave out with what only they need, after a minus."""
        return _digest("".join(f"{name} {self.read(name).code}\n" for name in self.closure(code)).encode())

    def closure(self, code: str) -> list[str]:
        """The names of the files in a stage's code, sorted."""
        words = code.split()
        todo, found = [word for word in words if word[0] != "-"], set[str]()
        left_out = MACHINERY | {word[1:] for word in words if word[0] == "-"}
        while todo:
            if (name := todo.pop()) not in found | left_out:
                found.add(name)
                todo += [] if name in CHOOSING else self.read(name).needs
                todo += [package] if (package := name.rpartition(".")[0]) and "/" not in name else []
        return sorted(found)

    def edited(self, code: str) -> list[str]:
        """The files of a stage's code that have become other code meanwhile."""
        if not any(_modified(path) != before for path, (before, _) in self._data.items()):
            return []
        now = SourceCode(self.root)
        return [name for name in self.closure(code) if now.read(name).code != self.read(name).code]

    def read(self, name: str) -> Source:
        """A file; an empty one if there is none of this name."""
        if name not in self.files:
            path = self.root / name if "/" in name else self._path(name)
            _, data = self._data.get(path, (0, b""))
            self.files[name] = Source(_digest(data), [])
            if path.suffix == ".py":
                with suppress(SyntaxError):  # it is being edited
                    self.files[name] = Source(_digest(_code(data)), sorted({*self._needed(path, data)}))
        return self.files[name]

    def _path(self, module: str) -> Path:
        path = self.root.joinpath(*module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def _needed(self, path: Path, data: bytes) -> Iterator[str]:
        packages = [NAME, *path.relative_to(self.root).parent.parts]
        for node in _nodes(ast.parse(data)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                relative = packages[: len(packages) + 1 - node.level] if node.level else []
                module = ".".join([*relative, *([node.module] if node.module else [])])
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and BESIDE.fullmatch(node.value):
                names, beside = [node.value], path.parent / node.value
                if beside.is_file():
                    yield beside.relative_to(self.root).as_posix()
            for name in names:
                package, _, module = name.partition(".")
                if package == NAME and module and self._path(module).is_file():
                    yield module


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but imports for type checkers."""
    todo = [tree]
    while todo:
        yield (node := todo.pop())
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            todo += ast.iter_child_nodes(node)


def _code(data: bytes) -> bytes:
    """What counts of a module, the same in all versions of Python."""
    words, statement = list[str](), list[tokenize.TokenInfo]()
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            words.append(tokenize.tok_name[token.type])
        elif token.type == tokenize.NEWLINE:
            if [each.type for each in statement] != [tokenize.STRING]:  # a docstring
                words += [each.string for each in statement]
                words.append("\n")
            statement = []
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER):
            statement.append(token)
    return "\0".join(words).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class Record(NamedTuple):
    """A stage as it is recorded."""

    version: int
    code: str  # the digest


@cache
def recorded() -> tuple[dict[str, Record], str]:
    """The recorded stages, and the digest of the bytes of all files."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Record(**row) for name, row in table["stages"].items()}, table.get("bytes", "")
