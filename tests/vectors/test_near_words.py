"""The expand stage equals the plain formula, and searches find the words that it adds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.cli.run import main as run_beir
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.spans import SPANS_PER_TEXT
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.indexes.words import count_words
from cai_pyserini.models import device
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.vectors import near_words as stage
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.cache import VARIABLE
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.near_words import (
    RIDGE,
    Regression,
    WordAssociations,
    find_near_words,
    learn,
    read_regression,
    regression,
)
from cai_pyserini.vectors.neighbours import find_neighbours
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import corpus_of, json_lines, stage_command, stored_vectors
from tests.vectors.support import vectors_of, words_of
from tests.vectors.test_encode import cache as cache
from tests.vectors.test_encode import encoded as encoded

main = stage_command("near-words")

slow = pytest.mark.slow


def plain(words: np.ndarray, documents: np.ndarray, frequencies: np.ndarray, count: int, step: int = 1) -> np.ndarray:
    """The formula, word by word and document by document; `count` words for each of every step-th document."""
    products = words @ documents.T
    deviation = np.sqrt((products.std(1) ** 2).mean())
    z = np.array([(of_word - of_word.mean()) / deviation for of_word in products]).T
    worth = z * frequencies**0.25
    sample = np.sort(worth[::step].ravel())
    return np.where(worth > max(sample[-min(count * len(worth[::step]), len(sample))], 0), z, 0)


def plain_rates(counts: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """The rates of neighbours' words, the 50 largest of each document, document by document."""
    cosines = documents @ documents.T
    np.fill_diagonal(cosines, 0)
    shares = np.maximum(cosines, 0) ** 4
    rates = shares / shares.sum(1, keepdims=True) @ (counts / counts.sum(1, keepdims=True))
    for row in rates:
        row[np.argsort(-row, kind="stable")[50:]] = 0
    return rates


def test_weights_equal_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threshold comes from a sample, first from all documents."""
    monkeypatch.setattr(stage, "ASSOCIATED_WORDS", 5)
    monkeypatch.setattr(stage, "BATCH", 4)
    draw = np.random.default_rng(0)
    words, documents = draw.normal(size=(12, 8)).astype(np.float32), draw.normal(size=(26, 8)).astype(np.float32)
    frequencies = draw.integers(2, 26, 12)
    near = WordAssociations.fit(words, frequencies, [documents[:13], documents[13:]], 26)
    expected = plain(words, documents, frequencies, 5)
    np.testing.assert_allclose(near.words(documents).toarray(), expected, atol=1e-4)
    assert np.count_nonzero(expected) == 26 * 5 - 1 and near.words(documents[:0]).shape == (0, 12)
    monkeypatch.setattr(stage, "SAMPLE", 9)
    sampled = WordAssociations.fit(words, frequencies, [documents[:13], documents[13:]], 26)
    expected_of_sample = plain(words, documents, frequencies, 5, step=3)
    assert (expected_of_sample != expected).any()
    np.testing.assert_allclose(sampled.words(documents).toarray(), expected_of_sample, atol=1e-4)


def test_associations_of_an_encoder_whose_vectors_lie_in_a_narrow_cone_count_a_third() -> None:
    draw = np.random.default_rng(0)
    words, documents = draw.normal(size=(12, 8)).astype(np.float32), draw.normal(size=(300, 8)).astype(np.float32)
    shifted, frequencies = documents + 5, np.ones(12, int)
    wide = WordAssociations.fit(words, frequencies, [documents], 300).words(documents).toarray()
    narrow = WordAssociations.fit(words, frequencies, [shifted], 300).words(shifted).toarray()
    np.testing.assert_allclose(narrow, wide / 3, atol=1e-5)


def test_learned_vectors_equal_the_formula() -> None:
    draw = np.random.default_rng(0)
    x = (draw.random((9, 5)) < [0.4, 0.4, 0.4, 0.4, 0]).astype(np.float32)  # the last word has no context
    targets, alone = draw.normal(size=(9, 3)).astype(np.float32), draw.normal(size=(5, 3)).astype(np.float32)
    weights = draw.random(9).astype(np.float32)
    weighted = x.T * weights
    change = np.linalg.solve(weighted @ x + RIDGE * np.eye(5), weighted @ (targets - x @ alone))
    learned = learn(Regression(csr_matrix(x), targets, weights, alone))
    np.testing.assert_allclose(learned, alone + change, atol=2e-3)
    np.testing.assert_array_equal(learned[4], alone[4])


@slow
def test_the_document_prompt_does_not_shorten_words_and_contexts() -> None:
    prompt = "represent this passage of a medical encyclopedia for the retrieval of pages that answer a question : "
    texts, forms = ["the acute fever of a child", "a stone in the kidney"], ["fever", "kidney"]
    encoder = EncoderModel(load_encoder("minilm").replace(document_prompt=prompt), "cpu", "float32")
    documents = csr_matrix((0, 2)), np.zeros((0, 384), np.float32)
    found = regression(texts, csr_matrix(np.eye(2)), *documents, forms, encoder)
    model = encoder.load("documents")
    np.testing.assert_allclose(found.alone, model.encode(forms, 256), atol=1e-6)
    np.testing.assert_allclose(found.targets, model.encode(texts, 256), atol=1e-6)
    assert found.alone[0] @ found.alone[1] < 0.98
    no_room = EncoderModel(encoder.config.replace(max_document_length=24), "cpu", "float32")
    assert regression(texts, csr_matrix(np.eye(2)), *documents, forms, no_room).alone.shape == (2, 384)
    narrow = regression(texts, csr_matrix(np.eye(2)), csr_matrix((3, 2)), np.eye(3, 384) + 1, forms, no_room)
    for vectors in (narrow.alone, narrow.targets[:2], narrow.targets[2:]):  # centred, so that sums add up
        np.testing.assert_allclose(vectors.mean(0), 0, atol=1e-6)


@pytest.fixture(scope="module")
def inputs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the words of the tiny collection, and its dense vectors."""
    folder, collection = tmp_path_factory.mktemp("inputs"), BeirFolder(tiny, "tiny")
    count_words(collection, folder / "words")
    encode(collection, dense(), folder / "dense")
    return folder


