"""How long the steps of a run take, about, and what would shorten them.

Encoding is estimated from the measured speed of the encoder (vectors.speed) and the tokens of some documents; other
work from the size of the collection.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from textwrap import wrap
from typing import NamedTuple

from cai_pyserini.collections.contract import Collection, Document
from cai_pyserini.core.bars import columns, duration
from cai_pyserini.core.steps import Estimates, Step, total
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.vectors.speed import count_tokens, encoding_seconds

FIRST = 2_000  # documents from which at most SAMPLE are taken
SAMPLE = 250
ANNOUNCED_SECONDS = 60.0  # smaller totals are not announced
LISTED_SECONDS = 10.0  # steps that take less are not listed
LONG = 0.1  # share of all seconds
PAGE_COLUMNS = 100  # where no terminal limits them


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

    @cached_property
    def characters(self) -> float:
        """About the characters of all documents."""
        return self.documents * sum(map(len, self.texts)) / len(self.texts)

    def tokens(self, encoder: EncoderModel) -> float:
        """About the tokens that an encoder reads of a document."""
        return count_tokens(encoder, self.texts) / len(self.texts)

    def encoding_seconds(self, encoder: EncoderModel, tokens: float) -> float:
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
        return self.start + self.per_thousand * sample.documents / 1e3 + self.per_million * sample.characters / 1e6


def estimate(steps: Sequence[Step]) -> Estimates:
    """The seconds of each step. Measures the speed of encoders that are not known on this machine."""
    return {step.output: step.seconds() for step in steps}


def describe(steps: Sequence[Step], estimates: Estimates) -> Iterator[str]:
    """Yield lines that say how long steps will take, and what shortens it; none if all are short."""
    seconds = [estimates[step.output] for step in steps]
    known = sum(each or 0 for each in seconds)
    if known < ANNOUNCED_SECONDS and None not in seconds:
        return
    least = "" if total(seconds) is not None else "at least "
    yield f"{len(steps)} steps must run, {least}about {duration(known)} in all (estimated):"
    listed = [(step, each) for step, each in zip(steps, seconds, strict=True) if each is None or each >= LISTED_SECONDS]
    for step, each in listed:
        yield f"  {step.name:<40} {'unknown' if each is None else f'about {duration(each)}'}"
    if others := len(steps) - len(listed):
        rest = known - sum(each or 0 for _, each in listed)
        yield f"  {f'{others} others, each under {duration(LISTED_SECONDS)}':<40} about {duration(rest)}"
    long = [step for step, each in listed if each is None or each > LONG * known]
    remedies = {step.name.split()[0].removesuffix(":"): step.remedy for step in long if step.remedy}
    for work, remedy in remedies.items():
        yield from wrap(f"  {work} is shorter with: {remedy}", columns() or PAGE_COLUMNS, subsequent_indent="    ")
