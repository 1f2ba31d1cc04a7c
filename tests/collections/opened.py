"""Folders of files, opened as a run opens them."""

from pathlib import Path

from cai_pyserini.collections.contract import Record
from cai_pyserini.collections.file_folder import FileFolder
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import IndexConfig


def opened(folder: Path, **settings: object) -> FileFolder:
    collection = open_collection(IndexConfig(name="made", source=str(folder), **settings))
    assert isinstance(collection, FileFolder)
    return collection


def records(folder: Path, **settings: object) -> dict[str, Record]:
    return {record.id: record for record in opened(folder, **settings).records()}
