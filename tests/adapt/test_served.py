"""What the judges search is what the stages serve."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.sparse import diags_array, vstack

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.served import Served, fused
from cai_pyserini.core.config import load_encoder
from cai_pyserini.encode.encode import encode
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.expand.expand import expand
from cai_pyserini.impact.bm25 import NEAR_WORDS
from cai_pyserini.near.near import find_near
from cai_pyserini.smooth.smooth import smooth
from cai_pyserini.vectors.mixing import mix
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.words.words import count_words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(with_dense: Material) -> Served:
    return Served.judges(with_dense, np.arange(6))


def test_documents_are_smoothed_as_the_stage_does(served: Served, tmp_path: Path) -> None:
    """And remainders as documents: by the neighbours of their own vectors, without the source."""
    rows, dense = served.old_splade.rows, served.dense(None)  # which encodes the documents
    folder = served.material.folder
    found = Vectors(find_near(Vectors(folder / "dense-documents"), tmp_path / "near"), "near")
    stage = Vectors(smooth(Vectors(folder / "documents"), found, tmp_path / "s"), "smooth")
    expected = vstack([shard.vectors for shard in stage], format="csr")
    mixed = mix(rows, rows, dense.near, 0.4)
    np.testing.assert_allclose(mixed[:12].toarray(), expected.toarray(), atol=1e-5)
    for row, source in enumerate(served.sources, 12):
        positive = np.flatnonzero(dense.rows[:12] @ dense.rows[row] > 0)
        assert set(dense.near[row].indices) == {*positive} - {source} and len(positive) > 8


def test_values_are_of_the_scores_that_are_served(served: Served) -> None:
    """nDCG@10 of joint scores, from their parts by hand."""
    sparse, dense = served.old_splade, served.dense(None)
    (values,) = served.values(sparse, [dense], 2.0)
    assert values.shape == (3, 6) and len(served.systems) == 3
    weighted = (mix(sparse.rows, sparse.rows, dense.near, 0.4) @ diags_array(served.material.idf)).toarray()
    words = (dense.bm25 + NEAR_WORDS * dense.words).toarray()
    splade, counts = sparse.queries["splade"].toarray(), served.bm25.queries(served.queries).toarray()
    spans, of_spans = sparse.spans["splade"].toarray(), served.bm25.queries(served.spans).toarray()
    plain = served.words.toarray()[:12]
    alpha = (spans @ weighted[:12].T).std(1).mean() / (of_spans @ plain.T).std(1).mean()
    scores = alpha * counts @ words.T + splade @ weighted.T
    for query, source in enumerate(served.sources):
        rank = (np.delete(scores[query, :12], source) >= scores[query, 12 + query]).sum()
        assert values[1, query] == pytest.approx(1 / np.log2(rank + 2) if rank < 10 else 0)


def test_the_fusion_has_the_weight_that_serves(served: Served) -> None:
    """BM25 at weight 2 would judge the projection whatever weight serves."""
    scores = np.random.default_rng(1).random((6, 13))
    bm25, dense = served.products(served.word_queries, served.words), served.products(*served.old_dense)
    one, two = (fused(weight, bm25, scores, dense) for weight in (0.5, 2.0))
    words = served.bm25.queries(served.queries) @ served.bm25.documents.T
    best = words.toarray()
    np.testing.assert_allclose(
        (two - one)[:, :12], 1.5 * (best - best.mean(1)[:, None]) / best.std(1)[:, None], atol=1e-4
    )


def test_a_projection_changes_neighbours_and_near_words(served: Served) -> None:
    """Smooth indexes are made with the projection, too."""
    old, width = served.dense(None), served.old_dense[0].shape[1]
    other = served.dense(np.random.default_rng(1).normal(size=(width, width)).astype(np.float32))
    assert (other.near != old.near).nnz
    assert (other.words != old.words).nnz


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.usefixtures("java")
def test_near_words_and_words_of_near_documents_are_those_of_the_stage(
    served: Served, adapted: bool, tmp_path: Path
) -> None:
    """Of the words that both know: each analyzes texts in its own way."""
    config, width, projection = load_encoder("minilm"), served.old_dense[0].shape[1], None
    if adapted:
        projection = np.random.default_rng(1).normal(size=(width, width)).astype(np.float32)
        save_file({"weight": projection}, tmp_path / "projection.safetensors")
        config = config.replace(projection=str(tmp_path / "projection.safetensors"))
    encoder, collection = Encoder(config, "cpu"), served.material.documents
    words = Vectors(count_words(collection, tmp_path / "words"), "words")
    vectors = Vectors(encode(collection, encoder, tmp_path / "vectors"))
    found = Vectors(find_near(vectors, tmp_path / "near"), "near")
    (shard,) = Vectors(expand(words, vectors, found, encoder, tmp_path / "expansion"), "expand")
    columns = {word: column for column, word in enumerate((words.folder / "words.txt").read_text().splitlines())}
    both = [word for word in served.bm25.words if word in columns]
    dense, own, other = served.dense(projection), *zip(*((served.bm25.words[w], columns[w]) for w in both), strict=True)
    near = shard.vectors[:, : len(columns)].toarray()
    assert len(both) > 80 and np.count_nonzero(near) > 5
    np.testing.assert_allclose(dense.words[:12, own].toarray(), near[:, other], atol=0.02)
    rates = shard.vectors[:, len(columns) :].toarray()
    counts = served.counts.toarray()[:12]
    lengths = counts.sum(1, keepdims=True)
    counts[:, own] += 0.6 * lengths * rates[:, other]
    weights = served.bm25._idf * counts / (counts + 0.9 * (0.6 + 0.4 * lengths / lengths.mean()))
    added = weights[:, own] - served.words[:12, own].toarray()  # of 50 words, which are not quite the same
    ours = (dense.bm25 - served.words)[:12, own].toarray()
    assert np.corrcoef(ours.ravel(), added.ravel())[0, 1] > 0.98 and 0.95 < ours.sum() / added.sum() < 1.05


def test_of_a_large_collection_a_sample_with_all_sources_is_searched(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cai_pyserini.adapt.served.DOCUMENTS", 8)
    small = Served.judges(served.material, np.arange(6))
    assert len(small.documents) == 8
    np.testing.assert_array_equal(small.documents[small.sources], small.material.sources[:6])
