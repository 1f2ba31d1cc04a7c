"""Joint impacts: one search of one index scores alpha * BM25 + SPLADE."""

import json
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import Bm25Parameters, EncoderConfig, Joint, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.tokenizer import WORD, Tokenizer
from cai_pyserini.runs.trec import read_run, scores_by_query
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import open_impacts, write_impacts
from tests.conftest import stage_command, stored_vectors
from tests.vectors.support import counted, vectors_of, words_of

main = stage_command("impact")

slow = pytest.mark.slow
LARGEST, WORD_LARGEST = 1023, 127  # of 10 and of 7 bits


def run_of_system(folder: Path, name: str) -> dict[str, dict[str, float]]:
    return scores_by_query(read_run(folder / "runs" / f"{name}.trec"))


@pytest.fixture(scope="module")
def weights(run_folder: Path) -> dict[str, dict[str, float]]:
    """BM25's weights: document -> word -> weight."""
    bm25 = Bm25(run_folder / "words")
    return {
        id: {bm25.words[column]: float(row[column]) for column in row.nonzero()[0]}
        for shard in bm25.shards()
        for id, row in zip(shard.ids, shard.vectors.toarray(), strict=True)
    }


@slow
def test_joint_impacts_are_those_of_splade_and_bm25(run_folder: Path, weights: dict[str, dict[str, float]]) -> None:
    joint, splade = (vectors_of(run_folder / "impacts" / name) for name in ("joint-splade-idf", "splade-idf"))
    scale = WORD_LARGEST / max(weight for of_document in weights.values() for weight in of_document.values())
    assert list(joint) == list(splade) == list(weights)
    for id, vector in joint.items():
        words = words_of(vector)
        assert {term: impact for term, impact in vector.items() if not term.startswith(WORD)} == splade[id]
        assert words.keys() <= weights[id].keys()
        assert all(abs(words.get(word, 0) - weight * scale) <= 0.5001 for word, weight in weights[id].items())
    assert max(max(words_of(vector).values()) for vector in joint.values()) == WORD_LARGEST


@slow
@pytest.mark.parametrize("kind, suffix", [("splade", ""), ("bow", "-doc")])
def test_the_joint_score_equals_that_of_two_indexes(
    kind: str, suffix: str, run_folder: Path, tiny: Path, weights: dict[str, dict[str, float]]
) -> None:
    """Up to rounding, of impacts by f <= 1/2 and of query weights by e <= 1/2, or more where that would leave 0:

    |(Q + e) * (D + f) - Q * D| <= e * D + f * Q + e * f    for a word with Q in the query and D in the document
    """
    config = load_encoder(str(run_folder / "indexes" / "joint-splade-idf"))
    assert config.joint and config.range
    alpha = config.joint.alpha[kind]
    document_scale, word_scale = LARGEST / config.range, WORD_LARGEST / config.joint.range
    in_query = alpha * config.query_scale * document_scale / word_scale
    names = ("bm25", f"splade{suffix}-idf", f"joint-splade{suffix}-idf")
    bm25, splade, joint = (run_of_system(run_folder, name) for name in names)
    analyze, topics = Analyzer(), BeirFolder(tiny, "tiny").topics("test")
    furthest = 0.0
    for query, text in topics.items():
        counts = Counter(analyze(text))
        for document in weights.keys() - {query}:
            expected = alpha * bm25.get(query, {}).get(document, 0) + splade.get(query, {}).get(document, 0)
            bound = 0.0
            for word, count in counts.items():
                if weight := weights[document].get(word):
                    q, d, f = count * in_query, weight * word_scale, 0.5
                    e = max(0.5, 1 - q)
                    bound += (e * d + f * q + e * f) / (config.query_scale * document_scale)
            found = joint.get(query, {}).get(document, 0)
            # Anserini rounds BM25's scores to 4 places, and runs have 6.
            assert found == pytest.approx(expected, abs=bound + alpha * 5e-5 + 1e-5), (query, document)
            furthest = max(furthest, bound / found) if found else furthest
    assert 0 < furthest < 0.02  # the bound is tight enough to detect errors


@slow
def test_an_encoder_yaml_says_how_to_encode_queries(run_folder: Path, tmp_path: Path) -> None:
    made = load_encoder(str(run_folder / "impacts" / "joint-splade-idf"))
    stats = artifact.require(run_folder / "impacts" / "joint-splade-idf", "impact").stats
    assert made.joint and (made.joint.k1, made.joint.b) == (0.9, 0.4)
    assert made.joint.alpha == stats["alpha"] and stats["alpha"].keys() == {"splade", "bow"}
    assert load_encoder(str(run_folder / "indexes" / "joint-splade-idf")).joint == made.joint
    (tmp_path / "encoder.yaml").write_text(encoder_yaml(made, tmp_path))
    again = load_encoder(str(tmp_path))
    assert again.joint == made.joint and again.range == made.range
    assert load_encoder(str(run_folder / "indexes" / "splade-idf")).joint is None


