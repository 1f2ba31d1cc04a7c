"""Training on pairs: losses by hand; real steps of real checkpoints on real text, killed and resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from cai_pyserini.cli.train import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.idf import compute
from cai_pyserini.models.splade import Splade
from cai_pyserini.trainer import training
from cai_pyserini.trainer.examples import Collator, examples
from cai_pyserini.trainer.pairs import SpladeTrainer, check_sparsity, flops, in_batch_negatives, margin_mse, train
from cai_pyserini.trainer.settings import DenseSettings, SpladeSettings
from tests.trainer.conftest import weights

MakeSettings = Callable[..., SpladeSettings]


def flags(settings: SpladeSettings) -> list[str]:
    """The command line for these settings, but those that are empty."""
    values = settings.model_dump(exclude_defaults=True)
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def test_margin_mse_worked_example() -> None:
    queries = torch.tensor([[1.0, 2.0]])
    documents = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])  # scores 3, 2 and 1: margins 1 and 2
    assert float(margin_mse(queries, documents, torch.tensor([[1.0, 5.0]]))) == (0 + 9) / 2


def test_in_batch_negatives_worked_example() -> None:
    documents = torch.tensor([[[2.0, 1.0], [1.0, 0.0]], [[0.0, 3.0], [0.0, 0.0]]])
    scores = torch.tensor([[2.0, 1.0, 0.0, 0.0], [1.0, 0.0, 3.0, 0.0]]).log_softmax(1)
    found = in_batch_negatives(torch.eye(2), documents, torch.tensor([[[1], [2]], [[3], [4]]]))
    assert float(found) == pytest.approx(float(-(scores[0, 0] + scores[1, 2]) / 2))


def test_the_positive_is_no_negative_when_it_comes_again() -> None:
    documents = torch.tensor([[[2.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [0.0, 0.0]]])
    scores = torch.tensor([[2.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).log_softmax(1)  # own, the negatives of both
    for ids in ([[[1, 5], [2, 6]], [[1, 7], [4, 8]]], [[[1, 5], [2, 6]], [[3, 5], [4, 8]]]):  # of documents, or texts
        found = in_batch_negatives(torch.eye(2), documents, torch.tensor(ids))
        assert float(found) == pytest.approx(float(-(scores[0, 0] + scores[1, 0]) / 2))


def test_no_negatives_but_those_of_the_batch() -> None:
    alone = in_batch_negatives(torch.eye(2), torch.eye(2)[:, None], torch.tensor([[[1]], [[2]]]))
    assert float(alone) == pytest.approx(float(-torch.eye(2).log_softmax(1)[0, 0]))


def test_flops_worked_example() -> None:
    assert float(flops(torch.tensor([[1.0, 0.0, 4.0], [3.0, 0.0, 0.0]]))) == 2**2 + 0 + 2**2
    sample = torch.tensor([[1.0, 4.0], [3.0, 0.0]]), torch.tensor([1.0, 3.0])  # the second column represents three
    assert float(flops(*sample)) == 2**2 + 3 * 2**2


@pytest.fixture(scope="module")
def trained(splade_settings: MakeSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training without interruption."""
    return train(splade_settings(tmp_path_factory.mktemp("trained") / "model", save_seconds=1e9))


@pytest.mark.slow
def test_the_loss_falls_and_vectors_stay_sparse(trained: Path) -> None:
    log = json.loads((trained / "log.json").read_text())
    assert [entry["step"] for entry in log] == [1, 3, 6, 9, 12]
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
        "config.json", "curve.png", "encoder.yaml", "log.json", "manifest.json", "model.safetensors",
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


