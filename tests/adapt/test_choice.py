"""What judges candidates: how well what is served of them finds the sources of queries, and their remainders."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.adapt.choice import Choice
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import Bm25, Mixture, Products

TEXTS = [f"plant leaf{number} stem{number} root{number} green{number}" for number in range(30)]
QUERIES = [SimpleNamespace(document=number, text=f"leaf{number}") for number in (3, 8)]
SOURCES = [3, 8]


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Choice:
    """Two judges, each a word that only its source has; SPLADE and dense vectors are of as many dimensions as there are
    documents, and score nothing."""
    monkeypatch.setattr("cai_pyserini.adapt.choice.POOL", 30)
    texts, nothing = [query.text for query in QUERIES], np.zeros((2, 30), np.float32)
    products = [Products(csr_matrix(nothing), csr_matrix(np.eye(30))), Products(nothing, np.eye(30, dtype=np.float32))]
    material = SimpleNamespace(
        mixture=Mixture([Bm25(TEXTS, texts), *products], [2.0, 1.0, 2.0], 2, 30),
        pseudo_queries=QUERIES,
        sources=np.array(SOURCES),
        held_out=np.array([0, 1]),
        contents=TEXTS,
        remainders=lambda numbers: [TEXTS[number].replace(f"leaf{number}", "") for number in SOURCES],
        products=products,
        encoders=[None],
        idf=np.ones(30),
        encode=lambda encoder, texts: csr_matrix(np.zeros((len(texts), 30))),
    )
    return Choice(cast(Material, cast(Any, material)))


def sparse(queries: np.ndarray) -> csr_matrix:
    return csr_matrix(queries.astype(np.float32))


def test_bm25_finds_a_word_but_not_where_it_is_not(judges: Choice) -> None:
    """So with SPLADE that knows nothing, sources are first and remainders are not found: the mean of 1 and 0."""
    documents = np.eye(30)[judges.documents]
    nothing = np.zeros((2, 30))
    assert judges.splade(sparse(nothing), sparse(documents), sparse(nothing)) == pytest.approx(0.5)


def test_the_value_of_splade_counts_remainders(judges: Choice) -> None:
    """The first judge's SPLADE knows the remainder, the second's does not; balanced BM25 finds both sources."""
    queries = np.random.default_rng(1).random((2, 30))
    remainders = np.zeros((2, 30))
    remainders[0] = 100
    value = judges.splade(sparse(queries), sparse(np.eye(30)[judges.documents]), sparse(remainders))
    assert value == pytest.approx((1 + 1 + 1 + 0) / 4)


def test_dense_vectors_are_judged_in_the_mixture(judges: Choice) -> None:
    """BM25 finds both sources, SPLADE says nothing; dense vectors find the remainder of one of them."""
    queries = np.eye(30, dtype=np.float32)[SOURCES]
    documents, remainders = np.eye(30, dtype=np.float32), np.eye(30, dtype=np.float32)[[3, 0]]
    blind = judges.dense(queries, documents, np.zeros((2, 30), np.float32))
    assert blind == pytest.approx(0.5)
    assert judges.dense(queries, documents, remainders) > blind + 0.2


@pytest.mark.parametrize("knows, weight", [("dense", 0.5), ("bm25", 2.0)])
def test_the_weight_of_bm25_is_what_finds_remainders(judges: Choice, knows: str, weight: float) -> None:
    """One of BM25 and dense vectors knows the remainders, the other does not."""
    draw = np.random.default_rng(1)
    queries, documents = draw.random((2, 30), np.float32), draw.random((30, 30), np.float32)
    products = queries @ documents.T
    bm25 = np.column_stack([products, products.mean(1) * (1.5 if knows == "bm25" else 0.5)])
    remainders = documents.mean(0, keepdims=True) * np.float32(1.5 if knows == "dense" else 0.5)
    judges.__dict__.update(_bm25=bm25, old_dense=(queries, documents, remainders))
    chosen, evidence = judges.weight_of_bm25()
    assert chosen == weight
    assert evidence.startswith("sources of 2 pseudo queries found without their words, by weight: 2: ")


def test_evidence_is_one_line(judges: Choice) -> None:
    assert judges.best({0.0: 0.5, 0.4: 0.61234}) == (
        0.4,
        "sources of 2 pseudo queries found with and without their words, by weight: 0: 0.500, 0.4: 0.612",
    )
