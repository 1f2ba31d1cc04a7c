"""Queries as text, as bags of word pieces, as impacts and as vectors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import EncoderConfig, Joint
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.splade import Splade
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.queries import (
    Queries,
    TwoStep,
    WordQueries,
    as_terms,
    encode_queries,
    pruned,
    quantize_queries,
)
from tests.conftest import damaged

TOPICS = {"q2": "bladder infection, infection", "q1": "", "q3": "what lowers high blood pressure?"}


@pytest.fixture
def config(checkpoint: Path) -> EncoderConfig:
    return EncoderConfig(name="test", checkpoint=str(checkpoint))


@pytest.fixture
def splade(config: EncoderConfig) -> EncoderModel:
    return EncoderModel(config, "cpu", "float32")


@pytest.fixture
def unloadable(config: EncoderConfig, monkeypatch: pytest.MonkeyPatch) -> EncoderModel:
    """An encoder whose model must not be loaded."""

    def load(self: EncoderModel, part: str) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(EncoderModel, "load", load)
    return EncoderModel(config, "cpu", "float32")


def test_a_bag_of_word_pieces_needs_no_model(unloadable: EncoderModel) -> None:
    terms = unloadable.tokenizer.terms
    vectors = encode_queries(unloadable, list(TOPICS.values()), "bow")
    assert as_terms(vectors, terms)[:2] == [{"bladder": 1, "infection": 2, ",": 1}, {}]
    short = encode_queries(unloadable, list(TOPICS.values()), "bow", max_length=3)  # including [CLS] and [SEP]
    assert as_terms(short, terms) == [{"bladder": 1}, {}, {"what": 1}]


def test_the_encoder_says_how_queries_are_represented(config: EncoderConfig, checkpoint: Path) -> None:
    texts = list(TOPICS.values())
    bow = EncoderModel(config.replace(query="bow", max_query_length=9), "cpu")
    assert (encode_queries(bow, texts) != bow.tokenizer.bag_of_words(texts, 9)).nnz == 0
    expected = Splade(checkpoint, "cpu", "float32").encode(texts, 9)
    assert abs(encode_queries(bow, texts, "splade") - expected).max() < 1e-6
    short = encode_queries(bow, texts, "splade", max_length=4)
    assert abs(short - Splade(checkpoint, "cpu", "float32").encode(texts, 4)).max() < 1e-6


def test_without_an_encoder_queries_stay_text() -> None:
    queries = Queries(TOPICS)
    assert queries.for_search() == (TOPICS, 0.0)
    assert queries.identity.keys() == {"topics"}
    with pytest.raises(ValueError, match="searched as text have no vectors"):
        _ = queries.encoded


def test_sparse_queries_are_impacts_by_id(splade: EncoderModel, checkpoint: Path) -> None:
    encoded, seconds = Queries(TOPICS, splade).for_search(50)
    assert list(encoded) == ["q2", "q1", "q3"] and encoded["q1"] == {} and seconds > 0
    weights = Splade(checkpoint, "cpu", "float32").encode(["bladder infection, infection"], 256)[0]
    terms = splade.tokenizer.terms
    expected = {
        terms[i]: round(float(w) * 50) for i, w in zip(weights.indices, weights.data, strict=True) if round(w * 50)
    }
    assert encoded["q2"].keys() == expected.keys()
    assert all(abs(encoded["q2"][term] - impact) <= 1 for term, impact in expected.items())
    assert sum(encoded["q2"][term] != impact for term, impact in expected.items()) <= 1


def test_dense_queries_are_vectors_of_the_model_whatever_the_representation(config: EncoderConfig) -> None:
    encoder = EncoderModel(config.replace(kind="dense", query="bow"), "cpu")
    encoded, _ = Queries(TOPICS, encoder).for_search()
    assert list(encoded) == list(TOPICS)
    assert np.linalg.norm(list(encoded.values()), axis=1) == pytest.approx([1, 0, 1], abs=1e-6)
    for query in (None, "bow", "splade"):
        np.testing.assert_allclose(encoded["q3"], encode_queries(encoder, [TOPICS["q3"]], query)[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["splade", "dense"])
def test_stored_queries_are_those_that_are_encoded_now(
    kind: str, tiny: Path, config: EncoderConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = BeirFolder(tiny, "tiny")
    encoder = EncoderModel(config.replace(kind=kind), "cpu", "float32")
    topics = collection.topics("test")
    now, _ = Queries(topics, encoder).for_search(100)
    stored = Queries(topics, encoder, stored=encode(collection, encoder, tmp_path / "vectors", "queries"))
    monkeypatch.delattr(EncoderModel, "load")
    found, seconds = stored.for_search(100)
    assert seconds > 0
    assert list(found) == list(now)
    for id, query in found.items():
        assert query == now[id] if kind == "splade" else np.array_equal(query, now[id])


def test_stored_queries_in_another_order_are_not_taken_for_others(
    tiny: Path, config: EncoderConfig, broken: Path, tmp_path: Path
) -> None:
    """The fault: each query gets the vector of the query that was in its position."""
    encoder = EncoderModel(config, "cpu", "float32")
    stored = encode(BeirFolder(tiny, "tiny"), encoder, tmp_path / "vectors", "queries")
    lines = (broken / "queries.jsonl").read_text().splitlines(keepends=True)
    (broken / "queries.jsonl").write_text("".join(reversed(lines)))
    turned = BeirFolder(broken, "tiny").topics("test")
    with pytest.raises(CaiError, match="vectors has other queries, or has them in another order: encode them again"):
        Queries(turned, encoder, stored=stored).for_search(100)
    encode(BeirFolder(broken, "tiny"), encoder, stored, "queries")
    again, _ = Queries(turned, encoder, stored=stored).for_search(100)
    assert list(again) == list(turned) and again == Queries(turned, encoder).for_search(100)[0]


# BM25's weights have 3 / 3 = 1 impact per 1, SPLADE's 15 / 5 = 3; 2 * 10 * 3 / 1 = 60.
JOINT = Joint(alpha={"splade": 2.0, "bow": 0.001}, range=3.0, bits=2, k1=0.9, b=0.4)
JOINT_CONFIG = EncoderConfig(name="test", checkpoint="x", range=5.0, bits=4, query_scale=10, joint=JOINT)


def test_query_weights_of_words_by_hand() -> None:
    words = WordQueries(str.split, JOINT_CONFIG)
    assert words.impacts("a b a") == {"bm25:a": 120, "bm25:b": 60}
    assert words.impacts("a b a", "bow") == {"bm25:a": 1, "bm25:b": 1}  # a weight is at least 1
    with pytest.raises(ValueError, match="not the encoder of a joint index"):
        WordQueries(str.split, JOINT_CONFIG.replace(joint=None)).impacts("a")


def test_words_join_the_terms_of_a_query(unloadable: EncoderModel) -> None:
    words = WordQueries(lambda text: text.replace(",", "").split(), JOINT_CONFIG.replace(query="bow"))
    queries = Queries(TOPICS, unloadable, "bow", words=words)
    found, _ = queries.for_search(10)
    assert found["q1"] == {}
    assert found["q2"] == {"bladder": 10, ",": 10, "infection": 20, "bm25:bladder": 1, "bm25:infection": 1}


def test_a_pruned_query_keeps_words_and_the_rare_terms_of_large_weights() -> None:
    idf = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 2.0, "absent": 0.0}
    query = {"absent": 90, "a": 4, "b": 3, "bm25:x": 1, "c": 6, "d": 2, "bm25:y": 9}  # by IDF: 4, 6, 3, 4; in total 17
    words = {"bm25:x", "bm25:y"}
    for mass, kept in (
        (0.01, {"b"}),
        (6 / 17, {"b"}),
        (0.36, {"b", "a"}),
        (0.6, {"b", "a", "d"}),
        (1.0, {*"abcd"}),
    ):
        found = pruned(query, mass, idf.__getitem__)
        assert found == {term: weight for term, weight in query.items() if term in kept | words}
    assert pruned({"absent": 3}, 0.5, idf.__getitem__) == {}


def test_queries_of_two_steps_stay_whole(config: EncoderConfig) -> None:
    whole = Queries(TOPICS, EncoderModel(config, "cpu", "float32"))
    two_step = replace(whole, encoder=EncoderModel(config.replace(keep_query_mass=0.3, rescore=50), "cpu", "float32"))
    assert two_step.for_search(100)[0] == whole.for_search(100)[0]
    assert two_step.two_step == TwoStep(0.3, 50)
    assert replace(two_step, query="bow").two_step is None  # all terms of a bag matter
    binary = EncoderModel(config.replace(keep_query_mass=0.3, rescore=50, binary_queries=True), "cpu", "float32")
    assert replace(whole, encoder=binary).two_step is None
    assert whole.two_step is Queries(TOPICS).two_step is None


def test_an_identity_tells_queries_apart(splade: EncoderModel) -> None:
    other = JOINT_CONFIG.replace(joint=JOINT.replace(alpha={"splade": 3.0, "bow": 0.001}))
    joint = [JOINT_CONFIG, other, JOINT_CONFIG.replace(range=6.0), JOINT_CONFIG.replace(bits=5)]
    identities = [
        *(Queries(TOPICS, splade, words=WordQueries(str.split, config)).identity for config in joint),
        Queries(TOPICS).identity,
        Queries(TOPICS | {"q1": "other"}).identity,
        Queries(TOPICS, splade).identity,
        Queries(TOPICS, splade, "bow").identity,
        Queries(TOPICS, EncoderModel(splade.config.replace(keep_query_mass=0.3, rescore=9), "cpu", "float32")).identity,
        Queries(TOPICS, EncoderModel(splade.config.replace(keep_query_mass=0.4, rescore=9), "cpu", "float32")).identity,
    ]
    assert all(identities.count(identity) == 1 for identity in identities)
    assert Queries(TOPICS, splade, "splade").identity == Queries(TOPICS, splade).identity


@pytest.fixture
def weighted(config: EncoderConfig, tmp_path: Path) -> EncoderConfig:
    """An encoder with token weights for queries."""
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({"bladder": 1.25, "infection": 7.0, "colon": 2.0, "not a token": 9.0}))
    return config.replace(query_weights=str(path))


def test_tokens_with_weights_of_their_own_count_once(weighted: EncoderConfig) -> None:
    encoder = EncoderModel(weighted, "cpu")
    assert encoder.config.query == "bow" and encoder.config.idf_power == 0  # documents are not weighted twice
    assert EncoderModel(weighted.replace(idf_power=1.0), "cpu").config.idf_power == 1
    found = Queries(TOPICS, encoder).for_search(100)[0]
    assert found == {"q2": {"bladder": 125, "infection": 700}, "q1": {}, "q3": {}}
    two_step = Queries(TOPICS, EncoderModel(weighted.replace(keep_query_mass=0.3, rescore=9), "cpu"))
    assert two_step.for_search(100)[0] == found and two_step.two_step == TwoStep(0.3, 9)


def test_weights_of_tokens_are_part_of_what_queries_are(weighted: EncoderConfig) -> None:
    before = EncoderModel(weighted, "cpu")
    documents, queries = before.identity("documents"), before.identity("queries")
    assert before.query_only_identity.keys() == {"weights"}
    Path(weighted.query_weights or "").write_text('{"bladder": 2.0}')
    after = EncoderModel(weighted, "cpu")
    assert after.identity("documents") == documents and after.identity("queries") != queries


@pytest.mark.parametrize("weight", ["-0.5", "NaN", "Infinity"])
def test_weights_that_no_query_can_have_are_refused(weight: str, weighted: EncoderConfig) -> None:
    Path(weighted.query_weights or "").write_text(f'{{"bladder": 1.0, "colon": {weight}}}')
    with pytest.raises(CaiError, match=r"weights.json: some token weights are negative or not finite"):
        encode_queries(EncoderModel(weighted, "cpu"), ["bladder"])


@pytest.mark.parametrize("kind", ["expand_queries", "binary_queries"])
def test_queries_of_a_second_checkpoint(
    kind: str, config: EncoderConfig, checkpoint: Path, tiny: Path, tmp_path: Path
) -> None:
    """Stored or not, query vectors without expansion or binary follow from the model's vectors."""
    second = damaged(checkpoint, tmp_path / "second", "position_embeddings.weight", 1, 0.5)
    value = {"expand_queries": False, "binary_queries": True}[kind]
    encoder = EncoderModel(config.replace(query_checkpoint=str(second), **{kind: value}), "cpu", "float32")
    assert encoder.query_only_identity.keys() == {"checkpoint", kind}
    topics = BeirFolder(tiny, "tiny").topics("test")
    vectors, terms = Splade(second, "cpu", "float32").encode([*topics.values()], 256), encoder.tokenizer.terms
    expected = as_terms(quantize_queries(vectors, 100), terms)
    if kind == "expand_queries":
        own = [{terms[id] for id in ids} for ids in encoder.tokenizer.encode([*topics.values()], 256, special=False)]
        expected = [
            {term: weight for term, weight in query.items() if term in of_text}
            for query, of_text in zip(expected, own, strict=True)
        ]
    else:
        expected = [dict.fromkeys((terms[i] for i in row.indices), 100) for row in vectors]
    stored = encode(BeirFolder(tiny, "tiny"), encoder, tmp_path / "vectors", "queries")
    for queries in (Queries(topics, encoder), Queries(topics, encoder, stored=stored)):
        assert [*queries.for_search(100)[0].values()] == expected