@pytest.mark.slow
def test_killed_and_resumed_with_evaluations_it_ends_in_the_same_weights(
    trained: Path, triples: Path, splade_settings: MakeSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault: an evaluation's data loader draws from the random state that orders the next epoch."""
    output, work = tmp_path / "model", tmp_path / "model.training"
    settings = splade_settings(output, eval_data=triples, eval_steps=2)
    threads = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on it
    call = [sys.executable, "-m", "cai_pyserini", "train", "splade", *flags(settings)]
    process = subprocess.Popen(call, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=threads)
    while process.poll() is None and not any(map(os.path.getsize, work.glob("*/checkpoint-*/trainer_state.json"))):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not output.exists()
    last = max(work.glob("*/checkpoint-*"))
    cut, empty, partial = (last.with_name(f"checkpoint-{number}") for number in (997, 998, 999))
    shutil.copytree(last, cut)
    (cut / "optimizer.pt").write_bytes(b"")  # as after a power cut
    empty.mkdir()  # as if killed before and while trainer_state.json was written
    partial.mkdir()
    (partial / "trainer_state.json").write_text('{"global_step":')
    train(settings.replace(save_seconds=1e9))
    done = capsys.readouterr().err.partition("splade: 24 examples, 12 steps, ")[2]
    assert 1 <= int(done.partition(" of them done\n")[0]) < 12
    manifest, expected = artifact.require(output, "trainer splade"), artifact.require(trained, "trainer splade")
    assert manifest.files.keys() == expected.files.keys() and not work.exists()
    first, second = weights(output), weights(trained)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    log = json.loads((output / "log.json").read_text())
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.slow
def test_interrupted_it_keeps_the_best_weights_and_its_patience(
    triples: Path, tiny: Path, splade_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps do not change the ranking, later ones make it worse. The faults: in a resumption, the best checkpoint
    was deleted, or the evaluations without a new best were forgotten."""
    changes = {
        "eval_data": triples, "eval_collection": str(tiny), "eval_split": "test", "eval_steps": 2,
        "keep_best": "nDCG@10", "patience": 3,
    }  # fmt: skip
    whole = train(splade_settings(tmp_path / "whole", **changes, save_seconds=1e9))
    settings = splade_settings(tmp_path / "resumed", **changes, keep=2)

    def interrupt(_: Any, arguments: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training.TimedCheckpoints, "on_step_begin", interrupt)
        train(settings)
    train(settings)
    stats, expected = (artifact.require(folder, "trainer splade").stats for folder in (settings.output, whole))
    assert (stats["best_step"], stats["steps"]) == (2, 8)
    measured = [name for name in expected if name.startswith("held_out")]
    assert len(measured) == 4 and all(stats[name] == expected[name] for name in measured)
    first, second = weights(settings.output), weights(whole)
    assert all(torch.equal(first[name], second[name]) for name in first)
    best, last = sorted((tmp_path / "resumed.checkpoints").iterdir())
    assert (best.name, last.name) == ("checkpoint-2", "checkpoint-7")
    assert all(torch.equal(value, first[name]) for name, value in weights(best).items())
    assert load_encoder(str(last)).max_document_length == 256
    log = json.loads((whole / "log.json").read_text())
    values = {entry["step"]: entry["eval_nDCG@10"] for entry in log if "eval_nDCG@10" in entry}
    assert [*values] == [0, 2, 4, 6, 8] and values[2] > max(values[4], values[6], values[8])


@pytest.fixture
def trainer(splade_settings: MakeSettings, steady: Path, tmp_path: Path) -> Callable[..., tuple[SpladeTrainer, Any]]:
    """Make a trainer with an IDF and changed settings, and a batch of four examples for it."""

    def make(idf: np.ndarray | None = None, **changes: object) -> tuple[SpladeTrainer, Any]:
        settings = splade_settings(tmp_path, **changes)
        collator = Collator(AutoTokenizer.from_pretrained(steady), 256, 256, 16)
        arguments = training.training_arguments(settings, tmp_path)
        batch = collator(list(islice(examples(settings.data, True, 1), 4)))
        return SpladeTrainer(steady, idf, settings, arguments, collator, None), batch

    return make


@pytest.mark.slow
def test_an_idf_weights_the_documents_of_the_score(trainer: Callable[..., tuple[SpladeTrainer, Any]]) -> None:
    """With an IDF of 2 for every token scores are twice as large, and the squared margins four times."""
    losses = []
    for idf in (None, np.ones(30522), np.full(30522, 2.0)):
        splade_trainer, batch = trainer(idf, lambda_q=0.0, lambda_d=0.0)
        batch["margins"].zero_()
        losses.append(splade_trainer.compute_loss(splade_trainer.model, batch).detach())
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(losses[2], 4 * losses[0])


@pytest.mark.slow
def test_evaluations_score_as_search_does(trainer: Callable[..., tuple[SpladeTrainer, Any]], steady: Path) -> None:
    """With the IDF, without a sample of terms, and without a trace in the training's log."""
    queries, documents = ["bladder infection", "of the heart"], ["heart", "an infection of the bladder", "a b c"] * 2
    splade_trainer, batch = trainer(np.full(30522, 2.0), sampled_terms=1000)
    splade_trainer.model.eval()
    model = Splade(steady, "cpu", "float32")
    expected = model.encode(queries, 256) @ model.encode(documents, 256).T
    np.testing.assert_allclose(splade_trainer.scores(queries, documents), 2 * expected.toarray(), rtol=1e-4)
    splade_trainer.compute_loss(splade_trainer.model, batch)
    assert not splade_trainer._terms


@pytest.mark.slow
def test_a_loss_that_is_back_at_that_of_equal_scores_stops_the_training(
    trainer: Callable[..., tuple[SpladeTrainer, Any]],
) -> None:
    splade_trainer, _ = trainer()
    for loss in (9.0, 3.0, 8.1, 8.0, 5.0, 8.1, 8.1):
        values = {"ranking_loss": loss, "chance_loss": 8.0, "queries_active": 9.0, "documents_active": 90.0}
        splade_trainer.note({name: torch.tensor(value) for name, value in values.items()})
        splade_trainer.log({"loss": loss})
    splade_trainer.note({"ranking_loss": torch.tensor(8.0), "chance_loss": torch.tensor(8.0)})
    with pytest.raises(
        CaiError, match=r"step 0: the ranking loss has risen to 8, no better than the 8 of equal scores"
    ):
        splade_trainer.log({"loss": 8.0})


@pytest.mark.slow
def test_a_sample_of_terms_keeps_the_scores_and_estimates_the_regularizer(
    trainer: Callable[..., tuple[SpladeTrainer, Any]],
) -> None:
    """The ranking loss equals that of all terms; the mean of the FLOPS estimates approaches the full value."""

    def terms(sampled: int, repeats: int) -> dict[str, float]:
        splade_trainer, batch = trainer(dropout=0.0, sampled_terms=sampled)
        for _ in range(repeats):
            splade_trainer.compute_loss(splade_trainer.model, batch)
        return {name: float(torch.stack(values).mean()) for name, values in splade_trainer._terms.items()}

    torch.manual_seed(1)
    all_terms, estimate = terms(0, 1), terms(3000, 30)
    for name, tolerance in (
        ("ranking_loss", 1e-4), ("flops_q_loss", 1e-4), ("flops_d_loss", 0.2), ("documents_active", 0.2)
    ):  # fmt: skip
        assert estimate[name] == pytest.approx(all_terms[name], rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"learning_rate": 1e-2, "lambda_d": 1e6, "log_steps": 3},
            r"step 3: the documents have 0\.. active dimensions",
        ),
        ({"learning_rate": 1e-2, "lambda_d": 1e6}, r"step 12: the documents have 0\.0 active dimensions"),
        (
            {"learning_rate": 1e30, "loss": "in-batch", "warmup": 0.0, "log_steps": 3},
            "loss is nan at step 3: training has diverged. Lower learning_rate",
        ),
        ({"learning_rate": 1e38, "max_steps": 1}, "a weight is not finite at step 1: training has diverged"),
    ],
)
def test_a_collapse_stops_the_training_when_it_logs_or_before_its_model_is_saved(
    changes: dict[str, Any], message: str, splade_settings: MakeSettings, tmp_path: Path
) -> None:
    with pytest.raises(CaiError, match=message):
        train(splade_settings(tmp_path / "model", **{"log_steps": 100, "save_seconds": 1e9} | changes))
    assert not (tmp_path / "model" / "manifest.json").exists() and not [*tmp_path.glob("model/**/model.safetensors")]


