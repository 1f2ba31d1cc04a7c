"""Pyserini's prebuilt indexes as collections, in folders in BEIR's layout in Pyserini's cache."""

import re
from collections.abc import Generator
from importlib import import_module
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.files import cache_home
from cai_pyserini.core.identity import is_of_this_code
from cai_pyserini.core.processes import spread

BEIR = re.compile(r"(beir-v1\.0\.0-[^.]+)\..+")  # topics of these indexes are named after the collection
IMPORT = "cai_pyserini.plugin.prebuilt"  # imported in a process of its own, because it starts Java


def prebuilt_folder(index: str, topics: str | None = None) -> Path:
    """The folder with the documents stored in a prebuilt index of Pyserini, and topics with qrels as split `test`,
    which the first call writes. Without `topics`, only BEIR's collections have topics."""
    if topics is None and (beir := BEIR.fullmatch(index)):
        topics = f"{beir[1]}-test"
    folder = cache_home() / "collections" / "+".join(filter(None, (index, topics)))
    manifest = artifact.read_manifest(folder)
    if manifest is None or not is_of_this_code(manifest.recipe, "prebuilt"):
        with spread(_import, [(index, topics, folder)], apart=True) as folders:
            next(folders)
    return folder


def _import(arguments: tuple[str, str | None, Path]) -> Generator[Path]:
    yield import_module(IMPORT).import_collection(*arguments)
