"""SPLADE vectors compared with the definition, max over tokens of log(1 + relu(logit)), of transformers' own models."""

import math
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.device import Precision
from cai_pyserini.models.splade import Splade
from tests.conftest import damaged

TEXTS = [
    "Recurrent infections of the bladder are treated with nitrofurantoin.",
    "fever",
    "Körpergröße und β-Blocker: naïve Unicode, 血圧 und ½ mg.",
    "Dietary phytate, found in the bran of cereals, suppresses the growth of colon tumours in rats. " * 6,
    "what lowers high blood pressure?",
    "[MASK] | \" \\ '",
]


@cache
def stock(checkpoint: Path) -> tuple[Any, Any]:
    """The tokenizer and the model of transformers."""
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return AutoTokenizer.from_pretrained(checkpoint), model


def plain(checkpoint: Path, texts: list[str], max_length: int = 256) -> np.ndarray:
    """The definition, one text at a time, so that there is no padding."""
    tokenizer, model = stock(checkpoint)
    rows = []
    for text in texts:
        tokens = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.inference_mode():
            rows.append(torch.log1p(torch.relu(model(**tokens).logits[0])).amax(0).numpy())
    return np.stack(rows)


@pytest.fixture(scope="module")
def splade(checkpoint: Path) -> Splade:
    return Splade(checkpoint, "cpu", "float32")


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> np.ndarray:
    return plain(checkpoint, TEXTS)


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_weights_are_the_definition_in_any_batch(splade: Splade, expected: np.ndarray, batch_size: int | None) -> None:
    weights = splade.encode(TEXTS, 256, batch_size)
    assert weights.dtype == np.float32
    assert (weights.data > 0).all()
    np.testing.assert_allclose(weights.toarray(), expected, atol=1e-4)


def test_only_the_first_tokens_count(splade: Splade, checkpoint: Path, expected: np.ndarray) -> None:
    weights = splade.encode(TEXTS, 8).toarray()
    np.testing.assert_allclose(weights, plain(checkpoint, TEXTS, 8), atol=1e-4)
    assert not np.allclose(weights, expected, atol=1e-1)


def test_blank_texts_are_empty_rows_among_the_others(splade: Splade, expected: np.ndarray) -> None:
    weights = splade.encode(["", TEXTS[0], " \n\t", "\u3000", TEXTS[1]], 256).toarray()
    assert not weights[[0, 2, 3]].any()
    np.testing.assert_allclose(weights[[1, 4]], expected[:2], atol=1e-4)
    for texts in ([], [""], ["", " "]):
        nothing = splade.encode(texts, 256)
        assert nothing.shape == (len(texts), len(splade.tokenizer)) and not nothing.nnz


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("encoder", [Splade, Dense])
def test_a_vector_that_is_not_finite_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    encoder: type[Splade | Dense],
    precision: Precision,
) -> None:
    if precision == "int8":
        request.getfixturevalue("vnni")
    for value in (math.nan, math.inf):
        # the 41st token of every text has no hidden state
        broken = damaged(checkpoint, tmp_path / str(value), "position_embeddings.weight", 40, value)
        model = encoder(broken, "cpu", precision)
        assert np.isfinite(model.encode(["fever"], 256).sum())
        with pytest.raises(CaiError, match=r"the vector of 'Dietary phytate, found in .*' has NaN or infinity"):
            model.encode([TEXTS[3]], 256)


def test_a_logit_that_is_not_finite_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    below = Splade(damaged(checkpoint, tmp_path / "below", "predictions.bias", 2000, -math.inf), "cpu", "float32")
    assert 2000 not in below.encode(["fever"], 256).indices  # some checkpoints exclude tokens so
    above = Splade(damaged(checkpoint, tmp_path / "above", "predictions.bias", 2000, math.inf), "cpu", "float32")
    with pytest.raises(CaiError, match="the vector of 'fever' has NaN or infinity: the checkpoint is damaged"):
        above.encode(["", "fever"], 256)


@pytest.mark.parametrize(
    "name, message",
    [("model.safetensors", r"has no \*\.safetensors"), ("config.json", "no config.json"), ("tokenizer.json", "no tok")],
)
def test_a_file_that_was_cut_or_is_missing_is_named(checkpoint: Path, tmp_path: Path, name: str, message: str) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / "copied"))
    (copied / "vocab.txt").unlink(missing_ok=True)
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CaiError, match=rf"^{re.escape(str(copied))}"):
        Splade(copied, "cpu")
    (copied / name).unlink()
    with pytest.raises(CaiError, match=message):
        Splade(copied, "cpu")
