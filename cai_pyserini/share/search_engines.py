"""What OpenSearch and Elasticsearch get: fields, documents, and searches.

Both store a weight as the frequency of a term in a Lucene FeatureField, which has 9 significant bits: integers up to
512 are exact; larger ones are rounded here. A search is a sum of linear queries, whose weights must be in (0, 64].
Terms are written as integer keys, because names of features must not contain dots.

OpenSearch's SEISMIC takes keys modulo 32,768, and stores weights in 8 bits, linearly up to a ceiling, which is 16 for
queries; so the largest weight of every query is 16. The most frequent terms get the keys below 32,768; rarer ones,
whose posting lists are short, a FeatureField of their own.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.analyzer import UNANALYZED
from cai_pyserini.runs.fusions import DEPTH, RRF_K
from cai_pyserini.share.source import Keys, Source

IMPACTS, RARE, CONTENTS = "impacts", "rare", "contents"  # fields
HITS = 1000
MAX_WEIGHT = 16.0  # largest weight in a query
SEISMIC_KEYS = 32_768
SIGNIFICANT_BITS = 9  # a FeatureField stores no more
MAX_ID_BYTES = 512  # in UTF-8
MAX_CLAUSES = 1024  # terms of a query that a server accepts by default
ANALYZERS: dict[str, str] = {  # the servers' own that are Anserini's; kuromoji, nori and ukrainian are plugins
    **{"ar": "arabic", "bn": "bengali", "da": "danish", "de": "german", "en": "english", "es": "spanish"},
    **{"fa": "persian", "fi": "finnish", "fr": "french", "hi": "hindi", "hu": "hungarian", "id": "indonesian"},
    **{"it": "italian", "ja": "kuromoji", "ko": "nori", "nl": "dutch", "no": "norwegian", "pt": "portuguese"},
    **{"ru": "russian", "sv": "swedish", "th": "thai", "tr": "turkish", "uk": "ukrainian", "zh": "cjk"},
    **dict.fromkeys(UNANALYZED, "whitespace"),
}

Json = dict[str, Any]
Weights = dict[str, float]  # by key


class Search(NamedTuple):
    """A query by impacts, and the `scale` that multiplies its scores to sums of weight * impact."""

    query: Json
    scale: float


@dataclass(frozen=True)
class Engine:
    """A search engine: the type of its field of impacts, its query of a field by weights, its fusions of two queries.

    `variants` are further keys of a search by impacts, by name. A field of impacts has at most `max_keys` terms. With
    `legacy_bm25`, scores of `match` are Lucene's, times 1 + k1.
    """

    name: str
    type: str
    sparse: Callable[[str, Weights], Json]
    fusions: Callable[[Json, Json], dict[str, Json]]
    variants: dict[str, Json] = field(default_factory=dict)
    max_keys: int | None = None
    legacy_bm25: bool = False

    def index(self, source: Source) -> tuple[Keys, Json]:
        """The keys of terms, and the body of the request that creates the index."""
        properties: Json = {IMPACTS: {"type": self.type}}
        settings: Json = {}  # of the index
        if self.max_keys is None:
            keys = Keys(source.encoder.tokenizer.terms)
        else:
            frequencies, largest = Counter[str](), 1
            for _, vector in source.documents():
                frequencies.update(vector.keys())
                largest = max(largest, max(vector.values(), default=1))
            keys = Keys([term for term, _ in frequencies.most_common()])
            parameters = {"quantization_ceiling_ingest": float(largest)}
            properties[IMPACTS]["method"] = {"name": "seismic", "parameters": parameters}
            settings["sparse"] = True
            if len(frequencies) > self.max_keys:
                properties[RARE] = {"type": "rank_features"}
        if texts := source.texts:
            properties[CONTENTS] = {"type": "text", "analyzer": ANALYZERS.get(texts.collection.language, "standard")}
            bm25 = {"type": "BM25", **texts.bm25._asdict(), "discount_overlaps": True}
            settings["similarity"] = {"default": bm25}
        mappings = {"dynamic": "strict", "_source": {"excludes": [IMPACTS, RARE]}, "properties": properties}
        return keys, {"settings": {"index": settings}, "mappings": mappings}

    def documents(self, source: Source, keys: Keys, rounded: Counter[bool]) -> Iterator[Json]:
        """The documents to load, with _id and _source; counts the impacts by whether they are `rounded`."""
        for id, vector, text in source.documents_with_texts():
            if (size := len(id.encode())) > MAX_ID_BYTES:
                raise CaiError(f"the id {id[:20]}… has {size:,} bytes; {self.name} takes {MAX_ID_BYTES}")
            impacts = keys.document_vector(vector)
            stored = {key: representable(impact) for key, impact in impacts.items()}
            rounded.update(stored[key] != impact for key, impact in impacts.items())
            yield {"_id": id, "_source": self._by_field(stored) | ({} if text is None else {CONTENTS: text})}

    def search(self, weights: dict[int, int]) -> Search:
        """A search by the weights of keys."""
        if not weights:
            return Search({"match_none": {}}, 1.0)  # servers refuse queries without tokens
        scale = max(weights.values()) / MAX_WEIGHT
        by_field = self._by_field({key: weight / scale for key, weight in weights.items()})
        parts = [self.sparse(name, part) for name, part in by_field.items()]
        return Search(parts[0] if len(parts) == 1 else _sum(*parts), scale)

    def searches(self, source: Source, keys: Keys) -> dict[str, list[Json]]:
        """The lines of files of searches: by impacts, and by name its variants and the fusions with texts."""
        lines: dict[str, list[Json]] = {}
        for id, vector in source.queries().items():
            search = self.search(keys.query_vector(vector))
            body = {"size": HITS, "_source": False, "query": search.query}
            for name, more in {"": {}, **self.variants}.items():
                lines.setdefault(name, []).append({"id": id, "scale": search.scale, "body": body | more})
            if source.texts:
                score = {"bool": {"should": [search.query], "boost": search.scale / source.score_scale}}
                boost = 1 / (1 + source.texts.bm25.k1) if self.legacy_bm25 else 1.0
                match = {"match": {CONTENTS: {"query": source.topics[id], "boost": boost}}}
                for name, fused in ({"sum": {"query": _sum(match, score)}} | self.fusions(match, search.query)).items():
                    lines.setdefault(name, []).append({"id": id, "body": {"size": DEPTH, "_source": False, **fused}})
        return lines

    def losses(self, source: Source, rounded: Counter[bool]) -> list[str]:
        """What the format loses."""
        too_long = sum(len(vector) > MAX_CLAUSES for vector in source.queries().values())
        losses = [
            f"queries of more than {MAX_CLAUSES:,} terms: {too_long:,}; a server refuses them unless its "
            "indices.query.bool.max_clause_count is larger",
            f"bits of large impacts: {rounded[True] / max(rounded.total(), 1):.2%} were rounded to {SIGNIFICANT_BITS} "
            "significant bits" + ("; impacts of `impact --bits 9` lose nothing" if rounded[True] else ""),
        ]
        if self.max_keys is not None:
            losses.append(
                "exactness in segments of 1,000,000 documents or more: SEISMIC prunes, and has weights of 8 bits"
            )
        if source.texts and (language := source.texts.collection.language) not in ANALYZERS:
            losses.append(f"the words of BM25: the servers have no analyzer for {language!r} that is Anserini's")
        return losses

    def _by_field[Value](self, values: dict[int, Value]) -> dict[str, dict[str, Value]]:
        fields: dict[str, dict[str, Value]] = {}
        for key, value in values.items():
            name = RARE if self.max_keys is not None and key >= self.max_keys else IMPACTS
            fields.setdefault(name, {})[str(key)] = value
        return fields


def _sum(*queries: Json) -> Json:
    return {"bool": {"should": [*queries]}}


def _neural_sparse(field: str, weights: Weights) -> Json:
    return {"neural_sparse": {field: {"query_tokens": weights}}}


def _seismic(field: str, weights: Weights) -> Json:
    query = _neural_sparse(field, weights)
    if field == IMPACTS:  # all tokens, not the best 10
        parameters = {"k": HITS, "top_n": len(weights), "heap_factor": 1.0}
        query["neural_sparse"][field]["method_parameters"] = parameters
    return query


def _sparse_vector(field: str, weights: Weights) -> Json:
    return {"sparse_vector": {"field": field, "query_vector": weights, "prune": False}}


def _hybrid(match: Json, sparse: Json) -> dict[str, Json]:
    rrf = {"score-ranker-processor": {"combination": {"technique": "rrf", "rank_constant": RRF_K}}}
    techniques = {"normalization": {"technique": "min_max"}, "combination": {"technique": "arithmetic_mean"}}
    query = {"hybrid": {"queries": [match, sparse]}}
    processors = {"rrf": rrf, "minmax": {"normalization-processor": techniques}}
    return {
        fusion: {"query": query, "search_pipeline": {"phase_results_processors": [processor]}}
        for fusion, processor in processors.items()
    }


def _retrievers(match: Json, sparse: Json) -> dict[str, Json]:
    both = [{"standard": {"query": query}} for query in (match, sparse)]
    scaled = [{"retriever": retriever, "weight": 1.0, "normalizer": "minmax"} for retriever in both]
    return {
        "rrf": {"retriever": {"rrf": {"retrievers": both, "rank_constant": RRF_K, "rank_window_size": DEPTH}}},
        "minmax": {"retriever": {"linear": {"retrievers": scaled, "rank_window_size": DEPTH}}},
    }


TWO_PHASE = {"request_processors": [{"neural_sparse_two_phase_processor": {"enabled": True}}]}
OPENSEARCH = Engine(
    "opensearch", "rank_features", _neural_sparse, _hybrid, {"two-phase": {"search_pipeline": TWO_PHASE}}
)
SEISMIC = Engine("opensearch", "sparse_vector", _seismic, _hybrid, max_keys=SEISMIC_KEYS)
ELASTICSEARCH = Engine("elasticsearch", "sparse_vector", _sparse_vector, _retrievers, legacy_bm25=True)


def representable(impact: int) -> int:
    """The nearest integer with at most 9 significant bits; halves are rounded to even."""
    step = 1 << max(impact.bit_length() - SIGNIFICANT_BITS, 0)
    return round(impact / step) * step
