"""Collections that Pyserini has by name, in folders in BEIR's layout that are kept in its cache."""

import re
from collections.abc import Generator
from importlib import import_module
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.cache import cache_home
from cai_pyserini.core.processes import spread

BEIR = re.compile(r"(beir-v1\.0\.0-[^.]+)\..+")  # whose topics are named after the collection
IMPORT = "cai_pyserini.plugin.prebuilt"  # by name: it starts Java, which stays out of this process


def prebuilt_folder(index: str, topics: str | None = None) -> Path:
    """The folder of the documents that a prebuilt index of Pyserini's stores, and of topics with qrels, split `test`.

    It is written by the first call. Without `topics`, those of BEIR's collections are known, others have none.
    """
    if topics is None and (beir := BEIR.fullmatch(index)):
        topics = f"{beir[1]}-test"
    folder = cache_home() / "collections" / "+".join(filter(None, (index, topics)))
    if artifact.read_manifest(folder) is None:
        with spread(_import, [(index, topics, folder)], apart=True) as made:
            next(made)
    return folder


def _import(of: tuple[str, str | None, Path]) -> Generator[Path]:
    yield import_module(IMPORT).import_collection(*of)
