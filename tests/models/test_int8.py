"""Products of 8-bit integers: close to float32, in every architecture, and refused where they cannot run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.device import resolve_precision
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.int8 import (
    GELU_ZERO_POINT,
    VOCABULARY_BLOCK,
    ZERO_POINT,
    Int8Head,
    Int8Layer,
    Int8Linear,
    Int8ModernBertLayer,
    quantize,
)
from cai_pyserini.models.splade import Splade
from tests.models.test_architectures import ARCHITECTURES, SENTENCES, make_model
from tests.models.test_splade import TEXTS

# Layers replaced as a whole.
FUSED = ("Bert", "DistilBert", "Roberta", "XLMRoberta", "Camembert", "Electra", "ModernBert")
VNNI = pytest.mark.usefixtures("vnni")


def cosines(one: csr_matrix, other: csr_matrix) -> np.ndarray:
    a, b = one.toarray(), other.toarray()
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("zero", [ZERO_POINT, GELU_ZERO_POINT])
@pytest.mark.parametrize(
    "x",
    [
        3 * torch.randn(40, 64, generator=torch.Generator().manual_seed(0)),
        torch.linspace(0.3, 0.9, 300)[None],
        torch.linspace(-1e4, -9e3, 300)[None],
        torch.linspace(-1, 1, 300).bfloat16()[None],
        torch.tensor([[7.0, 7.0], [0.0, 0.0], [1e-30, -1e30]]),
    ],
)
def test_quantized_values_are_at_most_half_a_step_away(x: torch.Tensor, zero: int, by_token: bool) -> None:
    values, scale = quantize(x, by_token, zero)
    assert values.dtype == torch.uint8 and scale.shape == ((len(x), 1) if by_token else (1,))
    assert ((values.double() - zero) * scale - x.double()).abs().le(0.5001 * scale).all()


@VNNI
@pytest.mark.parametrize("gelu", [False, True])
def test_a_linear_layer(gelu: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 9, 64), torch.randn(100, 64), torch.randn(100)
    weight[3] = 0
    found, expected = Int8Linear(weight, bias, gelu=gelu)(x), torch.nn.functional.linear(x, weight, bias)
    if gelu:
        expected = torch.nn.functional.gelu(expected)
    assert found.shape == expected.shape and (found - expected).std() < 0.015 * expected.std()
    assert Int8Linear(weight, None)(x)[..., 3].abs().max() == 0


@VNNI
def test_the_head_ignores_padding() -> None:
    torch.manual_seed(0)
    size = VOCABULARY_BLOCK + 50
    hidden, weight, bias = torch.randn(5, 7, 16), torch.randn(size, 16), torch.randn(size)
    hidden[:, 4:] *= 1.5  # padding would win
    mask = (torch.arange(7) < 4).expand(5, 7)
    expected = torch.nn.functional.linear(hidden[:, :4], weight, bias).amax(1)
    found = Int8Head(weight, bias)(hidden, mask)  # negative ones are some negative numbers
    torch.testing.assert_close(found.relu(), expected.relu(), atol=0.3, rtol=0.01)


@VNNI
@pytest.mark.parametrize("batch_size", [None, 1])
def test_vectors_are_close_to_those_of_float32(checkpoint: Path, batch_size: int | None) -> None:
    texts = [*TEXTS, ""]
    found = Splade(checkpoint, "cpu", "int8").encode(texts, 256, batch_size)
    expected = Splade(checkpoint, "cpu", "float32").encode(texts, 256)
    assert cosines(found[:-1], expected[:-1]).min() > 0.99 and not found[-1].nnz
    for mine, theirs in zip(found[:-1].toarray(), expected[:-1].toarray(), strict=True):
        assert len(set(np.argsort(-mine)[:10]) & set(np.argsort(-theirs)[:10])) >= 8


@VNNI
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(tmp_path: Path, architecture: str) -> None:
    fused = 2 if architecture in FUSED else 0
    more = {"attention_bias": True, "mlp_bias": True} if architecture == "ModernBert" else {}
    checkpoint = make_model(tmp_path, architecture, **more)
    splade = Splade(checkpoint, "cpu", "int8")
    modules = list(splade.transformer._model.modules())
    assert sum(isinstance(module, (Int8Layer, Int8ModernBertLayer)) for module in modules) == fused
    assert sum(isinstance(module, Int8Linear) for module in modules) >= 4 * 2
    assert sum(type(module) is torch.nn.Linear for module in modules) == 1  # the decoder, which is bypassed
    expected = Splade(checkpoint, "cpu", "float32").encode(SENTENCES, 24)
    assert cosines(splade.encode(SENTENCES, 24), expected).min() > 0.998


def with_outlier(checkpoint: Path, folder: Path, factor: float) -> Path:
    """A checkpoint with a large activation in the last layer, compensated by smaller outgoing weights."""
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    (layer,) = [
        name[: -len("intermediate.dense.bias")] for name in tensors if name.endswith("1.intermediate.dense.bias")
    ]
    tensors[f"{layer}intermediate.dense.weight"][0] *= factor
    tensors[f"{layer}intermediate.dense.bias"][0] = factor
    tensors[f"{layer}output.dense.weight"][:, 0] /= factor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@VNNI
def test_a_model_with_outliers_is_refused_when_it_is_loaded(checkpoint: Path, tmp_path: Path) -> None:
    """Float32 is not affected by outliers, and no list of architectures could tell."""
    folder = with_outlier(checkpoint, tmp_path / "outlier", 3000)
    encoder = EncoderModel(EncoderConfig(name="outlier", checkpoint=str(folder)), "cpu", "int8")
    assert encoder.load("queries").encode(TEXTS, 256).nnz
    with pytest.raises(CaiError, match=r"outlier: precision int8 loses too much quality \(.*\): choose bfloat16 or"):
        encoder.load("documents")
    EncoderModel(EncoderConfig(name="usual", checkpoint=str(checkpoint)), "cpu", "int8").load("documents")


@VNNI
def test_another_activation_is_kept(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "Bert")
    config = (checkpoint / "config.json").read_text().replace('"hidden_act": "gelu"', '"hidden_act": "relu"')
    (checkpoint / "config.json").write_text(config)
    expected = Splade(checkpoint, "cpu", "float32").encode(SENTENCES, 24)
    assert cosines(Splade(checkpoint, "cpu", "int8").encode(SENTENCES, 24), expected).min() > 0.98


@VNNI
def test_dense_vectors(checkpoint: Path) -> None:
    expected = Dense(checkpoint, "cpu", "float32").encode(TEXTS, 256)
    assert (Dense(checkpoint, "cpu", "int8").encode(TEXTS, 256) * expected).sum(1).min() > 0.995


@pytest.mark.parametrize("device, capabilities", [("cpu", {"avx512_bf16": True}), ("cuda", {"avx512_vnni": True})])
def test_without_the_instructions_it_is_refused(
    device: str, capabilities: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    with pytest.raises(CaiError, match="precision int8 needs a CPU with VNNI instructions"):
        resolve_precision("int8", torch.device(device))
