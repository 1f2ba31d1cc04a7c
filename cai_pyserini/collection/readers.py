"""Which reader opens the collection that an index config names."""

from pathlib import Path

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.collection.contract import Collection
from cai_pyserini.collection.hpo import Hpo
from cai_pyserini.collection.prebuilt import prebuilt_folder
from cai_pyserini.core.config import PYSERINI, IndexConfig, load_index_config
from cai_pyserini.core.errors import CaiError

OF_FILES = ("columns", "query_columns", "metadata")  # settings


def load_collection(spec: str) -> Collection:
    """The collection that `spec` refers to, see load_index_config."""
    return open_collection(load_index_config(spec))


def open_collection(config: IndexConfig) -> Collection:
    """The collection that an index config names, in passages if it says so."""
    collection = _open(config)
    collection.language = config.language
    return collection.in_passages(config.passages, config.passage_overlap) if config.passages else collection


def _open(config: IndexConfig) -> Collection:
    in_files = config.source != "hpo" and not config.source.startswith(("ir_datasets:", PYSERINI))
    if not in_files and (given := next((k for k in OF_FILES if getattr(config, k)), None)):
        raise CaiError(f"collection {config.name}: {given} are those of files, but its source is {config.source}")
    if config.source == "hpo":
        return Hpo(config.name, config.fields)
    if config.source.startswith("ir_datasets:"):
        from cai_pyserini.collection.ir_dataset import IrDataset  # registers hundreds of datasets: half a second

        return IrDataset(config.source.removeprefix("ir_datasets:"), config.name, config.fields, config.strict)
    if config.source.startswith(PYSERINI):
        path = prebuilt_folder(config.source.removeprefix(PYSERINI), config.topics)
    else:
        path = Path(config.source)
    if not path.exists():
        raise CaiError(f"no collection file or folder {path}" + (f"; {config.note}" if config.note else ""))
    columns = config.columns, config.query_columns
    return BeirFolder(path, config.name, config.fields, *columns, config.strict, config.metadata)
