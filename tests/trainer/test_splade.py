"""SPLADE training: real steps of a real checkpoint on real text, killed, resumed, and on two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cai_pyserini.cli import CaiError
from cai_pyserini.config import load_encoder
from cai_pyserini.splade import Splade
from cai_pyserini.trainer import run, splade
from tests.conftest import Command

FLAGS = (
    "--batch-size 4 --learning-rate 1e-4 --warmup-steps 2 --precision float32 --device cpu "
    "--lambda-q 0.01 --lambda-d 0.01"
)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def flags(data: Path, base: Path | str, output: Path, *more: object) -> list[object]:
    return ["--data", data, "--base", base, "--output", output, *FLAGS.split(), *more]


@pytest.fixture(scope="module")
def trained(triples: Path, steady: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 steps, left alone; points to resume from every 5."""
    output = tmp_path_factory.mktemp("trained") / "model"
    more = ("--max-steps", 20, "--log-steps", 5, "--save-steps", 5)
    done = command("cai_pyserini.trainer.splade", *flags(triples, steady, output, *more))
    assert done.returncode == 0, done.stderr
    return output


def test_the_loss_falls_and_vectors_stay_sparse(trained: Path) -> None:
    log = json.loads((trained / "log.json").read_text())
    assert [entry["step"] for entry in log] == [5, 10, 15, 20]
    assert log[-1]["ranking_loss"] < 0.7 * log[0]["ranking_loss"]
    assert 1 < log[-1]["documents_active"] < 1000
    for entry in log:
        total = entry["ranking_loss"] + 0.01 * (entry["flops_q_loss"] + entry["flops_d_loss"])
        assert entry["loss"] == pytest.approx(total, rel=1e-3)


def test_the_result_is_an_encoder(trained: Path, steady: Path) -> None:
    config = load_encoder(str(trained))
    assert (config.max_document_length, config.idf) == (256, None)
    before, after = (
        Splade(folder, "cpu", "float32").encode(["bladder infection"], 256) for folder in (steady, trained)
    )
    assert after.nnz
    assert abs(before - after).max() > 0.01
    assert not (trained / "training").exists()
    assert {path.name for path in trained.iterdir()} >= {"manifest.json", "loss.png", "active.png", "tokenizer.json"}


def test_a_second_time_there_is_nothing_to_do(trained: Path, triples: Path, steady: Path, command: Command) -> None:
    before = (trained / "model.safetensors").stat().st_mtime_ns
    more = ("--max-steps", 20, "--log-steps", 7)
    assert command("cai_pyserini.trainer.splade", *flags(triples, steady, trained, *more)).returncode == 0
    assert (trained / "model.safetensors").stat().st_mtime_ns == before


def test_killed_and_resumed_it_ends_in_the_same_weights(
    trained: Path, triples: Path, steady: Path, tmp_path: Path
) -> None:
    more = ("--max-steps", 20, "--log-steps", 5, "--save-steps", 5)
    call = [sys.executable, "-m", "cai_pyserini.trainer.splade"]
    call += map(str, flags(triples, steady, tmp_path / "model", *more))
    process = subprocess.Popen(call, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    saved = tmp_path / "model" / "training" / "checkpoint-10"
    while process.poll() is None and not (saved / "trainer_state.json").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "model" / "manifest.json").exists()
    (saved.parent / "checkpoint-999").mkdir()  # as if killed while writing one
    subprocess.run(call, check=True, capture_output=True)
    resumed, alone = weights(tmp_path / "model"), weights(trained)
    assert all(torch.equal(resumed[name], alone[name]) for name in alone)


