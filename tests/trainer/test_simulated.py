"""Simulated retrieval equals what the stages serve."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.sparse import diags_array, vstack

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.indexes.words import count_words
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import compute
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.trec import run_of
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.simulated import SimulatedRetrieval
from cai_pyserini.vectors.bm25 import ASSOCIATED_FACTOR
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.near_documents import mix, mix_near
from cai_pyserini.vectors.near_words import find_near_words
from cai_pyserini.vectors.neighbours import find_neighbours
from cai_pyserini.vectors.queries import Queries
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import open_impacts, write_impacts
from tests.trainer.conftest import adaptation_data, changed, in_passages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(with_dense: AdaptationData) -> SimulatedRetrieval:
    return SimulatedRetrieval.for_pseudo_queries(with_dense, np.arange(6))


def test_documents_are_smoothed_as_the_stage_does(served: SimulatedRetrieval, tmp_path: Path) -> None:
    """Remainders are smoothed like documents: by the neighbours of their own vectors, without the source."""
    rows, dense = served.old_splade.rows, served.dense(None)  # which encodes the documents
    folder = served.data.folder
    found = Vectors(find_neighbours(Vectors(folder / "dense-documents"), tmp_path / "near"), "near")
    stage = Vectors(mix_near(Vectors(folder / "documents"), found, tmp_path / "s"), "smooth")
    expected = vstack([shard.vectors for shard in stage], format="csr")
    mixed = mix(rows, rows, dense.neighbours, 0.4)
    np.testing.assert_allclose(mixed[:12].toarray(), expected.toarray(), atol=1e-5)
    for row, source in enumerate(served.sources, 12):
        positive = np.flatnonzero(dense.rows[:12] @ dense.rows[row] > 0)
        assert set(dense.neighbours[row].indices) == {*positive} - {source} and len(positive) > 8


def test_scores_are_those_of_the_index_that_is_served(tiny: Path, tmp_path: Path) -> None:
    """With encoder settings that shape impacts and queries. The fault: the simulation ignored them all."""
    unusual = {"keep_terms": 20, "bits": 5, "range": 3.0, "idf_power": 0.5, "query_scale": 7}
    data = changed(adaptation_data(tiny, tmp_path / "vectors"), encoder=unusual)
    retrieval = SimulatedRetrieval.for_pseudo_queries(data, np.arange(6))
    scores = retrieval.impact_scores(retrieval.old_splade, "splade", retrieval.old_splade.rows)
    vectors, idf = Vectors(data.folder / "documents"), compute(data.full_collection, data.splade, tmp_path / "idf")
    output = write_impacts(vectors, data.splade.replace(idf=str(idf)), tmp_path / "impacts")
    config = load_encoder(str(output))
    impacts = open_impacts(vectors, config)
    queries = impacts.queries(
        Queries({str(n): text for n, text in enumerate(retrieval.queries)}, EncoderModel(config, "cpu"))
    )
    (shard,) = impacts
    expected = (queries @ shard.vectors.T).toarray()
    others = np.arange(12) != retrieval.sources[:, None]
    np.testing.assert_allclose(np.maximum(scores, 0)[others], expected[others])
    assert np.count_nonzero(expected) > 10


def test_settings_of_the_collection_and_the_run_have_effect(tiny: Path, tmp_path: Path) -> None:
    plain = adaptation_data(tiny, tmp_path / "vectors")
    bm25 = changed(plain, collection={"k1": 0.0, "b": 0.0})
    retrieval = SimulatedRetrieval.for_pseudo_queries(replace(bm25, alpha=1.5), np.arange(6))
    weights = retrieval.words.toarray()
    assert all(len(set(column[column > 0].tolist())) <= 1 for column in weights.T)  # with k1 0, words count once
    sparse = retrieval.old_splade
    assert set(retrieval.alpha(sparse, sparse.rows).values()) == {1.5}
    one, two = (retrieval.impact_scores(sparse, "bow", sparse.rows, retrieval.words, alpha) for alpha in (1.0, 1.5))
    assert (one != two).any()
    recipes = [each.simulation_identity for each in (plain, bm25, changed(plain, encoder={"keep_terms": 3}))]
    assert len({artifact.digest(each) for each in recipes}) == 3


def test_values_are_of_the_scores_that_are_served(served: SimulatedRetrieval) -> None:
    """nDCG@10 of joint scores, from their parts by hand, and of the fusion, from runs."""
    sparse, dense = served.old_splade, served.dense(None)
    (values,) = served.values(sparse, [dense], (2.0, 1.0, 2.0))
    assert values.shape == (3, 6) and len(served.systems) == 3
    rows = mix(sparse.rows, sparse.rows, dense.neighbours, 0.4)
    weighted = (rows @ diags_array(served.data.idf)).toarray()
    splade, counts = sparse.queries["splade"].toarray(), served.bm25.queries(served.queries).toarray()
    spans, span_counts = sparse.spans["splade"].toarray(), served.bm25.queries(served.spans).toarray()
    plain = served.words.toarray()[:12]
    alpha = (spans @ weighted[:12].T).std(1).mean() / (span_counts @ plain.T).std(1).mean()
    assert served.alpha(sparse, rows)["splade"] == pytest.approx(alpha, rel=1e-3)
    scores = alpha * counts @ dense.words.toarray().T + splade @ weighted.T
    joint = served.impact_scores(sparse, "splade", rows, dense.words, alpha)
    own = scores[np.arange(6), 12 + np.arange(6)]
    scores[np.arange(6), served.sources] = own
    for query in range(6):
        assert np.corrcoef(scores[query, :12], np.maximum(joint[query], 0))[0, 1] > 0.999  # quantized
    np.testing.assert_array_equal(values[1], served.ndcg(joint))
    parts = served.parts(sparse, rows, dense.bm25, dense.queries, dense.rows)
    runs = [
        run_of(
            {f"{q}": [(f"{d:02}", float(s)) for d, s in enumerate(row) if s > -np.inf] for q, row in enumerate(part)}
        )
        for part in parts
    ]
    fused = fuse_runs(runs, "zscore", 100, 1000, (2.0, 1.0, 2.0))
    expected = np.full((6, 12), -np.inf)
    for query, document, score in fused:
        expected[int(query), int(document)] = score
    np.testing.assert_allclose(served.fused(parts, (2.0, 1.0, 2.0)), expected)
    for query, source in enumerate(served.sources):
        rank = (np.delete(expected[query], source) >= expected[query, source]).sum()
        assert values[0, query] == pytest.approx(1 / np.log2(rank + 2) if rank < 10 else 0)


def test_passages_and_copies_of_a_source_neither_answer_nor_help(tmp_path: Path) -> None:
    """Documents are ranked by their best passage; those that still have the query's words are excluded."""
    data = in_passages(tmp_path, dense=True)
    retrieval = SimulatedRetrieval.for_pseudo_queries(data, np.arange(4))
    sparse, (_, rows) = retrieval.old_splade, retrieval.old_dense
    scores = retrieval.impact_scores(sparse, "splade", sparse.rows)
    assert len(retrieval.documents) == 48 and scores.shape == (4, 12)
    near, weighted = retrieval.neighbours(rows)[48:], (sparse.rows @ diags_array(data.idf)).toarray()
    exact = sparse.queries["splade"].toarray() @ weighted.T * 100 * 1023 / weighted[:48].max()
    columns = np.unique(data.origins, return_inverse=True)[1]
    for row, source in enumerate(retrieval.sources):
        equivalents = data.equivalents(source)
        assert len(equivalents) >= 4 and not {*near[row].indices} & {*equivalents}
        expected = np.zeros(12)
        np.maximum.at(expected, np.delete(columns, equivalents), np.delete(exact[row, :48], equivalents))
        assert not expected[columns[source]]
        expected[columns[source]] = exact[row, 48 + row]
        np.testing.assert_allclose(np.maximum(scores[row], 0), expected, rtol=0.05, atol=200)
    assert np.isinf(scores[np.arange(4), retrieval.source_columns]).sum() < 4