def dense() -> EncoderModel:
    return EncoderModel(load_encoder("minilm"), "cpu")


def make(inputs: Path, output: Path, vectors: str = "dense", encoder: EncoderModel | None = None) -> Path:
    words, given = Vectors(inputs / "words", "words"), Vectors(inputs / vectors)
    near = find_neighbours(given, output.with_name(f"near-{Path(vectors).name}"))
    return find_near_words(words, given, Vectors(near, "near"), encoder or dense(), output)


@slow
def test_command(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, near = tmp_path / "expansion", find_neighbours(Vectors(inputs / "dense"), tmp_path / "near")
    paths = ["--words", str(inputs / "words"), "--vectors", str(inputs / "dense"), "--output", str(output)]
    main([*paths, "--near", str(near), "--encoder", "minilm", "--device", "cpu"])
    lexicon = json_lines(inputs / "words" / "lexicon.jsonl")
    assert f"weights and rates per document, with a lexicon of {len(lexicon)} words\n" in capsys.readouterr().out
    (shard,) = Vectors(output, "expand")
    (vectors,) = Vectors(inputs / "dense")
    names = (inputs / "words" / "words.txt").read_text().splitlines()
    expected = np.zeros((12, len(names)))
    (counted,) = Vectors(inputs / "words", "words")
    columns = np.array([names.index(line["word"]) for line in lexicon])
    given = Vectors(inputs / "words", "words"), Vectors(inputs / "dense")
    encoded = learn(read_regression(*given, {line["word"]: line["form"] for line in lexicon}, columns, dense()))
    frequencies = counted.vectors.getnnz(axis=0)[columns]
    expected[:, columns] = plain(encoded, vectors.vectors, frequencies, len(columns))
    rates = plain_rates(counted.vectors.toarray(), vectors.vectors)
    assert len(rates) == 12 and (rates.sum(1) > 0.9).all() and (rates.sum(1) < 1).any()  # some have more words
    np.testing.assert_allclose(shard.vectors.toarray(), np.hstack([expected, rates]), atol=0.02)
    np.testing.assert_allclose(shard.vectors[:, len(names) :].toarray(), rates, atol=1e-6)
    assert shard.ids == vectors.ids and shard.vectors.has_sorted_indices


def expanded(folder: Path, collection: Collection) -> Path:
    """The expansion of a collection, beside its `words` and `dense` vectors."""
    encode(collection, dense(), folder / "dense")
    count_words(collection, folder / "words")
    return make(folder, folder / "near")


@slow
def test_documents_are_contexts_evenly_spaced(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Vectors(inputs / "words", "words"), Vectors(inputs / "dense")
    names = (inputs / "words" / "words.txt").read_text().splitlines()
    ((counted,), (encoded,)) = given
    column = int(np.argmax(counted.vectors.getnnz(axis=0)))
    for limit, rows in ((20_000, slice(None)), (5, slice(None, None, 3))):
        monkeypatch.setattr(stage, "DOCUMENTS", limit)
        found = read_regression(*given, {names[column]: names[column]}, np.array([column]), dense())
        contains = (counted.vectors[rows, [column]].toarray() > 0).astype(float)
        count = len(contains)
        np.testing.assert_array_equal(found.contexts[-count:].toarray(), contains)
        np.testing.assert_array_equal(found.targets[-count:], encoded.vectors[rows])
        np.testing.assert_array_equal(found.weights[-count - 1 :], [1, *[stage.DOCUMENT_WEIGHT] * count])


@slow
def test_short_documents_have_no_contexts(tmp_path: Path) -> None:
    (shard,) = Vectors(expanded(tmp_path, corpus_of(tmp_path, {"1": "red fox", "2": "red sea"})), "expand")
    words = tmp_path / "words"
    assert json_lines(words / "contexts.jsonl") == []
    assert json_lines(words / "lexicon.jsonl") == [{"word": "red", "form": "red"}]
    given = Vectors(words, "words"), Vectors(tmp_path / "dense")
    assert learn(read_regression(*given, {"red": "red"}, np.array([0]), dense())).shape == (1, 384)
    rates = shard.vectors[:, 3:].toarray()  # of red, fox and sea
    np.testing.assert_allclose(rates, [[0.5, 0, 0.5], [0.5, 0.5, 0]])


@slow
def test_the_encoder_must_be_that_of_the_documents(inputs: Path, tmp_path: Path) -> None:
    """Otherwise the result of another encoder would count as up to date."""
    make(inputs, output := tmp_path / "near")
    other = EncoderModel(dense().config.replace(pooling="cls"), "cpu")
    with pytest.raises(CaiError, match=r"encodes documents \(pooling cls, was unset\)"):
        make(inputs, output, "dense", other)


@slow
def test_neighbours_by_other_vectors_are_refused(inputs: Path, tmp_path: Path) -> None:
    words, vectors = Vectors(inputs / "words", "words"), Vectors(inputs / "dense")
    other = stored_vectors(tmp_path / "other", np.ones((12, 384), np.float32), kind="dense")
    near = Vectors(find_neighbours(other, tmp_path / "near"), "near")
    with pytest.raises(CaiError, match=r"near was not made from .*dense: run the near stage with these vectors"):
        find_near_words(words, vectors, near, dense(), tmp_path / "expansion")


@slow
@pytest.mark.parametrize("ids", [["a", "b"], [f"x{number}" for number in range(12)]])
def test_vectors_of_other_documents_are_refused(inputs: Path, tmp_path: Path, ids: list[str]) -> None:
    rows = np.ones((len(ids), 384), np.float32)
    stored_vectors(tmp_path / "dense", rows, ids=[ids], kind="dense", checkpoint=dense().digest)
    with pytest.raises(CaiError, match=r"words and .*/dense have different documents"):
        make(inputs, tmp_path / "near", str(tmp_path / "dense"))


@slow
def test_only_new_contexts_and_words_are_encoded(
    broken: Path, tmp_path: Path, cache: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document changes; equal contexts of a document are one text."""
    monkeypatch.setattr(device, "_cpu_has", lambda *instructions: False)  # float32, where rounding is the same anywhere

    def texts_of(folder: Path) -> set[str]:
        contexts, forms = (json_lines(folder / "words" / f"{name}.jsonl") for name in ("contexts", "lexicon"))
        return {f"context {line['text']}" for line in contexts} | {f"word {line['form']}" for line in forms}

    def texts_encoded(folder: Path) -> int:
        """The number of contexts and words that expanding a collection encodes, once its documents are encoded."""
        collection = BeirFolder(broken, "broken")
        encode(collection, dense(), folder / "dense")
        encoded.clear()
        expanded(folder, collection)
        return sum(encoded)

    assert texts_encoded(tmp_path / "first") == len(texts_of(tmp_path / "first"))
    documents = json_lines(broken / "corpus.jsonl")
    documents[3]["text"] += " Cranberries are no cure, whatever their sellers say."
    (broken / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    count = texts_encoded(tmp_path / "second")
    new = texts_of(tmp_path / "second") - texts_of(tmp_path / "first")
    assert 0 < count == len(new) <= SPANS_PER_TEXT + 1
    monkeypatch.setenv(VARIABLE, "")
    make(tmp_path / "second", tmp_path / "without")
    (one,), (other,) = (Vectors(folder, "expand") for folder in (tmp_path / "second" / "near", tmp_path / "without"))
    assert abs(one.vectors - other.vectors).max() < 1e-5


@slow
def test_empty_documents_and_single_documents_are_not_expanded(tmp_path: Path) -> None:
    (shard,) = Vectors(expanded(tmp_path, corpus_of(tmp_path, {"1": "red fox", "2": ""})), "expand")
    assert shard.ids == ["1", "2"] and shard.vectors.nnz == 0


@slow
def test_expanded_bm25_finds_documents_without_the_query_word(broken: Path, tmp_path: Path) -> None:
    texts = "Chest pain is a sign of a heart attack", "Patients take aspirin after a heart attack"
    with (broken / "corpus.jsonl").open("a") as corpus:
        corpus.writelines(json.dumps({"_id": text[0], "text": text}) + "\n" for text in texts)
    near, folder = expanded(tmp_path, BeirFolder(broken, "broken")), tmp_path / "words"
    (own,), (both,) = Bm25(folder).shards(), Bm25(folder, near_words=near).shards()
    ((added,), (counted,)) = Vectors(near, "expand"), Vectors(folder, "words")
    names, counts = Bm25(folder).words, counted.vectors.toarray()
    near_words, rates = added.vectors[:, : len(names)].toarray(), added.vectors[:, len(names) :].toarray()
    lengths = counts.sum(1, keepdims=True)  # short enough for Lucene to store exactly
    counts += 0.6 * lengths * rates
    saturation = 0.9 * (1 - 0.4 + 0.4 * lengths / lengths[lengths > 0].mean())
    expected = Bm25(folder).weighting.idf * counts / (counts + saturation) + 0.6 * near_words
    np.testing.assert_allclose(both.vectors.toarray(), expected, rtol=1e-5)
    column = names.index("heart")
    without = np.where(own.vectors[:, [column]].toarray().ravel() > 0, 0, near_words[:, column])
    assert own.ids[without.argmax()] == "d6"  # on infarction
    assert both.vectors.nnz > own.vectors.nnz + np.count_nonzero(near_words)
    other = stored_vectors(tmp_path / "other", own.vectors, stage="words", kind="words").folder
    with pytest.raises(CaiError, match=r"near was not made from .*/other: make them again from these words"):
        list(Bm25(other, near_words=near).shards())


@slow
def test_smooth_joint_indexes_have_both_expansions_and_bm25_smooth_one(tiny: Path, tmp_path: Path) -> None:
    output, names = tmp_path / "run", ["joint-doc", "joint-doc-near", "bm25-near", "bm25-near-words"]
    run_beir([str(tiny), "--dense", "minilm", "--output", str(output), "--systems", *names])
    plain, near = (Bm25(output / "words", near_words=folder) for folder in (None, output / "near-words"))
    documents = replace(near, documents_only=True)
    for name, bm25 in zip(names, (plain, near, documents, near), strict=True):
        index = parse_system(name).index_name
        found = {id: words_of(vector) for id, vector in vectors_of(output / "impacts" / index).items()}
        largest = max(float(shard.vectors.max()) for shard in bm25.shards())
        for shard in bm25.shards():
            for id, row in zip(shard.ids, np.rint(shard.vectors.toarray() / largest * 127), strict=True):
                assert found[id] == {bm25.words[column]: row[column] for column in np.flatnonzero(row)}
        joint = load_encoder(str(output / "indexes" / index)).joint
        assert joint and (joint.expanded, joint.documents_only) == (bm25 is not plain, bm25 is documents)
    (own,), (both,) = plain.shards(), documents.shards()
    assert both.vectors.nnz > own.vectors.nnz and ((both.vectors - own.vectors).data > 0).all()
    for name in names[2:]:
        encoded = vectors_of(output / "impacts" / name)
        assert all(term.startswith("bm25:") for vector in encoded.values() for term in vector)
