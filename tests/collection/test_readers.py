"""Which reader opens a collection."""

from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.collection.hpo import Hpo
from cai_pyserini.collection.ir_dataset import IrDataset
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError


def test_the_source_chooses_the_reader(tiny: Path) -> None:
    sources = {"hpo": Hpo, "ir_datasets:vaswani": IrDataset, str(tiny): BeirFolder}
    for source, kind in sources.items():
        collection = open_collection(IndexConfig(name="mine", source=source, fields=["text"]))
        assert type(collection) is kind
        assert (collection.name, collection.fields) == ("mine", ("text",))


def test_a_collection_can_be_opened_in_passages(tiny: Path) -> None:
    config = IndexConfig(name="mine", source=str(tiny), fields=["text"], passages=4, passage_overlap=1)
    collection = open_collection(config)
    assert [document.id for document in collection.documents()][:3] == ["d1#0", "d1#1", "d1#2"]
    assert next(collection.documents()).contents == "Dietary phytate, found in"


def test_no_folder_gives_the_note(tmp_path: Path) -> None:
    config = IndexConfig(name="news", source=str(tmp_path / "absent"), note="it is licensed; ask for it")
    with pytest.raises(CaiError, match=r"no collection file or folder .*absent; it is licensed; ask for it"):
        open_collection(config)
