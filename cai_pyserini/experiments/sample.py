"""What artifacts of a collection take, estimated from some of its documents: time, and disk.

Encoding is estimated from the measured speed of the encoder (vectors.speed) and the tokens of the documents; other work
from the size of the collection.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from cai_pyserini.collections.contract import Collection, Document
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.vectors.speed import count_tokens, encoding_seconds

FIRST = 2_000  # documents from which at most SAMPLE are taken
SAMPLE = 250
READ = 1_200  # characters of a text that an encoder reads by default


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

    def tokens(self, encoder: Encoder) -> float:
        """About the tokens that an encoder reads of a document."""
        return count_tokens(encoder, self.texts) / len(self.texts)

    def encoding_seconds(self, encoder: Encoder, tokens: float) -> float:
        """About the seconds to encode so many tokens of texts like these."""
        return encoding_seconds(encoder, tokens, self.texts)


def sampled[T](items: Sequence[T]) -> Sequence[T]:
    """At most SAMPLE items, evenly spaced."""
    return items[:: -(-len(items) // SAMPLE)]


class Rate(NamedTuple):
    """Seconds of some work on two processors, from runs of hpo and scifact, and from the table of large collections in
    docs/how-to/large-collections.md."""

    start: float = 0.0
    per_thousand: float = 0.0  # documents
    per_million: float = 0.0  # characters

    def seconds(self, sample: Sample) -> float:
        return self.start + self.per_thousand * sample.documents / 1e3 + self.per_million * sample.characters() / 1e6


class Size(NamedTuple):
    """Bytes of some output, from runs on hpo, whose texts are short, and on manual pages in passages, with stored
    documents."""

    per_document: float = 0.0
    per_read: float = 0.0  # character that an encoder reads
    per_character: float = 0.0

    def bytes(self, sample: Sample) -> float:
        documents = self.per_document * sample.documents
        return documents + self.per_read * sample.characters(READ) + self.per_character * sample.characters()
