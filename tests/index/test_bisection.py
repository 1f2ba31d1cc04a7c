"""The order of documents: a permutation, the same every time, that puts alike documents near each other."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.index.bisection import SMALLEST, bisect


def log_gap(documents: csr_matrix) -> float:
    """The mean base-2 logarithm of the gaps between documents with the same term."""
    columns = documents.tocsc()
    columns.sort_indices()
    gaps = np.diff(columns.indices)
    inside = np.ones(len(gaps), bool)
    inside[columns.indptr[1:-1][columns.indptr[1:-1] < len(columns.indices)] - 1] = False
    return float(np.log2(gaps[inside]).mean())


@pytest.fixture(scope="module")
def definitions() -> csr_matrix:
    """Definitions of an ontology, shuffled, as bags of word pieces."""
    documents = open_collection(load_index_config("hpo")).documents()
    texts = [document.contents for document, _ in zip(documents, range(3000), strict=False)]
    tokenizer = Encoder(load_encoder("splade-tiny"), "cpu").tokenizer
    return tokenizer.bag_of_words(texts, 256)[np.random.default_rng(0).permutation(len(texts))]


def test_alike_documents_of_real_text_are_near(definitions: csr_matrix) -> None:
    order = bisect(definitions)
    assert np.sort(order).tolist() == list(range(definitions.shape[0]))
    assert log_gap(definitions[order]) < 0.8 * log_gap(definitions)
    assert (bisect(definitions) == order).all()


def test_only_which_terms_a_document_has_counts(definitions: csr_matrix) -> None:
    other = definitions.copy()
    other.data = np.random.default_rng(1).random(other.nnz)
    assert (bisect(other) == bisect(definitions)).all()


def test_topics_become_halves() -> None:
    """Documents of two topics, alternating: each topic has 20 terms, of which a document has 10."""
    draw = np.random.default_rng(0)
    rows = np.zeros((8 * SMALLEST, 40))
    for number, row in enumerate(rows):
        row[20 * (number % 2) + draw.choice(20, 10, replace=False)] = 1
    topics = bisect(csr_matrix(rows)) % 2
    half = len(topics) // 2
    assert len(set(topics[:half])) == len(set(topics[half:])) == 1


@pytest.mark.parametrize("rows", [0, 1, 2, 2 * SMALLEST - 1])
def test_few_documents_stay_as_they_are(rows: int) -> None:
    assert bisect(csr_matrix(np.ones((rows, 3)))).tolist() == list(range(rows))


@pytest.mark.parametrize("rows", [2 * SMALLEST, 2 * SMALLEST + 1, 333])
def test_documents_that_share_no_term_stay_as_they_are(rows: int) -> None:
    for documents in (np.zeros((rows, 3)), np.eye(rows)):
        assert bisect(csr_matrix(documents)).tolist() == list(range(rows))
    assert sorted(bisect(csr_matrix(np.ones((rows, 3))))) == list(range(rows))
