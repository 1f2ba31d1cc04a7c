"""Our encoder classes for Pyserini."""

from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.splade import Splade
from tests.conftest import json_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def encoders(java: None):
    """The module of the classes, which imports Pyserini."""
    from cai_pyserini.plugin import encoders

    return encoders


def test_query_encoder(encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    splade = encoders.CaiQueryEncoder("splade-tiny")
    encoded = splade.encode("colon cancer")
    assert all(isinstance(weight, int) and weight > 0 for weight in encoded.values())
    assert {"colon", "cancer"} < set(encoded)
    assert splade.encode("cancer of the colon", max_length=3) == splade.encode("cancer")
    monkeypatch.delattr(EncoderModel, "load")  # a bag of word pieces needs no model
    bow = encoders.CaiQueryEncoder("splade-tiny", query="bow")
    assert bow.encode("Cancer, cancer of the colon") == {"cancer": 200, ",": 100, "of": 100, "the": 100, "colon": 100}


def test_dense_encoders(encoders, checkpoint: Path) -> None:
    config = load_encoder(str(checkpoint)).replace(kind="dense")
    query = encoders.CaiQueryEncoder(config, device="cpu").encode("colon cancer")
    documents = encoders.CaiDocumentEncoder(config, device="cpu").encode(["cancer", "infection"], ["colon", "bladder"])
    assert query.shape == (128,) and documents.shape == (2, 128)
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-5)
    assert documents[0] @ query == pytest.approx(1, abs=1e-2) and documents[1] @ query < 0.95


def test_document_encoder_gives_the_impacts_of_the_collection(encoders, run_folder: Path, tiny: Path) -> None:
    records = json_lines(tiny / "corpus.jsonl")
    impacts = {r["id"]: r["vector"] for r in json_lines(run_folder / "impacts" / "splade-idf" / "00000.jsonl")}
    encoder = encoders.CaiDocumentEncoder(str(run_folder / "impacts" / "splade-idf"))
    encoded = encoder.encode([r["text"] for r in records], titles=[r["title"] for r in records], max_length=256)
    assert encoded == [impacts[r["_id"]] for r in records]
    with pytest.raises(CaiError, match="add_sep"):
        encoder.encode(["text"], add_sep=True)
    assert encoder.encode(["text"], fp16=False) == encoder.encode(["text"])
    with pytest.raises(CaiError, match="expands does not apply"):  # from Pyserini's `--fields text expand`
        encoder.encode(["text"], expands=["more text"], fp16=False)


def test_the_query_encoder_of_a_joint_index_adds_the_words(encoders, run_folder: Path) -> None:
    index = str(run_folder / "indexes" / "joint-splade-idf")
    joint, plain = (encoders.CaiQueryEncoder(name, query="bow") for name in (index, "splade-tiny"))
    words = {term: n for term, n in joint.encode("Cancers of cancer").items() if term.startswith("bm25:")}
    assert joint.encode("Cancers of cancer") == plain.encode("Cancers of cancer") | words
    assert words.keys() == {"bm25:cancer"}
    assert words["bm25:cancer"] == pytest.approx(2 * joint.encode("cancer")["bm25:cancer"], abs=1)
    with pytest.raises(CaiError, match=r"is the encoder of a joint index: .*; build the index again"):
        encoders.CaiDocumentEncoder(index)
    splade = encoders.CaiQueryEncoder(index).encode("cancer")
    assert splade.keys() > {"cancer", "bm25:cancer"} and splade["bm25:cancer"] != words["bm25:cancer"] / 2


def test_a_document_encoder_without_a_range_uses_a_typical_one(encoders, checkpoint: Path) -> None:
    (encoded,) = encoders.CaiDocumentEncoder(str(checkpoint), device="cpu", precision="float32").encode([" cancer"])
    weights = Splade(checkpoint, "cpu", "float32").encode(["cancer"], 256)
    assert max(encoded.values()) == pytest.approx(float(weights.max()) * 1023 / 5, abs=1)