@pytest.mark.usefixtures("java")
def test_near_words_and_words_of_near_documents_are_those_of_the_stage(
    served: SimulatedRetrieval, tmp_path: Path
) -> None:
    """With a projection, and for words that both know, because each analyzes texts in its own way."""
    width = served.old_dense[0].shape[1]
    projection = np.random.default_rng(1).normal(size=(width, width)).astype(np.float32)
    save_file({"weight": projection}, tmp_path / "projection.safetensors")
    config = load_encoder("minilm").replace(projection=str(tmp_path / "projection.safetensors"))
    encoder, collection = EncoderModel(config, "cpu"), served.data.documents
    words = Vectors(count_words(collection, tmp_path / "words"), "words")
    vectors = Vectors(encode(collection, encoder, tmp_path / "vectors"))
    found = Vectors(find_neighbours(vectors, tmp_path / "near"), "near")
    (shard,) = Vectors(find_near_words(words, vectors, found, encoder, tmp_path / "expansion"), "expand")
    columns = {word: column for column, word in enumerate((words.folder / "words.txt").read_text().splitlines())}
    both = [word for word in served.bm25.words if word in columns]
    dense, own, other = served.dense(projection), *zip(*((served.bm25.words[w], columns[w]) for w in both), strict=True)
    near = shard.vectors[:, : len(columns)].toarray()
    assert len(both) > 80 and np.count_nonzero(near) > 5
    near_words = (dense.words - dense.bm25)[:12, own].toarray() / ASSOCIATED_FACTOR
    np.testing.assert_allclose(near_words, near[:, other], atol=0.02)
    rates = shard.vectors[:, len(columns) :].toarray()
    counts = served.counts.toarray()[:12]
    lengths = counts.sum(1, keepdims=True)
    counts[:, own] += 0.6 * lengths * rates[:, other]
    weights = served.bm25.weighting.idf * counts / (counts + 0.9 * (0.6 + 0.4 * lengths / lengths.mean()))
    added = weights[:, own] - served.words[:12, own].toarray()  # of 50 words, which are not quite the same
    ours = (dense.bm25 - served.words)[:12, own].toarray()
    assert np.corrcoef(ours.ravel(), added.ravel())[0, 1] > 0.98 and 0.95 < ours.sum() / added.sum() < 1.05


def test_of_a_large_collection_a_sample_with_all_sources_is_searched(
    served: SimulatedRetrieval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cai_pyserini.trainer.simulated.DOCUMENTS", 8)
    small = SimulatedRetrieval.for_pseudo_queries(served.data, np.arange(6))
    assert len(small.documents) == 8
    np.testing.assert_array_equal(small.documents[small.sources], small.data.sources[:6])
