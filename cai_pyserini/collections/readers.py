"""Open the collection that an index config names, with the right reader."""

import re
from collections.abc import Generator, Sequence
from importlib import import_module
from pathlib import Path

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.file_folder import FileFolder, has_files
from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core import artifact
from cai_pyserini.core.config import (
    ENGLISH,
    LANGUAGES,
    PYSERINI,
    IndexConfig,
    joined_languages,
    languages_in,
    load_index_config,
)
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import cache_home
from cai_pyserini.core.identity import is_of_this_code
from cai_pyserini.core.processes import spread

BEIR = re.compile(r"(beir-v1\.0\.0-[^.]+)\..+")  # topics of these indexes are named after the collection
IMPORT = "cai_pyserini.plugin.prebuilt"  # imported in a process of its own, because it starts Java
FILE_SETTINGS = ("columns", "query_columns", "metadata")


def load_collection(spec: str) -> Collection:
    """The collection that `spec` refers to; see load_in_languages."""
    return open_collection(load_in_languages(spec))


def open_collection(config: IndexConfig) -> Collection:
    """The collection of an index config, split into passages if configured."""
    collection = _open(config)
    collection.language = config.language
    collection.glossary = Path(config.glossary) if config.glossary else None
    return collection.in_passages(config.passages, config.passage_overlap) if config.passages else collection


def languages_found(config: IndexConfig) -> list[str]:
    """The languages of a collection, most frequent first: those that it names, or else, in files, its documents'."""
    if "language" in config.model_fields_set or not _is_in_files(config):
        return languages_in(config.language)
    try:
        return _open(config).languages()
    except CaiError:  # which the first step reports
        return [ENGLISH]


def other_languages(config: IndexConfig) -> list[str]:
    """The languages of a collection's documents, in files, that it does not name and that have analyzers."""
    found = _open(config).languages() if _is_in_files(config) else []
    return [each for each in found if each in LANGUAGES and each not in languages_in(config.language)]


def in_languages(config: IndexConfig, languages: Sequence[str]) -> IndexConfig:
    """The collection in these languages, as far as they have analyzers."""
    language = joined_languages([each for each in languages if each in LANGUAGES] or [ENGLISH])
    return config if language == config.language else config.replace(language=language)


def load_in_languages(spec: str) -> IndexConfig:
    """The collection that `spec` refers to, see load_index_config, in the languages of its documents."""
    config = load_index_config(spec)
    return in_languages(config, languages_found(config))


def _is_in_files(config: IndexConfig) -> bool:
    return config.source != "hpo" and not config.source.startswith(("ir_datasets:", PYSERINI))


def _open(config: IndexConfig) -> Collection:
    if not _is_in_files(config) and (wrong := next((key for key in FILE_SETTINGS if getattr(config, key)), None)):
        raise CaiError(f"collection {config.name}: {wrong} applies to files only, but its source is {config.source}")
    if config.source == "hpo":
        return Hpo(config.name, config.fields)
    if config.source.startswith("ir_datasets:"):
        from cai_pyserini.collections.ir_dataset import IrDataset  # takes half a second to register its datasets

        return IrDataset(config.source.removeprefix("ir_datasets:"), config.name, config.fields, config.strict)
    if config.source.startswith(PYSERINI):
        path = prebuilt_folder(config.source.removeprefix(PYSERINI), config.topics)
    else:
        path = Path(config.source)
    if not path.exists():
        raise CaiError(f"no collection file or folder {path}" + (f"; {config.note}" if config.note else ""))
    if has_files(path):
        if wrong := next((key for key in ("columns", "metadata") if getattr(config, key)), None):
            raise CaiError(
                f"collection {config.name}: {wrong} does not apply to the files in {path}, which have their own"
            )
        settings = {key: getattr(config, key) for key in ("query_columns", "strict", "base_url")}
        return FileFolder(path, config.name, config.fields, **settings)
    if config.base_url:
        raise CaiError(f"collection {config.name}: base_url applies to a folder of files, which {path} is not")
    settings = {key: getattr(config, key) for key in (*FILE_SETTINGS, "strict")}
    return BeirFolder(path, config.name, config.fields, **settings)


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
