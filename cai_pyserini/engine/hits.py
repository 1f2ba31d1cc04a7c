"""Hits, whose documents are read from the index when they are asked for, or when it closes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from cai_pyserini.collections.contract import PAGE
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Value
from cai_pyserini.core.packages import lazy
from cai_pyserini.indexes.searcher import Stored

if TYPE_CHECKING:
    import pandas as pd


class Documents:
    """The stored documents of the hits of one search, which hits read one by one, or all when the index closes."""

    def __init__(self, read: Callable[[Sequence[str]], dict[str, Stored]]):
        self._read, self._kept = read, dict[str, Stored | None]()
        self.ids: list[str] = []  # of the hits, in the indexes

    def document(self, stored: str) -> Stored | None:
        return self._kept[stored] if stored in self._kept else self._read([stored]).get(stored)

    def keep(self, most: int) -> int:
        """Read `most` documents and return how many there were. Reading others raises CaiError then."""
        kept = self.ids[:most]
        self._kept = dict.fromkeys(kept) | self._read(kept)
        self._read = _closed
        return len(self._kept)


def _closed(ids: Sequence[str]) -> NoReturn:
    raise CaiError(f"the index is closed, and document {ids[0]!r} was not read before: read hits while it is open")


class StoredHit:
    """What a hit reads from the index when it is asked for."""

    rank: int  # first, as polars takes the order of columns from here
    id: str
    stored: str  # id in the indexes: of the document or its best passage
    _documents: Documents

    @cached_property
    def _document(self) -> Stored:
        return self.document or Stored(self.id, "", "")

    @cached_property
    def document(self) -> Stored | None:
        """The document, or its best passage, as stored; None if no index stores it."""
        return self._documents.document(self.stored)

    @cached_property
    def title(self) -> str:
        return self._document.title

    @cached_property
    def text(self) -> str:
        """The text of the document, or of its best passage, without the title and white space at the end."""
        return without_title(self._document).rstrip()

    @property
    def passage(self) -> str | None:
        """The id of the best passage; None without passages."""
        return None if self.stored == self.id else self.stored

    @cached_property
    def start(self) -> int | None:
        """The place in the document's text, in characters, where `text` begins; None if no index stores it."""
        return self.document and self.document.start

    @cached_property
    def end(self) -> int | None:
        """The place in the document's text, in characters, where `text` ends; None if no index stores it."""
        return None if self.start is None else self.start + len(self.text)

    @cached_property
    def metadata(self) -> Mapping[str, Value]:
        return self._document.metadata

    @cached_property
    def page(self) -> int | None:
        """The page where its best passage begins; None without passages or pages."""
        return page_of(self._document)


@dataclass(frozen=True, init=False)
class Hit(StoredHit):
    """A document in a ranking. With passages, `text` is that of the best one, `passage`, and is in the document's text
    from `start` to `end`. What is stored is read from the index when it is asked for, or when it closes, and is empty
    if no index stores the documents. A DataFrame of hits, of pandas or polars, has a row per hit."""

    rank: int  # from 1
    id: str
    score: float
    title: str = field(repr=False, compare=False)
    text: str = field(repr=False, compare=False)
    passage: str | None = field(repr=False, compare=False)
    start: int | None = field(repr=False, compare=False)
    end: int | None = field(repr=False, compare=False)
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

    def to_dataframe(self) -> "pd.DataFrame":
        """A row per hit with its fields: `rank`, `id`, `score`, `title`, `text`, … Raises CaiError without pandas."""
        return lazy("pandas").DataFrame(self, columns=[each.name for each in fields(Hit)])


def without_title(document: Stored) -> str:
    """The text of a document or passage, which comes after its title and a space."""
    if document.text is not None:
        return document.text
    return document.contents.removeprefix(document.title).removeprefix(" ")


def page_of(passage: Stored) -> int | None:
    """The page where a passage begins; None for a whole document."""
    page = passage.metadata.get(PAGE) if passage.passages else None
    return page if isinstance(page, int) else None


def page_at(document: Stored, place: int) -> int | None:
    """The page of a place in the text of a document or passage; None if it has no pages."""
    first = page_of(document) or (1 if "\f" in document.contents and not document.passages else None)
    return first and first + without_title(document).count("\f", 0, place)


def joined(id: str, passages: Sequence[Stored]) -> Stored:
    """A document, given its passages in order. Before its first word, white space has the page breaks that the page of
    the first passage implies, so that characters and pages of the text are counted as in the document."""
    first, pieces, end = passages[0], list[str](), 0
    breaks = (page_of(first) or 1) - 1
    for passage in passages:
        text = without_title(passage)
        breaks = max(0, min(breaks, passage.start - end))  # a page of its own metadata can be any number
        pieces += ["\f" * breaks + " " * (passage.start - end - breaks), text[max(0, end - passage.start) :]]
        end, breaks = max(end, passage.start + len(text)), 0
    metadata = {name: value for name, value in first.metadata.items() if name != PAGE}
    return Stored(id, first.title, f"{first.title} {''.join(pieces)}", metadata, language=first.language)
