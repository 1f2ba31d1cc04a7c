"""A dataset of the ir_datasets library."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import ir_datasets
import requests

from cai_pyserini.collection.contract import Collection, Judgment, Record, checked_id
from cai_pyserini.core.errors import CaiError


class IrDataset(Collection):
    """A dataset of ir_datasets, which downloads it where needed. `{split}` in the id is replaced by the split."""

    def __init__(self, dataset: str, name: str, fields: Iterable[str] = ("title", "text"), strict: bool = False):
        super().__init__(name, fields, strict)
        self.id = dataset

    @property
    def place(self) -> str:
        return f"ir_datasets {self.id}"

    @property
    def size(self) -> int | None:
        dataset = self.id.partition("/{split}")[0]
        with _download_errors(dataset):
            return self._load(dataset).docs_count()

    def has_queries(self, split: str) -> bool:
        return bool(self._load(self.id.replace("{split}", split)).has_queries())

    def has_qrels(self, split: str) -> bool:
        return bool(self._load(self.id.replace("{split}", split)).has_qrels())

    def _documents(self) -> Iterator[Record]:
        dataset = self.id.partition("/{split}")[0]  # the documents are those of the dataset above its splits
        with _download_errors(dataset):
            for number, document in enumerate(self._load(dataset).docs_iter(), 1):
                where = f"{dataset}: document {number}"
                title = getattr(document, "title", None) or ""
                rest = document._replace(title="") if title else document  # the library's text begins with the title
                yield Record(where, checked_id(document.doc_id, where), title, _text(rest).strip())

    def _queries(self, split: str) -> Iterator[Record]:
        dataset = self.id.replace("{split}", split)
        with _download_errors(dataset):
            for number, query in enumerate(self._load(dataset).queries_iter(), 1):
                where = f"{dataset}: query {number}"
                yield Record(where, checked_id(query.query_id, where), "", _text(query))

    def _qrels(self, split: str) -> Iterator[Judgment]:
        dataset = self.id.replace("{split}", split)
        with _download_errors(dataset):
            for number, qrel in enumerate(self._load(dataset).qrels_iter(), 1):
                yield Judgment(f"{dataset}: qrel {number}", qrel.query_id, qrel.doc_id, qrel.relevance)

    def _fingerprint(self, component: str) -> object:
        return [self.id, version("ir_datasets")]  # a dataset's files are fixed by the checksums in the library

    @staticmethod
    def _load(dataset: str) -> Any:
        try:
            return ir_datasets.load(dataset)
        except KeyError:
            raise CaiError(f"ir_datasets has no dataset {dataset!r}") from None


def _text(entry: Any) -> str:
    """The text of a document or a query; the library would write a field without a value as "None"."""
    return str(entry._replace(**{key: "" for key, value in entry._asdict().items() if value is None}).default_text())


@contextmanager
def _download_errors(dataset: str) -> Iterator[None]:
    """Turn a failed download into a CaiError that says what works without one."""
    try:
        yield
    except requests.RequestException as error:
        raise CaiError(
            f"{dataset} could not be downloaded ({type(error).__name__}). Without a network: the demo collection, hpo, "
            "comes with pip, and the path of a folder or file that you have works as well"
        ) from None
