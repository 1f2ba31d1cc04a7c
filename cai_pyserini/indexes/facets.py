"""Count the documents that match a search by their metadata."""

import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np

from cai_pyserini.core.metadata import STRINGS, Kind, year_of
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.writer import PREFIX

FACET = "org.apache.lucene.facet."
BITS, SET = "org.apache.lucene.util.FixedBitSet", "org.apache.lucene.util.BitDocIdSet"
_COUNTING = jvm.using_java("counting metadata")


class Matches:
    """The documents of an index that match a query and a filter, as `collector`, a FacetsCollector, has them."""

    def __init__(self, reader: Any, collector: Any, mapper: Any, document_numbers: Callable[[], np.ndarray]):
        self._reader, self.collector, self._json = reader, collector, mapper
        self._document_numbers = document_numbers

    @property
    @_COUNTING
    def documents(self) -> int:
        return sum(segment.totalHits() for segment in self.collector.getMatchingDocs())

    @property
    @_COUNTING
    def passes(self) -> np.ndarray:
        """Which documents match, bool (documents,), in index order."""
        passes = np.zeros(self._reader.maxDoc(), bool)
        for segment in self.collector.getMatchingDocs():
            start, size = segment.context().docBase, segment.context().reader().maxDoc()
            bits = jvm.java_class(BITS)(size)
            getattr(bits, "or")(segment.bits().iterator())
            words = np.array(bits.getBits(), np.int64)
            passes[start : start + size] = np.unpackbits(words.view(np.uint8), count=size, bitorder="little")
        return passes

    @_COUNTING
    def fold(self) -> Self:
        """Keep one of the passages of each document: they have the same metadata, except the page."""
        documents = self._document_numbers()
        passages = np.flatnonzero(self.passes)
        one_of = np.full(documents.max(initial=-1) + 1, -1, np.int32)
        one_of[documents[passages]] = passages
        kept = np.zeros(len(documents), bool)
        kept[one_of[one_of >= 0]] = True
        make, set_of = jvm.java_class(FACET + "FacetsCollector$MatchingDocs"), jvm.java_class(SET)
        segments = self.collector.getMatchingDocs()
        for number in range(segments.size()):
            context = segments.get(number).context()
            start, size = context.docBase, context.reader().maxDoc()
            whole_words = np.pad(kept[start : start + size], (0, -size % 64))
            words = np.packbits(whole_words, bitorder="little").view(np.int64)
            bits = jvm.java_class(BITS)(words.tolist(), size)
            segments.set(number, make(context, set_of(bits), bits.cardinality(), None))
        return self

    @_COUNTING
    def values(self, name: str, kind: Kind, most: int) -> dict[str, int]:
        """The `most` frequent values of a field, most frequent first -> their numbers of documents; of dates, years."""
        field, java = PREFIX + name, jvm.java_class
        if kind in STRINGS:
            state = java(FACET + "StringDocValuesReaderState")(self._reader, field)
            result = java(FACET + "StringValueFacetCounts")(state, self.collector).getTopChildren(most, field)
        else:
            counts = java(FACET + "LongValueFacetCounts")(field, self.collector)
            result = counts.getAllChildren(field) if kind == "date" else counts.getTopChildren(most, field)
        pairs = self._pairs(result)
        if kind == "date":
            years: Counter[str] = Counter()
            for label, count in pairs:
                years[year_of(_double(label))] += count
            return dict(years.most_common(most))
        if kind == "number":
            return {repr(_double(label)).removesuffix(".0"): count for label, count in pairs}
        return dict(pairs)

    @_COUNTING
    def distinct(self, name: str) -> int:
        """The number of different strings of a field in the whole index."""
        values = jvm.java_class("org.apache.lucene.index.MultiDocValues").getSortedSetValues(
            self._reader, PREFIX + name
        )
        return values.getValueCount() if values else 0

    @_COUNTING
    def limits(self, name: str) -> tuple[float, float] | None:
        """The smallest and largest number, or day, of a field in the whole index; None if no document has a value."""
        points, field = jvm.java_class("org.apache.lucene.index.PointValues"), PREFIX + name
        packed = points.getMinPackedValue(self._reader, field), points.getMaxPackedValue(self._reader, field)
        if packed[0] is None:
            return None
        decode = jvm.java_class("org.apache.lucene.document.DoublePoint").decodeDimension
        first, last = (decode(bytes(byte & 255 for byte in value), 0) for value in packed)
        return first, last

    @_COUNTING
    def ranges(self, name: str, edges: Sequence[float]) -> list[int]:
        """The numbers of documents with a value from each edge, inclusive, to the next, exclusive."""
        java, field = jvm.java_class, PREFIX + name
        make_range, sortable = java(FACET + "range.LongRange"), [_sortable(edge) for edge in edges]
        ranges = [
            make_range(str(n), first, True, end, False)
            for n, (first, end) in enumerate(pairwise(sortable))
            if first < end  # Lucene refuses empty ranges
        ]
        values = java(FACET + "MultiLongValuesSource").fromLongField(field)
        counts = java(FACET + "range.LongRangeFacetCounts")(field, values, self.collector, None, *ranges)
        found = dict(self._pairs(counts.getAllChildren(field, [])))
        return [found.get(str(n), 0) for n in range(len(edges) - 1)]

    def _pairs(self, result: Any) -> list[tuple[str, int]]:
        """The labels and counts of a FacetResult."""
        values = json.loads(self._json.writeValueAsString(result))["labelValues"] if result else []
        return [(value["label"], int(value["value"])) for value in values]


def _double(sortable: str) -> float:
    """Decode Lucene's NumericUtils.doubleToSortableLong."""
    return float(struct.unpack("<d", struct.pack("<q", _flipped(int(sortable))))[0])


def _sortable(value: float) -> int:
    """Lucene's NumericUtils.doubleToSortableLong."""
    return _flipped(struct.unpack("<q", struct.pack("<d", value))[0])


def _flipped(bits: int) -> int:
    return bits ^ (bits >> 63) & 0x7FFFFFFFFFFFFFFF
