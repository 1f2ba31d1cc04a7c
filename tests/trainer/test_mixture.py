"""The mixture of systems: standardized scores, worked out by hand and against plain NumPy."""

import bm25s
import numpy as np
import pytest
import Stemmer
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import IndexConfig, Language
from cai_pyserini.trainer.mixture import LANGUAGES, Bm25, Mixture, VectorSystem


def test_scores_are_standardized_and_weighted() -> None:
    """Two systems score three documents 1, 2, 3 and 30, 20, 10; a difference is 1.2247 deviations."""
    first = VectorSystem(np.ones((1, 1), np.float32), np.array([[1.0], [2.0], [3.0]], np.float32))
    second = VectorSystem(csr_matrix([[10.0]], dtype=np.float32), csr_matrix([[3.0], [2.0], [1.0]], dtype=np.float32))
    mixture = Mixture([first, second], [2.0, 1.0])
    every = np.arange(3)
    np.testing.assert_allclose(mixture.scores(np.array([0]), every), [[-1.2247, 0, 1.2247]], atol=1e-3)
    np.testing.assert_allclose(mixture.standardized(np.array([0]), every), [[-1.2247, 0, 1.2247]], atol=1e-3)
    assert mixture.best[:, 0].tolist() == [[2, 1, 0], [0, 1, 2], [2, 1, 0]]
    np.testing.assert_allclose(mixture.spread, [0.8165, 8.165, 1.0], atol=1e-3)


def test_many_queries_and_documents_are_as_in_plain_numpy() -> None:
    """With more documents than the best ones that determine mean and deviation, and several batches of queries."""
    draw = np.random.default_rng(1)
    systems = [VectorSystem(*(draw.normal(size=(n, 8)).astype(np.float32) for n in (150, 300))) for _ in range(2)]
    mixture = Mixture(systems, [1.0, 3.0])
    expected = np.zeros((150, 300))
    for weight, system in zip((1.0, 3.0), systems, strict=True):
        scores = system.queries @ system.documents.T
        best = np.sort(scores, axis=1)[:, -100:]
        expected += weight * (scores - best.mean(1, keepdims=True)) / best.std(1, keepdims=True)
    queries, documents = np.array([3, 149, 70]), np.array([0, 299, 17])
    np.testing.assert_allclose(mixture.scores(queries, documents), expected[np.ix_(queries, documents)], atol=1e-3)
    assert (mixture.best[-1] == np.argsort(-expected, axis=1)[:, :100]).mean() > 0.999  # except for rounding


def test_bm25_is_that_of_bm25s() -> None:
    documents = ["infections of the kidney", "a broken bone", "kidney stones and kidney pain"]
    queries = ["kidneys in pain", "the", "unknown"]
    bm25 = Bm25(documents, IndexConfig(name="x", source="x", k1=1.2, b=0.7))
    scores = (bm25.queries(queries) @ bm25.documents.T).toarray()
    stemmer = Stemmer.Stemmer("english")
    words = [bm25s.tokenize(t, stopwords="en", stemmer=stemmer, return_ids=False) for t in (documents, queries)]
    peer = bm25s.BM25(k1=1.2, b=0.7)
    peer.index(words[0])
    np.testing.assert_allclose(scores[0], peer.get_scores(words[1][0]), rtol=1e-5)
    assert scores[0].argmax() == 2 and not scores[1:].any()  # only a stop word, and a word that is in no document
    np.testing.assert_array_equal(bm25.weighting.weights(bm25.queries(documents)).toarray(), bm25.documents.toarray())


@pytest.mark.parametrize(
    "language, document, query",
    [("de", "die großen Häuser", "das Haus"), ("pl", "domy", "domów"), ("ru", "и дома", "дом и")],
)
def test_words_are_stemmed_as_in_the_language_of_the_collection(language: Language, document: str, query: str) -> None:
    collection = IndexConfig(name="x", source="x", language=language)
    assert Bm25([document], collection).queries([query]).nnz == 1  # a stop word is none
    assert language in LANGUAGES
