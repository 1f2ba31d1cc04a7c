"""SPLADE training: real steps of a real checkpoint on real text, killed, resumed, and on two processes."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.splade import Splade
from cai_pyserini.trainer import callbacks, training
from cai_pyserini.trainer.__main__ import main
from cai_pyserini.trainer.examples import Collator, examples
from cai_pyserini.trainer.settings import SpladeSettings
from cai_pyserini.trainer.splade import SpladeTraining, check_sparsity
from tests.trainer.conftest import flags, weights

MakeSettings = Callable[..., SpladeSettings]


@pytest.fixture(scope="module")
def trained(splade_settings: MakeSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was left alone."""
    return SpladeTraining(splade_settings(tmp_path_factory.mktemp("trained") / "model")).run()


@pytest.mark.slow
def test_the_loss_falls_and_vectors_stay_sparse(trained: Path) -> None:
    log = json.loads((trained / "log.json").read_text())
    assert [entry["step"] for entry in log] == [3, 6, 9, 12]
    assert log[-1]["ranking_loss"] < 0.7 * log[0]["ranking_loss"]
    assert 1 < log[-1]["documents_active"] < 1000
    for entry in log:
        total = entry["ranking_loss"] + 0.01 * (entry["flops_q_loss"] + entry["flops_d_loss"])
        assert entry["loss"] == pytest.approx(total, rel=1e-3)


