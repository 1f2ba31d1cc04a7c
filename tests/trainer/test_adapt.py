"""adapt on the tiny collection, with few steps: what it makes, and the mean of weights."""

from pathlib import Path

import pytest
import torch

from cai_pyserini import artifact
from cai_pyserini.config import load_encoder
from cai_pyserini.trainer import run
from tests.conftest import Command

STEPS = "max_steps: 3\nbatch_size: 4\nwarmup_steps: 1\n"


@pytest.fixture(scope="module")
def adapted(tiny: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    (folder / "splade.yaml").write_text(STEPS)
    flags = ("--collection", tiny, "--base", "splade-tiny", "--splade", folder / "splade.yaml", "--weight", 0.25)
    done = command("cai_pyserini.trainer.adapt", *flags, "--output", folder / "model", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"./run_beir.sh {tiny} --encoder {folder / 'model'}\n")
    return folder / "model"


def test_weights_are_the_mean_of_old_and_new(adapted: Path, checkpoint: Path) -> None:
    old, new, mean = (run.load(folder).state_dict() for folder in (checkpoint, adapted / "parts" / "splade", adapted))
    assert any(not torch.equal(old[name], new[name]) for name in old)
    for name in old:
        torch.testing.assert_close(mean[name], 0.75 * old[name] + 0.25 * new[name])


def test_it_is_an_encoder_with_the_idf_of_the_collection(
    adapted: Path, tiny: Path, tmp_path: Path, command: Command
) -> None:
    config = load_encoder(str(adapted))
    assert artifact.require_manifest(Path(config.idf or ""), "idf")["documents"] == 12
    done = command("cai_pyserini.beir", tiny, "--encoder", adapted, "--output", tmp_path, "--systems", "splade-idf")
    assert done.returncode == 0, done.stderr
    assert "splade-idf" in done.stdout


def test_the_papers_way_from_a_training_file(tiny: Path, triples: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "steps.yaml").write_text(STEPS + "max_length: 32\n")
    (tmp_path / "splade.yaml").write_text(STEPS)
    (tmp_path / "vocabulary.yaml").write_text("increment: 20\nmax_steps: 1\n")
    flags = [f for name in ("vocabulary", "splade") for f in (f"--{name}", tmp_path / f"{name}.yaml")]
    flags += ["--pretrain", tmp_path / "steps.yaml", "--data", triples, "--device", "cpu"]
    output = tmp_path / "model"
    flags += ["--collection", tiny, "--base", "splade-tiny", "--output", output]
    done = command("cai_pyserini.trainer.adapt", *flags)
    assert done.returncode == 0, done.stderr
    for part, stage in (("vocabulary", "vocabulary"), ("pretrained", "pretrain"), ("splade", "splade")):
        artifact.require_manifest(output / "parts" / part, stage)
    assert run.load(output).config.vocab_size == 30522 + 20


def test_a_setting_that_adapt_fixes_is_refused(tiny: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "splade.yaml").write_text("base: other\n")
    flags = ("--splade", tmp_path / "splade.yaml", "--output", tmp_path / "model")
    done = command("cai_pyserini.trainer.adapt", "--collection", tiny, "--base", "splade-tiny", *flags)
    assert done.returncode == 1
    assert "splade.yaml: base cannot be set here" in done.stderr
