"""Folders of every kind have the vectors of their library; those of each structure work wherever encoders do."""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sentence_transformers import SparseEncoder

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.plugin.encoder import ship_encoder
from cai_pyserini.plugin.encoders import CaiDocumentEncoder, CaiQueryEncoder
from cai_pyserini.plugin.index import ship_index
from cai_pyserini.plugin.sentence_transformers import export_encoder
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import TYPICAL_RANGE, write_impacts
from tests.models.kinds import ALL, DOCUMENTS, KINDS, QUERIES, SPARSE, TEXTS, TINY, BuiltKind, Pair, make

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
QUERY = "marathon runners, with heart attacks and repeated repeated repeated words"
STRUCTURES = ["SPLADE with prompts", "bag-of-words queries", "SPLADE, two models", "query_weights"]
STRUCTURES += ["expand_queries: false", "dense, mean and a layer", "dense, two models"]

pytestmark = pytest.mark.slow


def test_the_page_has_every_kind() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix("- ") for line in lines if line.startswith("- ")] == [*KINDS]


def opened(spec: Path) -> EncoderModel:
    return EncoderModel(load_encoder(str(spec)), "cpu", "float32")


def vectors_of(made: EncoderModel, texts: Sequence[str], batch_size: int | None = None) -> Pair:
    """Our vectors of texts as documents and as queries."""
    documents = made.load("documents").encode(texts, made.config.max_document_length, batch_size)
    both = documents, encode_queries(made, texts)
    documents, queries = (each.toarray() if isinstance(each, csr_matrix) else each for each in both)
    return documents, queries


def assert_same(found: Pair, expected: Pair) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs[: len(ours)], atol=2e-5)


@pytest.mark.parametrize("name", KINDS)
def test_vectors_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    made = make(name, tmp_path / "made")
    encoder = opened(made.yaml)
    assert_same(vectors_of(encoder, ALL), made.expected)
    assert_same(vectors_of(encoder, TEXTS, 1), made.expected)


@pytest.fixture(scope="module", params=STRUCTURES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def made(name: str, tmp_path_factory: pytest.TempPathFactory) -> BuiltKind:
    return make(name, tmp_path_factory.mktemp("kind") / "made")


@pytest.fixture(scope="module")
def index(name: str, made: BuiltKind, tmp_path_factory: pytest.TempPathFactory, java: None) -> Path:
    """An index of the tiny collection."""
    folder, encoder = tmp_path_factory.mktemp("stages"), opened(made.yaml)
    encoded = Vectors(encode(BeirFolder(TINY, "tiny"), encoder, folder / "vectors"))
    if name in SPARSE:
        return index_impacts(write_impacts(encoded, encoder.config, folder / "impacts"), folder / "index")
    return index_dense(encoded, folder / "index")


def test_the_plugin_returns_the_vectors_or_rounded_impacts(name: str, made: BuiltKind) -> None:
    documents, queries = made.expected
    of_query = CaiQueryEncoder(str(made.yaml), device="cpu").encode(QUERY)
    of_documents = CaiDocumentEncoder(str(made.yaml), "cpu", "float32").encode(TEXTS)
    if name not in SPARSE:
        return assert_same((of_documents, of_query[None]), (documents, queries[[TEXTS.index(QUERY)]]))
    terms, largest = opened(made.yaml).tokenizer.terms, 2**16 - 1
    assert_impacts(of_query, queries[TEXTS.index(QUERY)] * 10_000, terms)
    for found, weights in zip(of_documents, documents, strict=False):
        assert_impacts(found, np.minimum(weights * largest / TYPICAL_RANGE, largest), terms)


def assert_impacts(found: Any, weights: np.ndarray, terms: list[str]) -> None:
    """Assert that impacts are rounded weights."""
    vector = np.zeros_like(weights)
    for term, impact in found.items():
        vector[terms.index(term)] = impact
    np.testing.assert_allclose(vector, weights, atol=1)


def test_scores_of_hits_are_dot_products(name: str, made: BuiltKind, index: Path) -> None:
    """Up to quantization."""
    from cai_pyserini.engine.open import open_index

    engine = open_index(index, None if name in SPARSE else str(made.yaml), device="cpu")
    documents, queries = (matrix[len(TEXTS) :] for matrix in made.expected)
    products = queries[len(DOCUMENTS) :] @ documents[: len(DOCUMENTS)].T
    for text, scores in zip(QUERIES.values(), products, strict=True):
        (hits,) = engine.search([text], len(DOCUMENTS))
        found = {hit.id: hit.score for hit in hits}
        expected = dict(zip(DOCUMENTS, scores.tolist(), strict=True))
        near = 2e-3 * max(*map(abs, expected.values()), 1)
        assert {id: found.get(id, 0.0) for id in DOCUMENTS} == pytest.approx(expected, abs=near)
    engine.close()


def test_what_is_shipped_works_without_the_folder(name: str, made: BuiltKind, index: Path, tmp_path: Path) -> None:
    here = made.folder.parent
    ship_encoder(str(made.yaml), tmp_path / "encoder", "mit")
    if name in SPARSE:  # dense indexes name no encoder
        ship_index(index, tmp_path / "index", with_encoder=True)
    query = CaiQueryEncoder(str(made.yaml), device="cpu").encode(QUERY)
    here.rename(away := here.with_name("away"))
    try:
        assert_same(vectors_of(opened(tmp_path / "encoder"), TEXTS), made.expected)
        for archive in (tmp_path / "index").glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(tmp_path / "unpacked", filter="data")
            (unpacked,) = (tmp_path / "unpacked").iterdir()
            encoder = CaiQueryEncoder(str(unpacked), device="cpu")
            encoder.require_same_encoder(unpacked)
            assert encoder.encode(QUERY) == query
    finally:
        away.rename(here)


def test_an_exported_folder_has_the_same_vectors_in_the_library(name: str, made: BuiltKind, tmp_path: Path) -> None:
    config = load_encoder(str(made.yaml))
    if name not in SPARSE or not config.expand_queries:
        with pytest.raises(CaiError, match=r"is a dense encoder: only SPLADE|has a setting expand_queries, which"):
            export_encoder(config, tmp_path / "out")
        return
    export_encoder(config, tmp_path / "out")
    model = SparseEncoder(str(tmp_path / "out"), device="cpu")
    full = [i for i, text in enumerate(TEXTS) if text.strip()]
    encoded = [encode(TEXTS).to_dense().numpy()[full] for encode in (model.encode_document, model.encode_query)]
    assert_same((encoded[0], encoded[1]), (made.expected[0][full], made.expected[1][full]))