def test_vectors_have_to_be_sparse_after_the_warm_up() -> None:
    with pytest.raises(
        CaiError, match=r"step 9: the queries have 20,000 of 30,522 dimensions active: not sparse. Raise"
    ):
        check_sparsity(9, 300, 20000, 30522, warm=True)
    check_sparsity(9, 300, 20000, 30522, warm=False)


def test_one_document_alone_in_a_batch_is_refused(splade_settings: MakeSettings, tmp_path: Path) -> None:
    """Its cross-entropy is 0 for any model."""
    (tmp_path / "one.jsonl").write_text('{"query": "a", "positive": "b"}\n')
    settings = splade_settings(tmp_path / "model", data=tmp_path / "one.jsonl", loss="in-batch", negatives=0)
    with pytest.raises(CaiError, match="loss in-batch: a batch has only one document"):
        train(settings)


@pytest.mark.slow
def test_dense_training_lowers_its_loss_and_gives_an_encoder(triples: Path, tmp_path: Path, tiny: Path) -> None:
    base = load_encoder("minilm")
    idf = compute(BeirFolder(tiny, "tiny"), base, tmp_path / "idf")
    (tmp_path / "data.jsonl").write_text("".join(triples.read_text().splitlines(keepends=True)[:6]))
    values = {
        "data": tmp_path / "data.jsonl", "base": "minilm", "output": tmp_path / "dense", "idf": idf, "batch_size": 12,
        "max_steps": 4, "negatives": 2, "warmup": 0.0, "learning_rate": 5e-5, "log_steps": 1, "device": "cpu",
    }  # fmt: skip
    train(build(DenseSettings, values, ""))
    log = [entry["loss"] for entry in json.loads((tmp_path / "dense" / "log.json").read_text())]
    assert log[-1] < 0.7 * log[0]  # every step has all examples
    trained = load_encoder(str(tmp_path / "dense"))
    assert trained.replace(checkpoint="", name="") == base.replace(
        checkpoint="", name="", source=None, kind="dense", max_document_length=300
    )
