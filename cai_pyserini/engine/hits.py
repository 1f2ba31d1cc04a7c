"""Hits, whose documents are read from the index when they are asked for, or when it closes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, NoReturn

import pandas as pd

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Value
from cai_pyserini.indexes.searcher import Stored


class Documents:
    """The stored documents of the hits of one search, which hits read one by one, or all when the index closes."""

    def __init__(self, read: Callable[[str], Stored | None]):
        self._read, self._kept = read, dict[str, Stored | None]()
        self.ids: list[str] = []  # of the hits, in the indexes

    def document(self, stored: str) -> Stored | None:
        return self._kept[stored] if stored in self._kept else self._read(stored)

    def keep(self, most: int) -> int:
        """Read `most` documents and return how many there were. Reading others raises CaiError then."""
        self._kept = {id: self._read(id) for id in self.ids[:most]}
        self._read = _closed
        return len(self._kept)


def _closed(id: str) -> NoReturn:
    raise CaiError(f"the index is closed, and document {id!r} was not read before: read hits while it is open")


class StoredHit:
    """What a hit reads from the index when it is asked for."""

    rank: int  # first, as polars takes the order of columns from here
    id: str
    stored: str  # id in the indexes: of the document or its best passage
    _documents: Documents

    @cached_property
    def _document(self) -> Stored:
        return self._documents.document(self.stored) or Stored(self.id, "", "")

    @cached_property
    def title(self) -> str:
        return self._document.title

    @cached_property
    def text(self) -> str:
        """The text of the document, or of its best passage, without the title."""
        return without_title(self._document)

    @cached_property
    def metadata(self) -> Mapping[str, Value]:
        return self._document.metadata

    @cached_property
    def page(self) -> int | None:
        """The page where its best passage begins; None without passages or pages."""
        page = self.metadata.get("page")
        return page if isinstance(page, int) else None


@dataclass(frozen=True, init=False)
class Hit(StoredHit):
    """A document in a ranking. Title, text, page and metadata are read from the index when they are asked for, or when
    it closes; they are empty if no index stores the documents. A DataFrame of hits, of pandas or polars, has a row per
    hit."""

    rank: int  # from 1
    id: str
    score: float
    title: str = field(repr=False, compare=False)
    text: str = field(repr=False, compare=False)
    page: int | None = field(repr=False, compare=False)
    metadata: Mapping[str, Value] = field(repr=False, compare=False)

    def __init__(self, rank: int, id: str, score: float, stored: str, documents: Documents):
        vars(self).update(rank=rank, id=id, score=score, stored=stored, _documents=documents)

    def at(self, rank: int, score: float | None = None) -> "Hit":
        """This hit at another rank, and perhaps with another score."""
        return Hit(rank, self.id, self.score if score is None else score, self.stored, self._documents)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return asdict(self)

    def __getstate__(self) -> dict[str, Any]:
        return asdict(self) | {"stored": self.stored}


class Hits(list[Hit]):
    """The hits for a query, the best first."""

    def to_dataframe(self) -> pd.DataFrame:
        """A row per hit: `rank`, `id`, `score`, `title`, `text`, `page` and `metadata`."""
        return pd.DataFrame(self, columns=[each.name for each in fields(Hit)])


def without_title(document: Stored) -> str:
    """The contents of a document without its title, with which they begin."""
    return document.contents.removeprefix(document.title).lstrip(" ")
