"""Some documents of a collection, from which the time and the disk that a run takes are estimated."""

from collections.abc import Sequence
from functools import cached_property
from itertools import islice

from cai_pyserini.collections.contract import Collection, Document

FIRST = 2_000  # documents from which at most SAMPLE are taken
SAMPLE = 250


class Sample:
    """The contents of some documents or passages, which are read when first needed, and the size of the collection."""

    def __init__(self, collection: Collection):
        self._collection = collection

    @cached_property
    def _first(self) -> list[Document]:
        return list(islice(self._collection.documents(), FIRST))

    @cached_property
    def texts(self) -> list[str]:
        return [document.contents for document in sampled(self._first)]

    @cached_property
    def documents(self) -> float:
        """About the number of documents or passages."""
        collection, units = self._collection, self._first
        if len(units) < FIRST or collection.whole_size is None:
            return len(units)
        return collection.whole_size * len(units) / len({collection.document_of(unit.id) for unit in units})

    def characters(self, most: float = float("inf")) -> float:
        """About the characters of all documents, of each at most so many."""
        return self.documents * sum(min(len(text), most) for text in self.texts) / len(self.texts)


def sampled[T](items: Sequence[T]) -> Sequence[T]:
    """At most SAMPLE items, evenly spaced."""
    return items[:: -(-len(items) // SAMPLE)]
