"""Cross-encoders: scores of pairs in batches are those of transformers one by one."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.cross_encoder import CrossEncoder
from tests.conftest import damaged

PAIRS = [
    ("bladder infection", "Recurrent infections of the bladder are treated with nitrofurantoin."),
    ("a", "Salt"),
    ("what lowers high blood pressure?", "Salt restriction lowers blood pressure. " * 90),  # cut to 512 tokens
]


def test_scores_are_those_of_transformers(cross_encoder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(str(cross_encoder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(cross_encoder))
    expected = []
    for query, text in PAIRS:
        inputs = tokenizer(query, text, truncation=True, max_length=512, return_tensors="pt")
        assert inputs["token_type_ids"].sum() > 0
        with torch.inference_mode():
            expected.append(model(**inputs).logits.item())
    counted: list[int] = []
    found = CrossEncoder(cross_encoder, "cpu", "float32").score(*zip(*PAIRS, strict=True), counted.append)
    assert found.tolist() == pytest.approx(expected, abs=1e-5) and len(set(expected)) == 3
    assert sum(counted) == 3


def test_a_score_that_is_not_finite_is_refused(cross_encoder: Path, tmp_path: Path) -> None:
    model = CrossEncoder(damaged(cross_encoder, tmp_path / "x", "position_embeddings.weight", 200, math.nan), "cpu")
    queries, documents = zip(*PAIRS, strict=True)
    assert len(model.score(queries[:2], documents[:2])) == 2
    with pytest.raises(CaiError, match=r"the score of 'what lowers high blood pressure.' and 'd3' has NaN or infinity"):
        model.score(queries, documents, names=["d1", "d2", "d3"])


def test_another_checkpoint_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CaiError, match="has no sequence-classification head: its weights lack"):
        CrossEncoder(checkpoint)


def test_a_classifier_of_several_labels_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(str(checkpoint), num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(CaiError, match="has 3 labels; a cross-encoder has one, the score"):
        CrossEncoder(tmp_path)
