"""IDF: document frequencies counted by hand, and the weights computed from them."""

import dataclasses
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import IdfFormula, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf, compute, idf_weights
from cai_pyserini.models.tokenizer import Tokenizer
from tests.conftest import DATA, corpus_of, stage_command, with_other_terms

main = stage_command("idf")


def counted_in(collection: BeirFolder, tokenizer: Tokenizer) -> Idf:
    return Idf.count((document.contents for document in collection.documents()), tokenizer)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


def idf_of(folder: Path, tokenizer: Tokenizer, *texts: str) -> Idf:
    """The IDF of a collection of these texts."""
    return counted_in(corpus_of(folder, {f"d{i}": text for i, text in enumerate(texts)}), tokenizer)


# The number of the twelve documents that contain the word in title or text.
FREQUENCIES = {"the": 5, "of": 3, "blood": 3, "pressure": 2, "cancer": 3, "lowers": 3, "insulin": 1, "a": 2, "|": 1}


def test_document_frequencies_of_the_tiny_collection(tiny: Path, tokenizer: Tokenizer) -> None:
    idf = counted_in(BeirFolder(tiny, "tiny"), tokenizer)
    assert idf.documents == 12 and idf.frequencies.shape == (len(tokenizer),)
    expected = FREQUENCIES | {"[CLS]": 0, "[SEP]": 0, "[PAD]": 0}
    assert {term: int(idf.frequencies[tokenizer.terms.index(term)]) for term in expected} == expected
    only_text = counted_in(BeirFolder(tiny, "tiny", ["text"]), tokenizer)
    assert only_text.frequencies[tokenizer.terms.index("cancer")] == 2  # d1 has it in its title


@pytest.mark.parametrize(
    "formula, power, weights",
    [
        ("idf", 1.0, [math.log(4 / 1), math.log(4 / 2), 0.0, 1.0]),
        ("idf", 0.5, [math.sqrt(math.log(4)), math.sqrt(math.log(2)), 0.0, 1.0]),
        ("idf", 0.0, [1.0, 1.0, 1.0, 1.0]),
        ("bm25idf", 1.0, [math.log(10 / 3), math.log(2), math.log(10 / 9), 1.0]),
    ],
)
def test_weights_worked_example(
    tmp_path: Path, tokenizer: Tokenizer, formula: IdfFormula, power: float, weights: list[float]
) -> None:
    idf = idf_of(tmp_path, tokenizer, "fever and fever", "blood and water", "and water", "and")
    idf = dataclasses.replace(idf, formula=formula)
    tokens = [tokenizer.terms.index(term) for term in ("fever", "water", "and", "colon")]
    assert idf.frequencies[tokens].tolist() == [1, 2, 4, 0]
    np.testing.assert_allclose(idf.weights(power)[tokens], weights, rtol=1e-12)


def test_idf_counts_whole_texts_over_several_batches(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.encode(["fever"], 8)  # this truncation must not last
    idf = idf_of(tmp_path, tokenizer, "colon " * 600 + "fever", *["colon"] * 1024, "")
    assert idf.documents == 1026
    assert [idf.frequencies[tokenizer.terms.index(term)] for term in ("colon", "fever")] == [1025, 1]
    assert idf.frequencies.sum() == 1026


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_weights_for_an_encoder(
    tiny: Path, checkpoint: Path, tokenizer: Tokenizer, tmp_path: Path, power: float
) -> None:
    output = compute(BeirFolder(tiny, "tiny"), load_encoder(str(checkpoint)), tmp_path / "idf")
    counted = counted_in(BeirFolder(tiny, "tiny"), tokenizer)
    np.testing.assert_array_equal(Idf.load(output).frequencies, counted.frequencies)
    config = load_encoder("splade-tiny").replace(idf=str(output), idf_power=power)
    weights = idf_weights(config, tokenizer.vocabulary)
    assert weights is not None and weights[tokenizer.terms.index("insulin")] == pytest.approx(math.log(12) ** power)
    assert idf_weights(config.replace(idf=None), "any") is idf_weights(config.replace(idf_power=0.0), "any") is None


def test_the_idf_of_another_vocabulary_of_the_same_size_is_refused(
    tiny: Path, checkpoint: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    other = Tokenizer(with_other_terms(checkpoint, tmp_path / "other"))
    assert len(other) == len(tokenizer)
    output = compute(BeirFolder(tiny, "tiny"), load_encoder(str(tmp_path / "other")), tmp_path / "idf")
    config = load_encoder("splade-tiny").replace(idf=str(output))
    with pytest.raises(
        CaiError, match="idf has the IDF of another vocabulary than the encoder's: compute it with this"
    ):
        idf_weights(config, tokenizer.vocabulary)
    with pytest.raises(CaiError, match="another vocabulary"):  # as vectors that are means, weighted with it
        EncoderModel(config.replace(kind="dense"), "cpu").load("documents")


@pytest.mark.parametrize("language, warned", [("de", False), ("ja", True)])
def test_a_vocabulary_that_lacks_the_words_of_a_collection_is_warned_of(
    language: str, warned: bool, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compute(BeirFolder(DATA / language, language), load_encoder(str(checkpoint)), tmp_path / "idf")
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    (message,) = warnings or [""]
    assert message.startswith("60 of 60 documents have words or characters that the vocabulary of ") == warned
