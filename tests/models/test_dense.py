"""Dense vectors: weighted means of token vectors, checked by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.dense import Dense, load_transformer, pooled
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.tokenizer import Tokenizer

TEXTS = ["Dietary phytate", "a much longer text about blood pressure, salt and hypertension in many patients", ""]


def by_hand(checkpoint: Path, text: str, weights: np.ndarray) -> np.ndarray:
    """The normalized weighted mean of the token vectors of one text, without padding."""
    ids = torch.tensor(Tokenizer(checkpoint).encode([text], 256))
    with torch.inference_mode():
        hidden = load_transformer(checkpoint)(input_ids=ids).last_hidden_state[0].numpy()
    mean = weights[ids[0].numpy()] @ hidden
    return mean / np.linalg.norm(mean)


def test_vectors_are_means_of_token_vectors(checkpoint: Path) -> None:
    hidden = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [9.0, 9.0]]])
    assert pooled(hidden, torch.tensor([[1.0, 2.0, 0.0]])).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    vectors = Dense(checkpoint, "cpu", "float32").encode(TEXTS, 256)
    ones = np.ones(len(Tokenizer(checkpoint)))
    for vector, text in zip(vectors, TEXTS[:2], strict=False):
        assert vector == pytest.approx(by_hand(checkpoint, text, ones), abs=1e-6)
    assert not vectors[2].any()  # a blank text


def test_idf_weights_the_mean_and_special_tokens_count_once(checkpoint: Path, tiny: Path) -> None:
    contents = [document.contents for document in BeirFolder(tiny, "tiny").documents()]
    weights = Idf.count(contents, Tokenizer(checkpoint)).weights()
    assert weights[Tokenizer(checkpoint).encode([""], 8)[0]].tolist() == [1.0, 1.0]  # [CLS], [SEP]
    vectors = Dense(checkpoint, "cpu", "float32", weights).encode(TEXTS, 256)
    plain = Dense(checkpoint, "cpu", "float32").encode(TEXTS, 256)
    for i in range(2):
        assert vectors[i] == pytest.approx(by_hand(checkpoint, TEXTS[i], weights), abs=1e-6)
        assert not np.allclose(vectors[i], plain[i], atol=1e-2)

    with pytest.raises(CaiError, match="30,522 tokens, the IDF 3"):
        Dense(checkpoint, weights=np.ones(3))


def test_vectors_are_projected_to_length_one(checkpoint: Path, tmp_path: Path) -> None:
    matrix = torch.randn(128, 128, generator=torch.Generator().manual_seed(1))
    save_file({"weight": matrix}, tmp_path / "p.safetensors")
    projected = Dense(checkpoint, "cpu", "float32", projection=tmp_path / "p.safetensors")
    plain = Dense(checkpoint, "cpu", "float32")
    by_hand = plain.encode(TEXTS[:2], 256) @ matrix.numpy()
    by_hand /= np.linalg.norm(by_hand, axis=1, keepdims=True)
    vectors = projected.encode(TEXTS, 256)
    np.testing.assert_allclose(vectors[:2], by_hand, atol=1e-6)
    assert not vectors[2].any()  # a blank text


@pytest.mark.parametrize(
    "tensors, message",
    [
        (None, "p.safetensors is not a safetensors file with `weight`"),
        ({"w": torch.eye(128)}, "p.safetensors is not a safetensors file with `weight` .*: write"),
        ({"weight": torch.eye(64)}, r"`weight` is float32 \(64, 64\), but vectors need float32 \(128, 128\): write"),
        ({"weight": torch.eye(128).half()}, r"`weight` is float16 \(128, 128\), but"),
    ],
)
def test_a_projection_that_is_wrong_is_named(
    tensors: dict[str, torch.Tensor] | None, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "p.safetensors"
    with pytest.raises(CaiError, match=r"no projection .*write the projection of this encoder there, or remove `proj"):
        Dense(checkpoint, "cpu", projection=path)
    save_file(tensors, path) if tensors else path.write_text("broken")
    with pytest.raises(CaiError, match=message):
        Dense(checkpoint, "cpu", projection=path)
