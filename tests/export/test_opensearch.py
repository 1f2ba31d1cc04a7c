"""Requests for OpenSearch and Elasticsearch: their form, and the scores of Lucene's FeatureField, which both use."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from cai_pyserini.core import jvm
from cai_pyserini.core.errors import CaiError
from cai_pyserini.export.opensearch import ENGINES, export_opensearch, representable, search
from cai_pyserini.export.source import Source
from cai_pyserini.index.impact import index_impacts
from tests.conftest import json_lines
from tests.export.conftest import Found, assert_same, impacts_of_bits, search_lucene, stored_impacts

WEIGHTS = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "exclusiveMinimum": 0, "maximum": 64},
}
QUERY = {  # by engine: from the references of the queries neural_sparse and sparse_vector
    "opensearch": {
        "type": "object",
        "required": ["neural_sparse"],
        "additionalProperties": False,
        "properties": {
            "neural_sparse": {
                "type": "object",
                "required": ["impacts"],
                "additionalProperties": {
                    "type": "object",
                    "required": ["query_tokens"],
                    "additionalProperties": False,
                    "properties": {"query_tokens": WEIGHTS},
                },
            }
        },
    },
    "elasticsearch": {
        "type": "object",
        "required": ["sparse_vector"],
        "additionalProperties": False,
        "properties": {
            "sparse_vector": {
                "type": "object",
                "required": ["field", "query_vector"],
                "additionalProperties": False,
                "properties": {"field": {"const": "impacts"}, "query_vector": WEIGHTS, "prune": {"const": False}},
            }
        },
    },
}
FEATURES = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": 2.0**-126, "maximum": 2.0**127},
}
ACTION = {
    "type": "object",
    "required": ["index"],
    "additionalProperties": False,
    "properties": {"index": {"type": "object", "properties": {"_id": {"type": "string", "maxLength": 512}}}},
}
DOCUMENT = {
    "type": "object",
    "required": ["impacts"],
    "additionalProperties": False,
    "properties": {"impacts": FEATURES},
}


def body_schema(engine: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["query"],
        "additionalProperties": False,
        "properties": {
            "query": QUERY[engine],
            "size": {"type": "integer", "minimum": 1, "maximum": 10_000},
            "_source": {"const": False},
        },
    }


def read_bulk(folder: Path) -> dict[str, dict[str, float]]:
    """The documents of bulk requests, which have a line for the action and a line for the document."""
    documents = {}
    for path in sorted(folder.glob("bulk-*.ndjson")):
        assert path.read_bytes().endswith(b"\n")  # the servers demand it
        lines = json_lines(path)
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            Draft202012Validator(ACTION).validate(action)
            Draft202012Validator(DOCUMENT).validate(document)
            documents[action["index"]["_id"]] = document["impacts"]
    return documents


def search_features(documents: dict[str, dict[str, float]], queries: dict[str, dict[str, float]]) -> Found:
    """What Lucene finds with linear queries on a FeatureField."""
    java = jvm.java_class
    feature = java("org.apache.lucene.document.FeatureField")
    directory = java("org.apache.lucene.store.ByteBuffersDirectory")()
    config = java("org.apache.lucene.index.IndexWriterConfig")()
    writer = java("org.apache.lucene.index.IndexWriter")(directory, config)
    for features in documents.values():
        document = java("org.apache.lucene.document.Document")()
        for key, value in features.items():
            document.add(feature("impacts", key, value))
        writer.addDocument(document)
    writer.close()
    reader = java("org.apache.lucene.index.DirectoryReader").open(directory)
    searcher = java("org.apache.lucene.search.IndexSearcher")(reader.getContext())
    should = java("org.apache.lucene.search.BooleanClause$Occur").SHOULD
    ids = list(documents)
    found: Found = {}
    for id, weights in queries.items():
        both = java("org.apache.lucene.search.BooleanQuery$Builder")()
        for key, weight in weights.items():
            both.add(feature.newLinearQuery("impacts", key, weight), should)
        hits = searcher.search(both.build(), 1000).scoreDocs
        found[id] = {ids[hit.doc]: hit.score for hit in hits}
    reader.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_feature_fields_have_the_scores_of_lucene(
    engine: str, java: None, impacts: Path, topics: dict[str, str], expected: Found, tmp_path: Path
) -> None:
    manifest = export_opensearch(Source(impacts, topics), tmp_path / "export", engine)
    documents = read_bulk(tmp_path / "export")
    assert len(documents) == manifest.stats["documents"] == 12
    mapping = json.loads((tmp_path / "export" / "mapping.json").read_text())["mappings"]
    assert mapping["properties"]["impacts"]["type"] == ENGINES[engine].field

    searches = {record["id"]: record for record in json_lines(tmp_path / "export" / "queries.jsonl")}
    for record in searches.values():
        Draft202012Validator(body_schema(engine)).validate(record["body"])
    text = (tmp_path / "export" / "queries.jsonl").read_text()
    assert ('"prune": false' in text) == (engine == "elasticsearch")
    weights = {id: tokens(record["body"]["query"]) for id, record in searches.items()}
    found = search_features(documents, weights)
    scaled = {id: {doc: s * searches[id]["scale"] for doc, s in hits.items()} for id, hits in found.items()}

    terms = (tmp_path / "export" / "terms.txt").read_text().splitlines()
    originals = dict(Source(impacts).documents())
    for id, features in documents.items():  # only what 9 bits cannot hold differs
        vector = {terms[int(key)]: value for key, value in features.items()}
        assert vector.keys() == originals[id].keys()
        assert all(abs(vector[t] - i) <= (i > 512) + (i > 1024) for t, i in originals[id].items())
    assert_same(scaled, expected, rel=1 / 512)
    exact = {
        id: {
            doc: score
            for doc, features in documents.items()
            if (score := sum(features.get(key, 0) * weight for key, weight in query.items()))
        }
        for id, query in weights.items()
    }
    assert_same(found, exact)  # the values written are those that Lucene stores


def tokens(query: dict[str, Any]) -> dict[str, float]:
    """The weights in a query of either engine."""
    (inner,) = query.values()
    return inner["query_vector"] if "query_vector" in inner else inner["impacts"]["query_tokens"]


@pytest.mark.slow
def test_impacts_of_9_bits_lose_nothing(java: None, run_folder: Path, topics: dict[str, str], tmp_path: Path) -> None:
    impacts = impacts_of_bits(9, run_folder, tmp_path / "impacts")
    index = index_impacts(impacts, tmp_path / "index")
    manifest = export_opensearch(Source(impacts, topics), tmp_path / "export", "opensearch")
    assert "0.00% were rounded to 9 significant bits" in manifest.stats["loses"][2]
    searches = {record["id"]: record for record in json_lines(tmp_path / "export" / "queries.jsonl")}
    found = search_features(
        read_bulk(tmp_path / "export"), {id: tokens(s["body"]["query"]) for id, s in searches.items()}
    )
    scaled = {id: {doc: s * searches[id]["scale"] for doc, s in hits.items()} for id, hits in found.items()}
    assert_same(scaled, search_lucene(index, index, topics))


@pytest.mark.slow
def test_lucene_keeps_the_values_that_are_written(java: None) -> None:
    values = representable(np.array([*range(1, 1200), 12345, 1_000_003]))
    found = search_features({str(v): {"7": float(v)} for v in set(values.tolist())}, {"q": {"7": 1.0}})["q"]
    assert found == {str(v): float(v) for v in set(values.tolist())}


def test_bulk_requests_are_small_enough_for_a_server(
    impacts_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_opensearch(Source(impacts_by_hand), tmp_path / "one", "opensearch")
    assert [path.name for path in (tmp_path / "one").glob("bulk-*")] == ["bulk-00000.ndjson"]
    monkeypatch.setattr("cai_pyserini.export.opensearch.REQUEST", 120)
    export_opensearch(Source(impacts_by_hand), tmp_path / "many", "opensearch")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "many").glob("bulk-*"))]
    assert len(sizes) > 2 and max(sizes) <= 120
    assert all(first + second > 60 for first, second in pairwise(sizes))
    assert read_bulk(tmp_path / "many") == read_bulk(tmp_path / "one")


@pytest.mark.parametrize("constant", ["export.opensearch.REQUEST", "export.source.LOSES"])
def test_the_constants_of_a_format_are_in_its_recipe(constant: str, impacts_by_hand: Path, tmp_path: Path) -> None:
    made = export_opensearch(Source(impacts_by_hand), tmp_path / "export", "opensearch")
    assert constant in made.recipe["constants"]


def test_an_id_that_no_server_takes_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    impacts = stored_impacts(checkpoint, tmp_path / "impacts", [{"é" * 257: {"é": 300}}])
    with pytest.raises(CaiError, match=r"the id é{20}… has 514 bytes; elasticsearch takes 512"):
        export_opensearch(Source(impacts), tmp_path / "export", "elasticsearch")


def test_nine_significant_bits() -> None:
    assert representable(np.array([1, 511, 512, 513, 514, 515, 1023, 1024, 1025, 1026])).tolist() == [
        *(1, 511, 512, 512, 514, 516, 1024, 1024, 1024, 1024)
    ]
    assert representable(np.array([], np.int64)).tolist() == []


def test_weights_above_64_are_divided_and_the_scale_says_so() -> None:
    made = search({5: 6400, 9: 6401}, 100, ENGINES["opensearch"])
    assert made["scale"] == 200
    assert made["body"]["query"]["neural_sparse"]["impacts"]["query_tokens"] == {"5": 32.0, "9": 32.005}
    assert search({5: 6400}, 100, ENGINES["opensearch"])["scale"] == 100
    assert search({}, 100, ENGINES["elasticsearch"])["body"]["query"] == {"match_none": {}}
