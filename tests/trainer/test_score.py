"""A teacher's margins."""

from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.trainer.score import score
from cai_pyserini.trainer.settings import ScoreSettings
from tests.conftest import json_lines


def settings(data: Path, cross_encoder: Path, output: Path) -> ScoreSettings:
    values = {"data": data, "cross_encoder": str(cross_encoder), "output": output, "device": "cpu"}
    return build(ScoreSettings, values, "")


def test_margins_are_the_teachers(triples: Path, cross_encoder: Path, tmp_path: Path) -> None:
    output = score(settings(triples, cross_encoder, tmp_path / "scored.jsonl"))
    model = CrossEncoder(cross_encoder, "cpu")
    lines = json_lines(output)
    assert [line["query"] for line in lines] == [line["query"] for line in json_lines(triples)]
    for line in lines[:3]:
        texts = [line["positive"], *line["negatives"]]
        positive, *others = model.score([line["query"]] * 3, texts).tolist()
        assert line["margins"] == pytest.approx([positive - other for other in others], abs=2e-3)  # bfloat16 batches


def test_missing_data_is_named(cross_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"no file .*none\.jsonl"):
        score(settings(tmp_path / "none.jsonl", cross_encoder, tmp_path / "scored.jsonl"))


def test_a_line_without_negatives_is_named_before_anything_is_scored(cross_encoder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"query": "a", "positive": "b", "negatives": ["c"]}\n{"query": "a", "positive": "b"}\n')
    with pytest.raises(CaiError, match=r"data\.jsonl:2: 0 negatives, fewer than the 1 that an example needs"):
        score(settings(data, cross_encoder, tmp_path / "scored.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