def test_processes_get_the_path_of_the_words_instead_of_the_words(checkpoint: Path, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(50_000)]
    bm25 = Bm25(counted(tmp_path / "words", words, np.ones((1, len(words)))), alpha=1.0)
    config = EncoderConfig(name="test", checkpoint=str(checkpoint), query="bow")
    empty, digest = csr_matrix((1, 30522), dtype=np.float32), checkpoint_digest(checkpoint)
    vectors = stored_vectors(tmp_path / "vectors", empty, checkpoint=digest)
    impacts = open_impacts(vectors, config, bm25)
    pickled = pickle.dumps(impacts)
    assert b"word49999" not in pickled and len(pickled) < 1_000_000
    again = pickle.loads(pickled).terms
    assert len(again) == 30522 + len(words) and again[30522] == "bm25:word0" and again[-1] == "bm25:word49999"
    assert list(again) == list(impacts.terms) == [*Tokenizer(checkpoint).terms, *(WORD + word for word in words)]


def test_a_token_that_looks_like_a_word_does_not_collide(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "renamed"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = tokenizer["model"]["vocab"].pop("[unused7]")
    tokenizer["model"]["vocab"]["bm25:cancer"] = token
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    terms = Tokenizer(folder).terms
    assert terms[token] == f"[{token}]" and not any(term.startswith(WORD) for term in terms)
    row = csr_matrix(([3.0], ([0], [token])), shape=(1, len(terms)), dtype=np.float32)
    vectors = stored_vectors(tmp_path / "vectors", row, checkpoint=checkpoint_digest(folder))
    bm25 = Bm25(counted(tmp_path / "words", ["cancer"], [[1]]), alpha=1.0)
    config = EncoderConfig(name="test", checkpoint=str(folder), bits=8, query="bow")
    impacts = write_impacts(vectors, config, tmp_path / "impacts", bm25)
    assert vectors_of(impacts) == {"a": {f"[{token}]": 255, "bm25:cancer": WORD_LARGEST}}
    assert len(set(open_impacts(vectors, load_encoder(str(impacts)), bm25).terms)) == len(terms) + 1


@pytest.fixture
def vectors(checkpoint: Path, tmp_path: Path) -> Vectors:
    """Vectors of documents a, b and c, in two shards."""
    rows = csr_matrix(np.eye(3, len(Tokenizer(checkpoint)), dtype=np.float32))
    return stored_vectors(tmp_path / "vectors", rows[:2], rows[2:], checkpoint=checkpoint_digest(checkpoint))


@pytest.fixture
def config(checkpoint: Path) -> EncoderConfig:
    return EncoderConfig(name="test", checkpoint=str(checkpoint), query="bow")


def test_a_word_that_first_occurs_in_a_later_shard(vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    words = counted(tmp_path / "words", ["cancer", "colon"], [[1], [0]], [[2, 1]])
    impacts = write_impacts(vectors, config, tmp_path / "impacts", Bm25(words, Bm25Parameters(k1=0.0), 1.0))
    # The weights are IDFs: of 2 documents that have words, both have cancer, and one colon.
    cancer = round(WORD_LARGEST * np.log(1 + 0.5 / 2.5) / np.log(1 + 1.5 / 1.5))
    found = {id: words_of(vector) for id, vector in vectors_of(impacts).items()}
    assert found == {"a": {"cancer": cancer}, "b": {}, "c": {"cancer": cancer, "colon": WORD_LARGEST}}


@pytest.mark.parametrize(
    "ids, alpha", [(["ab", "d"], 1), (["ba", "c"], 1), (["ab"], None), (["ab", "c", "d"], None), (["a", "bc"], 1)]
)
def test_words_of_other_documents_are_refused(
    ids: list[str], alpha: float | None, vectors: Vectors, config: EncoderConfig, tmp_path: Path
) -> None:
    parts, spans = [np.eye(len(part), 2) for part in ids], {"cancer": {"cancer": 1}}
    words = counted(tmp_path / "words", ["cancer", "colon"], *parts, ids=[*map(list, ids)], spans=spans)
    with pytest.raises(CaiError, match=r"vectors and .*/words have different documents: make both from the same"):
        write_impacts(vectors, config, tmp_path / "impacts", Bm25(words, alpha=alpha))
    assert not (tmp_path / "impacts").exists()


def test_words_without_weight_are_refused(vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    words = counted(tmp_path / "words", ["cancer"], [[0], [0]], [[0]])
    with pytest.raises(CaiError, match=r"words: no document has any weight"):
        write_impacts(vectors, config, tmp_path / "impacts", Bm25(words, alpha=1.0))


def test_without_words_the_encoder_of_a_joint_index_makes_plain_impacts(
    vectors: Vectors, config: EncoderConfig, tmp_path: Path
) -> None:
    joint = config.replace(range=1.0, joint=Joint(alpha={"bow": 1.0}, range=1.0, k1=0.9, b=0.4))
    written = load_encoder(str(write_impacts(vectors, joint, tmp_path / "impacts")))
    assert written.joint is None
