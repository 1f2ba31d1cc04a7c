"""Shared by all trainings: number of steps, progress, checkpoints, and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cai_pyserini.cli.adapt import main as adapt
from cai_pyserini.cli.train import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.trainer import training
from cai_pyserini.trainer.evaluation import JudgedSample, judged_sample
from cai_pyserini.trainer.pairs import train
from cai_pyserini.trainer.settings import DenseSettings, PairSettings, SpladeSettings

MakeSettings = Callable[..., SpladeSettings]
PAIRS = {"data": "x.jsonl", "base": "x", "output": "x"}
MSMARCO = 502_939  # queries with a positive in msmarco-hard-negatives.jsonl.gz, each with 30 negatives in our file


@pytest.mark.parametrize(
    "kind, steps",
    [
        (SpladeSettings, 377_220),  # 30 epochs of 12,574 steps of 40
        (DenseSettings, 235_770),  # 30 epochs of 7,859 steps of 64
    ],
)
def test_the_defaults_train_as_long_and_warm_up_as_long_as_the_paper(
    kind: type[PairSettings], steps: int, tmp_path: Path
) -> None:
    settings = build(kind, PAIRS | {"device": "cpu"}, "")
    assert training.total_steps(settings, MSMARCO) == steps
    assert training.training_arguments(settings, tmp_path).get_warmup_steps(steps) == 1000


def test_steps_of_accumulated_batches() -> None:
    settings = build(SpladeSettings, PAIRS | {"batch_size": 4, "epochs": 2.5}, "")
    assert training.total_steps(settings, 9) == 8  # 2.5 epochs of 3 batches
    assert training.total_steps(settings.replace(accumulate=3), 9) == 3  # of 1
    assert training.total_steps(settings.replace(max_steps=7), 9) == 7


@pytest.mark.slow
def test_a_training_of_one_step_trains_and_shows_its_loss_on_stderr(
    splade_settings: MakeSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is interrupted after the step. The fault: transformers resumed with another step."""
    settings = splade_settings(tmp_path / "model", max_steps=0, epochs=0.1, log_steps=1)
    with monkeypatch.context() as patched, pytest.raises(TypeError):
        patched.setattr(training, "save_tokenizer", None)
        train(settings)
    out, err = capsys.readouterr()
    train(settings)
    assert "splade: 24 examples, 1 steps, 1 of them done\n" in capsys.readouterr().err
    stats = artifact.require(settings.output, "trainer splade").stats
    (log,) = json.loads((tmp_path / "model" / "log.json").read_text())
    assert log["learning_rate"] == 1e-4  # a warm-up would begin at 0
    assert (stats["steps"], stats["loss"]) == (1, log["loss"])
    lines = err.splitlines()
    assert {"splade: 24 examples, 1 steps", f"step 1/1, loss {log['loss']:.4g}"} <= {*lines} and not out


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"report_to": ["tensorbord"]}, "report_to tensorbord: transformers logs to .*tensorboard.*, wandb"),
        ({"report_to": ["codecarbon"]}, "report_to codecarbon: not installed: .* -m pip install codecarbon"),
        ({"eval_data": "EMPTY"}, "empty.jsonl has no line"),
        ({"eval_data": "none.jsonl"}, "no file none.jsonl"),
        ({"eval_collection": "TINY"}, "no file .*dev.tsv; splits of this collection: test, train"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(
    changes: dict[str, Any], message: str, splade_settings: MakeSettings, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    paths = {"EMPTY": str(tmp_path / "empty.jsonl"), "TINY": str(tiny)}
    values = {name: paths.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    with pytest.raises(CaiError, match=message):
        train(splade_settings(tmp_path / "model").replace(**values))


def test_the_evaluation_of_a_worked_example() -> None:
    sample = JudgedSample({"1": "a", "2": "b"}, {"x": "", "y": "", "z": ""}, {"1": {"y": 1, "z": 0}, "2": {"x": 2}})
    scores = np.array([[3.0, 2.0, 1.0], [0.0, -1.0, 5.0]])  # y is second; x has no positive score
    assert sample.ndcg(lambda queries, documents: scores) == pytest.approx((1 / np.log2(3) + 0) / 2)


def test_a_sample_of_a_collection_has_all_relevant_documents(tiny: Path) -> None:
    collection, values = BeirFolder(tiny, "tiny"), {"eval_collection": str(tiny), "eval_split": "test"}
    qrels = collection.qrels("test")
    relevant = {id for grades in qrels.values() for id, grade in grades.items() if grade}
    for size in (1, len(relevant) + 2):
        found = judged_sample(build(SpladeSettings, PAIRS | values | {"eval_documents": size}, ""))
        assert found is not None and len(found.documents) == max(size, len(relevant))
        assert relevant <= found.documents.keys()
    whole = judged_sample(build(SpladeSettings, PAIRS | values, ""))
    assert whole is not None and len(whole.documents) == 12 and whole.queries.keys() == collection.topics("test").keys()


def test_checkpoints_are_saved_every_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, found = 100.0, []
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    callback = training.TimedCheckpoints(120)
    arguments: Any = SimpleNamespace(device="cpu"), None
    callback.on_train_begin(*arguments, None)
    for number in range(1, 16):
        now += 25
        control = SimpleNamespace(should_save=False)
        callback.on_step_end(*arguments, control)
        if control.should_save:
            found.append(number)
            callback.on_save(*arguments, control)
    assert found == [5, 10, 15]


@pytest.mark.parametrize(
    "run, call", [(main, "splade --data TRIPLES"), (main, "pretrain --corpus hpo"), (adapt, "--collection hpo")]
)
def test_devices_on_which_a_training_would_go_wrong_are_refused(
    run: Callable[[list[str]], None], call: str, triples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: auto was used instead of the device, or only auto and cpu were accepted."""
    flags = [*call.replace("TRIPLES", str(triples)).split(), "--base", "splade-tiny", f"--output={tmp_path / 'model'}"]
    for device in ("cuda:1", "mps"):
        with pytest.raises(CaiError, match=f"no device '{device}'"):
            run([*flags, "--device", device])
    monkeypatch.setenv("WORLD_SIZE", "2")
    if run is main:
        with pytest.raises(CaiError, match="a training runs in one process, on one GPU: start it without torchrun"):
            run(flags)
    assert not list(tmp_path.iterdir())


def test_one_of_several_gpus_trains(splade_settings: MakeSettings, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for device, gpu in {"cuda:1": 1, "cuda": 0}.items():
        settings = splade_settings(tmp_path / "model", device=device, precision="float32")
        assert training.training_arguments(settings, tmp_path).gpu == gpu
