"""Change the documents that a Python program gave for an index, and update the run that was made of them."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cai_pyserini.collections import in_python
from cai_pyserini.collections.contract import OF_PYTHON
from cai_pyserini.collections.values import checked_id
from cai_pyserini.core.bars import progress_line
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write
from cai_pyserini.engine.open import Action
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.update import update

logger = logging.getLogger(__name__)


def change(folder: Path, action: Action, given: Any) -> None:
    """Add or delete documents, or replace those with the same ids and add the others; then update the run. If that
    fails, the documents are as before; a change that was killed is finished first. Raises CaiError for a run of the
    user's own files, for an id to add that is there, for one to delete that is not, and for deleting all documents."""
    config = RunFolder(folder).experiment.collection
    path = Path(config.source)
    if not path.name.endswith(OF_PYTHON):
        raise CaiError(f"{folder} was made of {path}: change documents there, then `cai-pyserini update {folder}`")
    previous = path.with_suffix(".previous")
    if previous.exists():  # a change that was killed
        with _undone_by_errors(path, previous):
            _update(folder)
    ids = {_id(line) for line in _lines(path)}
    new, gone = dict[str, str](), set[str]()
    if action == "delete":
        gone = {checked_id(getattr(id, "id", id), "the document") for id in given}
        if gone == ids:
            raise CaiError("these are all documents, and an index has at least one")
        if unknown := min(gone - ids, default=None):
            raise CaiError(f"there is no document {unknown!r} to delete")
    else:
        types = in_python.MetadataTypes(config.metadata, bool(config.strict))
        unused = 1 + max((int(id) for id in ids if id.isdecimal()), default=-1)
        new = dict(in_python.lines(in_python.documents(given, unused if action == "add" else None), types))
        if action == "add" and (known := next((id for id in new if id in ids), None)):
            raise CaiError(f"document {known!r} is there already: `update` replaces it")
        types.warn()
        if types.undeclared:
            logger.warning("metadata left out, which the index does not have: %s", ", ".join(types.undeclared))
    os.link(path, previous)
    with _undone_by_errors(path, previous):
        with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(new.pop(id, line) for line in _lines(previous) if (id := _id(line)) not in gone)
            file.writelines(new.values())
        _update(folder)


def _update(folder: Path) -> None:
    for line in update(folder):
        progress_line(line)


@contextmanager
def _undone_by_errors(path: Path, previous: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        previous.replace(path)
        raise
    previous.unlink()


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [*file]


def _id(line: str) -> str:
    return str(json.loads(line)["_id"])
