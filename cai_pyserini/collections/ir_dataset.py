"""Datasets of the ir_datasets library as collections."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import ir_datasets
import requests

from cai_pyserini.collections.contract import Collection, Judgment, Record, checked_grade
from cai_pyserini.collections.values import checked_id
from cai_pyserini.core.errors import CaiError


class IrDataset(Collection):
    """A dataset of ir_datasets, downloaded if needed. `{split}` in the id is replaced by the split."""

    def __init__(self, dataset: str, name: str, fields: Iterable[str] = ("title", "text"), strict: bool = False):
        super().__init__(name, f"ir_datasets {dataset}", fields, strict)
        self.id = dataset

    @property
    def whole_size(self) -> int | None:
        with self._dataset() as (_, dataset):
            return dataset.docs_count()

    def has_queries(self, split: str) -> bool:
        with self._dataset(split) as (_, dataset):
            return bool(dataset.has_queries())

    def has_qrels(self, split: str) -> bool:
        with self._dataset(split) as (_, dataset):
            return bool(dataset.has_qrels())

    def _documents(self) -> Iterator[Record]:
        with self._dataset() as (name, dataset):
            for number, document in enumerate(dataset.docs_iter(), 1):
                where = f"{name}: document {number}"
                title = getattr(document, "title", None) or ""
                rest = document._replace(title="") if title else document  # the library's text begins with the title
                yield Record(where, checked_id(document.doc_id, where), title, _text(rest).strip())

    def _queries(self, split: str) -> Iterator[Record]:
        with self._dataset(split) as (name, dataset):
            for number, query in enumerate(dataset.queries_iter(), 1):
                where = f"{name}: query {number}"
                yield Record(where, checked_id(query.query_id, where), "", _text(query))

    def _qrels(self, split: str) -> Iterator[Judgment]:
        with self._dataset(split) as (name, dataset):
            for number, qrel in enumerate(dataset.qrels_iter(), 1):
                where = f"{name}: qrel {number}"
                yield Judgment(where, qrel.query_id, qrel.doc_id, checked_grade(qrel.relevance, where))

    def _fingerprint(self, component: str) -> object:
        return [self.id, version("ir_datasets")]  # the library has checksums of a dataset's files

    @contextmanager
    def _dataset(self, split: str | None = None) -> Iterator[tuple[str, Any]]:
        """The id and the dataset of a split; without a split, the parent dataset, which has the documents. Raises
        CaiError if the dataset does not exist or cannot be downloaded."""
        name = self.id.replace("{split}", split) if split else self.id.partition("/{split}")[0]
        try:
            dataset = ir_datasets.load(name)
        except KeyError:
            raise CaiError(f"ir_datasets has no dataset {name!r}") from None
        try:
            yield name, dataset
        except requests.RequestException as error:
            raise CaiError(
                f"{name} could not be downloaded ({type(error).__name__}). Without a network: the demo collection, "
                "hpo, comes with pip, and the path of a folder or file that you have works as well"
            ) from None


def _text(entry: Any) -> str:
    """The text of a document or query; without this, the library renders missing values as "None"."""
    return str(entry._replace(**{key: "" for key, value in entry._asdict().items() if value is None}).default_text())
