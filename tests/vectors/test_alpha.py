"""The estimate of alpha, compared with a worked example and with NumPy on whole matrices."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import Bm25Parameters, EncoderConfig, load_encoder
from cai_pyserini.indexes.words import count_words
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf, compute
from cai_pyserini.vectors import weighting as stage
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import estimate_alpha
from tests.conftest import json_lines, stored_vectors
from tests.vectors.support import counted

WORDS = ["colon", "cancer", "rat"]
COUNTS = [[1, 1, 0], [0, 5, 0], [0, 0, 1]]
SPANS: dict[str, dict[str, int]] = {"colon cancer": {"colon": 1, "cancer": 1}, "cancer": {"cancer": 2}, "the": {}}


def words_of_documents(folder: Path, spans: dict[str, dict[str, int]]) -> Path:
    """The words of three documents, in two shards."""
    return counted(folder, WORDS, COUNTS[:2], COUNTS[2:], spans=spans)


@pytest.fixture
def bow(checkpoint: Path) -> EncoderModel:
    """An encoder with bag-of-words queries, which need no model."""
    return EncoderModel(EncoderConfig(name="test", checkpoint=str(checkpoint), query="bow"), "cpu")


@pytest.fixture
def vectors(bow: EncoderModel, tmp_path: Path) -> Vectors:
    """Of three documents: colon 1, 0, 3; cancer 2, 4, 0."""
    rows = np.zeros((3, len(bow.tokenizer)), np.float32)
    rows[:, [bow.tokenizer.terms.index(term) for term in WORDS[:2]]] = [[1, 2], [0, 4], [3, 0]]
    return stored_vectors(tmp_path / "vectors", csr_matrix(rows[:2]), csr_matrix(rows[2:]))


def test_worked_example(vectors: Vectors, bow: EncoderModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With k1 = 0, the weight of a word is its IDF: of colon, in 1 of 3 documents, and of cancer, in 2 of 3.
    words = Bm25(words_of_documents(tmp_path / "words", SPANS), Bm25Parameters(k1=0.0))
    colon, cancer = np.log(1 + 2.5 / 1.5), np.log(1 + 1.5 / 2.5)
    # Scores of a, b and c. The third span has no words, and so is no query.
    bm25 = [[colon + cancer, cancer, 0], [2 * cancer, 2 * cancer, 0]]
    splade = [[3, 4, 3], [2, 4, 0]]
    expected = np.std(splade, axis=1).mean() / np.std(bm25, axis=1).mean()
    assert estimate_alpha(vectors, None, words, bow)["bow"] == pytest.approx(expected, abs=6e-5)
    monkeypatch.setattr(stage, "BEST", 2)
    expected = np.mean([0.5, 1.0]) / np.mean([colon / 2, 0])
    assert estimate_alpha(vectors, None, words, bow)["bow"] == pytest.approx(expected, abs=6e-5)
    doubled = estimate_alpha(vectors, np.full(vectors.width, 2.0), words, bow)
    assert doubled["bow"] == pytest.approx(2 * expected, abs=6e-5)


def test_a_given_alpha_is_not_estimated(vectors: Vectors, bow: EncoderModel, tmp_path: Path) -> None:
    words = Bm25(words_of_documents(tmp_path / "words", {}), alpha=2.5)
    assert estimate_alpha(vectors, None, words, bow) == {"splade": 2.5, "bow": 2.5}


def test_too_short_or_too_few_documents_give_no_estimate(
    vectors: Vectors, bow: EncoderModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = Bm25(words_of_documents(tmp_path / "short", {"the": {}}))
    assert estimate_alpha(vectors, None, words, bow) == {"splade": 1.0, "bow": 1.0}
    one = stored_vectors(tmp_path / "one", csr_matrix(np.ones((1, len(bow.tokenizer)), np.float32)))
    words = Bm25(counted(tmp_path / "few", WORDS, COUNTS[:1], spans=SPANS))
    assert estimate_alpha(one, None, words, bow) == {"splade": 1.0, "bow": 1.0}
    assert [record.args for record in caplog.records] == [("short", 1.0), ("few", 1.0)]


@pytest.mark.slow
def test_the_estimate_equals_that_of_whole_matrices(
    java: None, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("vectors.encode", "indexes.words"):
        monkeypatch.setattr(f"cai_pyserini.{module}.SHARD", 5)
    monkeypatch.setattr(stage, "BEST", 7)
    collection, encoder = BeirFolder(tiny, "tiny"), EncoderModel(load_encoder("splade-tiny"), "cpu", "float32")
    idf = Idf.load(compute(collection, encoder.config, tmp_path / "idf")).weights()
    vectors = Vectors(encode(collection, encoder, tmp_path / "vectors"))
    words = Bm25(count_words(collection, tmp_path / "words"), Bm25Parameters(1.2, 0.75))
    found = estimate_alpha(vectors, idf, words, encoder)

    def spread(queries: np.ndarray, documents: np.ndarray) -> float:
        return float(np.sort(queries @ documents.T, axis=1)[:, -7:].std(axis=1).mean())

    spans = json_lines(words.folder / "spans.jsonl")
    counts = np.array([[span["words"].get(word, 0) for word in words.words] for span in spans])
    bm25 = spread(counts, vstack([part.vectors for part in words.shards()]).toarray())
    documents = vstack([part.vectors for part in vectors]).toarray() * idf
    assert len(spans) == 11 and list(found) == ["splade", "bow"]
    for kind, value in found.items():
        queries = encode_queries(encoder, [span["text"] for span in spans], kind).toarray()
        assert value == pytest.approx(spread(queries, documents) / bm25, rel=1e-4)