@pytest.mark.slow
def test_the_result_is_an_encoder(trained: Path, steady: Path) -> None:
    config = load_encoder(str(trained))
    assert (config.name, config.max_document_length, config.idf) == ("model", 256, None)
    before, after = (
        Splade(folder, "cpu", "float32").encode(["bladder infection"], 256) for folder in (steady, trained)
    )
    assert after.nnz
    assert abs(before - after).max() > 0.01
    assert {path.name for path in trained.iterdir()} == {
        "config.json", "encoder.yaml", "log.json", "loss.png", "active.png", "manifest.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


@pytest.mark.slow
def test_the_command_reports_and_a_second_time_nothing_is_done(
    trained: Path, splade_settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "model.safetensors").stat().st_mtime_ns
    main(["splade", *flags(splade_settings(trained, log_steps=7))])
    loss = artifact.require(trained, "trainer splade").stats["loss"]
    assert capsys.readouterr().out == f"{trained}: 12 steps on 24 examples, training loss {loss:.4f}\n"
    assert (trained / "model.safetensors").stat().st_mtime_ns == before


def assert_same(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_in_the_same_weights(
    trained: Path, splade_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = splade_settings(tmp_path / "model")
    threads = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # on which sums depend
    call = [sys.executable, "-m", "cai_pyserini.trainer", "splade", *flags(settings)]
    process = subprocess.Popen(call, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=threads)
    work = tmp_path / "model" / "training"
    while process.poll() is None and not any(work.glob("checkpoint-*/trainer_state.json")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "model" / "manifest.json").exists()
    shutil.copytree(max(work.glob("checkpoint-*")), work / "checkpoint-997")
    (work / "checkpoint-997" / "optimizer.pt").write_bytes(b"")  # as after a power cut
    (work / "checkpoint-998").mkdir()  # as if killed before and while trainer_state.json was written
    (work / "checkpoint-999").mkdir()
    for name in training.CHECKPOINT_FILES:
        (work / "checkpoint-999" / name).touch()
    (work / "checkpoint-999" / "trainer_state.json").write_text('{"global_step":')
    SpladeTraining(settings).run()
    assert_same(tmp_path / "model", trained)


@pytest.mark.slow
def test_interrupted_it_continues_from_the_one_checkpoint_it_keeps(
    trained: Path,
    splade_settings: MakeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Interrupted after the third step, it continues with the fourth: of three checkpoints, it kept the last."""
    settings = splade_settings(tmp_path / "model")
    monkeypatch.setattr(callbacks, "SAVE_SHARE", math.inf)
    steps = 0
    step = training.Trainer.training_step

    def interrupted(*arguments: object, **more: object) -> object:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return step(*arguments, **more)

    monkeypatch.setattr(training.Trainer, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SpladeTraining(settings).run()
    assert [path.name for path in (tmp_path / "model" / "training").glob("checkpoint-*")] == ["checkpoint-3"]
    (tmp_path / "model" / "notes.txt").write_text("mine")
    SpladeTraining(settings).run()
    assert artifact.require(tmp_path / "model", "trainer splade").files.keys() == {
        path.name for path in trained.iterdir() if path.name != "manifest.json"
    }
    assert "splade: 24 examples, 12 steps, 3 of them done\n" in capsys.readouterr().err
    assert steps == 3 + 1 + 9
    assert_same(tmp_path / "model", trained)


@pytest.mark.slow
def test_two_processes_train_as_one_with_the_whole_batch(splade_settings: MakeSettings, tmp_path: Path) -> None:
    changes = {"loss": "in-batch", "max_steps": 3, "warmup": 0.0, "log_steps": 1}
    changes |= {"learning_rate": 2e-5, "lambda_q": None, "lambda_d": None}
    one = splade_settings(tmp_path / "one", **changes)
    SpladeTraining(one).run()
    two = one.replace(output=tmp_path / "two", batch_size=2)
    call = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    call += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "cai_pyserini.trainer", "splade"]
    done = subprocess.run([*call, *flags(two)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("3 steps on 24 examples") == 1
    logs = [json.loads((tmp_path / name / "log.json").read_text()) for name in ("one", "two")]
    for alone, together in zip(*logs, strict=True):
        for name in alone.keys() & {"loss", "ranking_loss", "flops_q_loss", "flops_d_loss", "grad_norm"}:
            assert together[name] == pytest.approx(alone[name], rel=1e-3), name
    assert sum("grad_norm" in entry for entry in logs[1]) == 3
    single, double, start = weights(one.output), weights(two.output), training.load_model(Path(one.base)).state_dict()
    moved = max(float((single[name] - start[name]).abs().max()) for name in single)
    assert max(float((single[name] - double[name]).abs().max()) for name in single) <= 0.02 * moved


@pytest.mark.slow
def test_an_idf_weights_the_documents_of_the_score(splade_settings: MakeSettings, steady: Path, tmp_path: Path) -> None:
    """With an IDF of 2 for every token scores are twice as large, and the squared margins four times."""
    settings = splade_settings(tmp_path, lambda_q=0.0, lambda_d=0.0)
    collator = Collator(AutoTokenizer.from_pretrained(steady), 256, 256, 16)
    batch = collator(list(islice(examples(settings.data, True, 1), 4)))
    batch["margins"].zero_()
    plain, ones, twos = (
        SpladeTraining(settings).trainer(steady, weights, training.arguments(settings, tmp_path), collator, None)
        for weights in (None, np.ones(30522), np.full(30522, 2.0))
    )
    without, with_ones, with_twos = (
        trainer.compute_loss(trainer.model, batch).detach() for trainer in (plain, ones, twos)
    )
    torch.testing.assert_close(with_ones, without)
    torch.testing.assert_close(with_twos, 4 * without)


@pytest.mark.slow
def test_a_sample_of_terms_keeps_the_scores_and_estimates_the_regularizer(
    splade_settings: MakeSettings, steady: Path, tmp_path: Path
) -> None:
    """The ranking loss is that of all terms; the mean of the estimates of FLOPS nears the whole."""
    settings = splade_settings(tmp_path, dropout=0.0, precision="float32")
    collator = Collator(AutoTokenizer.from_pretrained(steady), 256, 256, 16)
    batch = collator(list(islice(examples(settings.data, True, 1), 4)))

    def terms(sampled: int, repeats: int) -> dict[str, float]:
        some = settings.replace(sampled_terms=sampled)
        arguments = training.arguments(some, tmp_path)
        trainer = SpladeTraining(some).trainer(steady, None, arguments, collator, None)
        for _ in range(repeats):
            trainer.compute_loss(trainer.model, batch)
        return {name: float(torch.stack(values).mean()) for name, values in trainer._terms.items()}

    torch.manual_seed(1)
    whole, estimate = terms(0, 1), terms(3000, 30)
    assert estimate["ranking_loss"] == pytest.approx(whole["ranking_loss"], rel=1e-4)
    assert estimate["flops_q_loss"] == pytest.approx(whole["flops_q_loss"], rel=1e-4)
    assert estimate["flops_d_loss"] == pytest.approx(whole["flops_d_loss"], rel=0.2)
    assert estimate["documents_active"] == pytest.approx(whole["documents_active"], rel=0.2)


def test_collapse_is_refused() -> None:
    with pytest.raises(CaiError, match=r"the documents have 0.2 active dimensions: collapse. Lower the lambdas"):
        check_sparsity(0.2, 30, 30522, warm=False)
    with pytest.raises(CaiError, match=r"the queries have 20,000 of 30,522 dimensions active: not sparse. Raise"):
        check_sparsity(300, 20000, 30522, warm=True)
    check_sparsity(300, 20000, 30522, warm=False)


@pytest.mark.slow
def test_collapse_stops_training(splade_settings: MakeSettings, tmp_path: Path) -> None:
    settings = splade_settings(tmp_path / "model", lambda_d=1e6, learning_rate=1e-2, max_steps=30)
    with pytest.raises(CaiError, match="Lower the lambdas"):
        SpladeTraining(settings).run()
    assert not (tmp_path / "model" / "manifest.json").exists()


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"query": "a", "positive": "b", "negatives": ["c"]}', "triples.jsonl:1: 1 negatives but 0 margins"),
        ('{"query": "a", "positive": "b", "margins": []}', "triples.jsonl:1: 0 negatives, fewer than the 1"),
        ('{"query": "a", "positive": 3}', "triples.jsonl:1: expected an object with query, positive as strings"),
        ('{"query": "a", "positive": "b", "negative": "c", "margin": "4"}', "margins must be a list of finite numbers"),
        ('{"query": "a", "positive": "b", "negative": "c", "margin": NaN}', "margins must be a list of finite numbers"),
        ("{", "triples.jsonl:1: not JSON"),
        ("", "triples.jsonl has no line to train on"),
    ],
)
def test_a_broken_line_is_named(line: str, message: str, tmp_path: Path, splade_settings: MakeSettings) -> None:
    (tmp_path / "triples.jsonl").write_text(line + "\n")
    with pytest.raises(CaiError) as caught:
        SpladeTraining(splade_settings(tmp_path / "model", data=tmp_path / "triples.jsonl")).run()
    assert message in str(caught.value)
    assert not (tmp_path / "model" / "manifest.json").exists()
