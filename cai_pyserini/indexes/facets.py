"""Count the documents that match a search by their metadata."""

import json
import struct
from collections import Counter
from typing import Any

from cai_pyserini.core.metadata import STRINGS, Kind, year_of
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.writer import PREFIX

FACET = "org.apache.lucene.facet."
_COUNTING = jvm.using_java("counting metadata")


class Matches:
    """The documents of an index that match a query and a filter, as `collector`, a FacetsCollector, has them."""

    def __init__(self, reader: Any, collector: Any, mapper: Any):
        self._reader, self.collector, self._json = reader, collector, mapper

    @property
    @_COUNTING
    def documents(self) -> int:
        return sum(segment.totalHits() for segment in self.collector.getMatchingDocs())

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

    def _pairs(self, result: Any) -> list[tuple[str, int]]:
        """The labels and counts of a FacetResult."""
        values = json.loads(self._json.writeValueAsString(result))["labelValues"] if result else []
        return [(value["label"], int(value["value"])) for value in values]


def _double(sortable: str) -> float:
    """Decode Lucene's NumericUtils.doubleToSortableLong."""
    bits = int(sortable)
    return float(struct.unpack("<d", struct.pack("<q", bits ^ (bits >> 63) & 0x7FFFFFFFFFFFFFFF))[0])
