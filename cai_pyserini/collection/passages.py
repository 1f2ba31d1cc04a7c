"""Passages: a collection whose long documents are searched in pieces.

A document is found by its best passage (MaxP in Dai & Callan 2019): runs of passages are folded to documents, see
core.trec.fold_passages. So topics and qrels, which name documents, stay as they are.
"""

from collections.abc import Iterable, Iterator, Set

from cai_pyserini.collection.contract import Collection, Judgment, Record
from cai_pyserini.core.config import PASSAGE
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.jsonl import Start
from cai_pyserini.core.terminal import progress


def passage_starts(words: int, size: int, step: int) -> list[int]:
    """Where the passages of `size` words begin in a text, `step` words apart, the last two nearer if need be, so that
    all are equally long."""
    last = max(words - size, 0)
    return [*range(0, last, step), last]


class Passages(Collection):
    """The passages of a collection's documents: `words` words each, with the document's title before them.

    Passages of a document have `overlap` words in common, the last two of them more if need be, so that all are equally
    long. Their ids are `document#0`, `document#1`, …; a document that is no longer than a passage is `document#0`.
    """

    def __init__(self, collection: Collection, words: int, overlap: int):
        super().__init__(collection.name, collection.fields, collection.strict)
        self._warned, self._missing = collection._warned, collection._missing
        self._collection = collection
        self._words = words
        self._overlap = overlap

    def contents(self, ids: Set[str], source: str) -> dict[str, str]:
        """The contents of whole documents, as runs name documents."""
        return self._collection.contents(ids, source)

    def has_queries(self, split: str) -> bool:
        return self._collection.has_queries(split)

    def has_qrels(self, split: str) -> bool:
        return self._collection.has_qrels(split)

    def missing(self, split: str) -> Set[str]:
        return self._collection.missing(split)

    def check(self, split: str) -> dict[str, int]:
        """As Collection.check, with the number of passages."""
        return self._collection.check(split) | {
            "passages": sum(1 for _ in progress(self._documents(), None, "passages", "passage"))
        }

    def fingerprint(self, component: str) -> str:
        """That of the collection, with the settings for its documents."""
        fingerprint = self._collection.fingerprint(component)
        return super().fingerprint(component) if component == "documents" else fingerprint

    @property
    def place(self) -> str:
        return self._collection.place

    def starts(self, places: Iterable[str]) -> dict[str, Start]:
        return self._collection.starts(places)

    def documents_from(self, start: Start | None) -> Iterator[Record]:
        for where, id, title, text in self._collection.documents_from(start):
            if PASSAGE in id:
                raise CaiError(
                    f"{where}: the id {id!r} contains {PASSAGE!r}, which precedes the number of a passage in an id: "
                    "change the id, or search without passages"
                )
            words = text.split()
            starts = passage_starts(len(words), self._words, self._words - self._overlap)
            for number, first in enumerate(starts):
                passage = " ".join(words[first : first + self._words]) if len(starts) > 1 else text
                yield Record(where, f"{id}{PASSAGE}{number}", title, passage)

    def _documents(self) -> Iterator[Record]:
        return self.documents_from(None)

    def _queries(self, split: str) -> Iterator[Record]:
        return self._collection._queries(split)

    def _qrels(self, split: str) -> Iterator[Judgment]:
        return self._collection._qrels(split)

    def _fingerprint(self, component: str) -> object:
        return [self._collection.fingerprint(component), self._words, self._overlap]
