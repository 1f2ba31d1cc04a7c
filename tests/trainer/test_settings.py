"""The trainer's commands and settings: which are refused, and which are recorded."""

from pathlib import Path
from typing import Any, get_args

import pytest
from transformers import SchedulerType

from cai_pyserini.cli.train import main
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.trainer.settings import (
    AdaptSettings,
    PretrainSettings,
    Scheduler,
    SpladeSettings,
    load_step,
    recorded,
    write_encoder,
)

PAIRS = {"data": "x.jsonl", "base": "x", "output": "x"}


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"run.yaml: loss margin-mse needs negatives: set negatives to 1 or more"):
        build(SpladeSettings, PAIRS | {"negatives": 0}, "run.yaml")
    adapted = {"collection": "hpo", "base": "splade-tiny", "output": "x"}
    with pytest.raises(CaiError, match="distil needs a teacher: the setting dense"):
        build(AdaptSettings, adapted | {"distil": "x.yaml"}, "")
    with pytest.raises(CaiError, match="depth applies to the fusion with a dense encoder: add the setting dense"):
        build(AdaptSettings, adapted | {"depth": 50}, "")
    for values, message in (
        ({"keep_best": "loss", "eval_steps": 1}, "keep_best loss needs eval_data"),
        ({"keep_best": "loss", "eval_data": "x"}, "keep_best needs eval_steps"),
        ({"patience": 1}, "patience needs keep_best"),
        ({"eval_steps": 1}, "eval_steps needs eval_data or eval_collection"),
    ):
        with pytest.raises(CaiError, match=message):
            build(SpladeSettings, PAIRS | values, "")
    pretraining = {"corpus": ["x"], "base": "x", "output": "x", "keep_best": "loss", "eval_steps": 1}
    assert build(PretrainSettings, pretraining, "").keep_best == "loss"
    with pytest.raises(CaiError, match=r"no file none\.jsonl"):
        main(["splade", "--data", "none.jsonl", "--base", "splade-tiny", "--output", str(tmp_path / "model")])


@pytest.mark.parametrize(
    "command, flags",
    [
        ("splade", ["--data=nowhere", "--base=splade-tiny", "--max-document-length=1024"]),
        ("dense", ["--data=nowhere", "--base=minilm", "--max-document-length=1024"]),
        ("pretrain", ["--corpus=nowhere", "--base=splade-tiny", "--max-length=1024"]),
        ("generate", ["--collection=hpo", "--generator=splade-tiny", "--max-document-length=1024"]),
    ],
)
def test_more_tokens_than_positions_are_refused_first(command: str, flags: list[str], tmp_path: Path) -> None:
    """The fault: a RuntimeError at the first long document."""
    with pytest.raises(CaiError, match=r"has 512 positions, too few for max_(document_)?length 1024: set it to 512"):
        main([command, *flags, f"--output={tmp_path / 'out'}"])
    assert not list(tmp_path.iterdir())


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
    unrecorded |= {"report_to": ["wandb"], "keep": 3}
    evaluation = {"eval_data": "e.jsonl", "eval_steps": 7, "eval_documents": 99}
    measured = settings.replace(**unrecorded | evaluation)
    assert recorded(measured, "base", "eval_data") == recorded(settings, "base", "eval_data")
    assert recorded(settings)["seed"] == 5
    assert recorded(settings).keys().isdisjoint({"scheduler", "keep_best", "patience"})  # recipes of older results
    chosen = measured.replace(keep_best="loss", patience=2, scheduler="cosine")
    added = {"keep_best": "loss", "patience": 2, "scheduler": "cosine", "eval_steps": 7, "eval_documents": 99}
    assert recorded(chosen) == recorded(measured) | added | {"eval_split": "dev"}


def test_all_schedulers_are_those_of_transformers() -> None:
    assert {*get_args(Scheduler)} <= {each.value for each in SchedulerType}


@pytest.mark.parametrize(
    "base, changes",
    [("splade-tiny", {"query": "bow", "idf_power": 0.5, "range": 3.0}), ("minilm", {"projection": "p.safetensors"})],
)
def test_a_checkpoint_is_an_encoder_with_its_folders_name(base: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "idf").mkdir(parents=True)
    before = load_encoder(base).replace(**changes)
    write_encoder(before, folder, folder / "idf")
    encoder = load_encoder(str(folder))
    assert Path(encoder.checkpoint).samefile(folder) and Path(encoder.idf or "").samefile(folder / "idf")
    own = {"name": "mine", "checkpoint": encoder.checkpoint, "idf": encoder.idf, "source": None}
    assert encoder == before.replace(**own, range=None, projection=None)
