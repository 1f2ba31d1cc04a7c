"""Which reader opens the collection that an index config names."""

from pathlib import Path

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.collection.contract import Collection
from cai_pyserini.collection.hpo import Hpo
from cai_pyserini.collection.passages import Passages
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError


def open_collection(config: IndexConfig) -> Collection:
    """The collection that an index config names, in passages if it says so."""
    collection = _open(config)
    return Passages(collection, config.passages, config.passage_overlap) if config.passages else collection


def _open(config: IndexConfig) -> Collection:
    if config.source == "hpo":
        return Hpo(config.name, config.fields)
    if config.source.startswith("ir_datasets:"):
        from cai_pyserini.collection.ir_dataset import IrDataset  # registers hundreds of datasets: half a second

        return IrDataset(config.source.removeprefix("ir_datasets:"), config.name, config.fields)
    if not Path(config.source).is_dir():
        raise CaiError(f"no collection folder {config.source}" + (f"; {config.note}" if config.note else ""))
    return BeirFolder(Path(config.source), config.name, config.fields)
