"""Settings of the steps: limits, files, and what is recorded."""

from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Settings, build
from cai_pyserini.trainer.settings import (
    GenerateSettings,
    PretrainSettings,
    SpladeSettings,
    load_step,
    recorded,
    write_encoder,
)

PAIRS = {"data": "x.jsonl", "base": "x", "output": "x"}


@pytest.mark.parametrize(
    "kind, values, message",
    [
        (SpladeSettings, {"batch_size": 0}, "batch_size: 0 should be greater than or equal to 1"),
        (SpladeSettings, {"learning_rate": 0}, "learning_rate: 0 should be greater than 0"),
        (SpladeSettings, {"lambda_q": -1.0}, "lambda_q: -1.0 should be greater"),
        (SpladeSettings, {"loss": "mse"}, "loss: 'mse' should be 'margin-mse' or 'in-batch'"),
        (SpladeSettings, {"lambda": 1}, "unknown key lambda; known keys: accumulate, base, batch_size"),
        (SpladeSettings, {"negatives": 0}, "loss margin-mse needs negatives"),
        (PretrainSettings, {"corpus": ["x"], "mask": 1.0}, "mask: 1.0 should be less than 1"),
        (GenerateSettings, {"top_p": 1.5}, "top_p: 1.5 should be less than or equal to 1"),
    ],
)
def test_limits(kind: type[Settings], values: dict[str, Any], message: str) -> None:
    with pytest.raises(CaiError) as caught:
        build(kind, PAIRS | values, "run.yaml")
    assert message in str(caught.value) and "run.yaml" in str(caught.value)


def test_a_step_gets_the_usual_values_then_those_of_its_file_then_the_fixed_ones(tmp_path: Path) -> None:
    file = tmp_path / "splade.yaml"
    file.write_text("max_steps: 7\nlearning_rate: 1.0e-3\n")
    settings = load_step(SpladeSettings, file, PAIRS | {"seed": 3}, {"max_steps": 5, "batch_size": 2})
    assert (settings.max_steps, settings.learning_rate, settings.batch_size, settings.seed) == (7, 1e-3, 2, 3)
    assert load_step(SpladeSettings, None, PAIRS, {"max_steps": 5}).max_steps == 5
    file.write_text("epochs: 2\n")
    assert load_step(SpladeSettings, file, PAIRS, {"max_steps": 5}).max_steps == 0  # 5 steps would make epochs void
    file.write_text("base: other\noutput: other\n")
    with pytest.raises(CaiError, match=r"splade\.yaml: base, output cannot be set here"):
        load_step(SpladeSettings, file, PAIRS)


def test_a_recipe_has_what_the_result_depends_on() -> None:
    settings = build(SpladeSettings, PAIRS | {"seed": 5}, "")
    unrecorded = {"output": "y", "device": "cpu", "log_steps": 3, "save_seconds": 9.0, "config": "z.yaml"}
    assert recorded(settings.replace(**unrecorded), "base") == recorded(settings, "base")
    assert recorded(settings)["seed"] == 5


def test_a_checkpoint_is_an_encoder_with_its_folders_name_and_without_the_projection_of_its_base(
    tmp_path: Path,
) -> None:
    base = load_encoder("splade-tiny").replace(query="bow", idf_power=0.5, range=3.0, projection="p.safetensors")
    folder = tmp_path / "mine"
    (folder / "idf").mkdir(parents=True)
    write_encoder(base, folder, folder / "idf")
    encoder = load_encoder(str(folder))
    assert Path(encoder.checkpoint).samefile(folder) and Path(encoder.idf or "").samefile(folder / "idf")
    others = {"name": "mine", "checkpoint": encoder.checkpoint, "idf": encoder.idf, "source": None}
    assert encoder == base.replace(**others, range=None, projection=None)