def test_two_processes_train_as_one_with_the_whole_batch(triples: Path, steady: Path, tmp_path: Path) -> None:
    single = splade.Settings(
        data=str(triples), base=str(steady), output=str(tmp_path / "one"), batch_size=4, max_steps=3, warmup_steps=0,
        loss="in-batch", precision="float32", device="cpu", log_steps=1,
    )  # fmt: skip
    splade.train(single)
    call = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    call += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "cai_pyserini.trainer.splade"]
    settings = [
        "--loss",
        "in-batch",
        "--log-steps",
        "1",
        "--batch-size",
        "2",
        "--max-steps",
        "3",
        "--warmup-steps",
        "0",
    ]
    call += ["--data", str(triples), "--base", str(steady), "--output", str(tmp_path / "two"), *settings]
    done = subprocess.run([*call, "--precision", "float32", "--device", "cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = [json.loads((tmp_path / name / "log.json").read_text()) for name in ("one", "two")]
    for alone, together in zip(*logs, strict=True):
        for name in alone.keys() & {"loss", "ranking_loss", "flops_q_loss", "flops_d_loss", "grad_norm"}:
            assert together[name] == pytest.approx(alone[name], rel=1e-3), name
    assert sum("grad_norm" in entry for entry in logs[1]) == 3
    one, two, start = weights(tmp_path / "one"), weights(tmp_path / "two"), run.load(steady).state_dict()
    moved = max(float((one[name] - start[name]).abs().max()) for name in one)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 0.02 * moved


def test_collapse_is_refused() -> None:
    with pytest.raises(CaiError, match=r"the documents have 0.2 active dimensions: collapse. Lower the lambdas"):
        splade.refuse_collapse(0.2, 30, 30522, warm=False)
    with pytest.raises(CaiError, match=r"the queries have 20,000 of 30,522 dimensions active: not sparse. Raise"):
        splade.refuse_collapse(300, 20000, 30522, warm=True)
    splade.refuse_collapse(300, 20000, 30522, warm=False)


def test_collapse_stops_training(triples: Path, steady: Path, tmp_path: Path, command: Command) -> None:
    more = ("--max-steps", 30, "--log-steps", 5, "--lambda-d", 1e6, "--learning-rate", 1e-2)
    done = command("cai_pyserini.trainer.splade", *flags(triples, steady, tmp_path / "model", *more))
    assert done.returncode == 1
    assert "collapse. Lower the lambdas" in done.stderr
    assert not (tmp_path / "model" / "manifest.json").exists()


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"query": "a", "positive": "b", "negatives": ["c"]}', "triples.jsonl:1: 1 negatives but 0 margins"),
        ('{"query": "a", "positive": "b", "margins": []}', "triples.jsonl:1: 0 negatives, fewer than the 1"),
        ('{"query": "a", "positive": 3}', "triples.jsonl:1: expected an object with query, positive as strings"),
        ('{"query": "a", "positive": "b", "negative": "c", "margin": "4"}', "margins must be a list of numbers"),
        ("{", "triples.jsonl:1: not JSON"),
    ],
)
def test_a_broken_line_is_named(line: str, message: str, tmp_path: Path, steady: Path, command: Command) -> None:
    (tmp_path / "triples.jsonl").write_text(line + "\n")
    done = command("cai_pyserini.trainer.splade", *flags(tmp_path / "triples.jsonl", steady, tmp_path / "model"))
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_config_file_is_its_difference_from_the_defaults(tmp_path: Path, command: Command) -> None:
    (tmp_path / "run.yaml").write_text("data: none.jsonl\nbase: splade-tiny\nlambdaq: 1\n")
    done = command("cai_pyserini.trainer.splade", "--config", tmp_path / "run.yaml", "--output", tmp_path / "model")
    assert done.returncode == 1
    assert "run.yaml: unknown key lambdaq; known keys: accumulate, base" in done.stderr
    (tmp_path / "run.yaml").write_text("data: none.jsonl\nbase: splade-tiny\n")
    done = command("cai_pyserini.trainer.splade", "--config", tmp_path / "run.yaml", "--output", tmp_path / "model")
    assert done.returncode == 1
    assert "none.jsonl" in done.stderr
    done = command("cai_pyserini.trainer.splade", "--config", tmp_path / "run.yaml")
    assert done.returncode == 2
    assert "--output must be given" in done.stderr
