"""adapt on the tiny collection, with few steps: what it makes, and the mean of weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cai_pyserini import artifact
from cai_pyserini.config import load_encoder
from cai_pyserini.trainer import pseudo, run
from tests.conftest import Command, json_lines

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


def test_a_teacher_is_distilled_and_counts_as_much_as_the_contrast(
    tiny: Path, checkpoint: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "steps.yaml").write_text(STEPS)
    output = tmp_path / "model"
    flags = ("--splade", tmp_path / "steps.yaml", "--distil", tmp_path / "steps.yaml", "--device", "cpu")
    common = ("--collection", tiny, "--base", "splade-tiny", "--dense", "minilm", "--output", output)
    done = command("cai_pyserini.trainer.adapt", *common, *flags)
    assert done.returncode == 0, done.stderr
    lines = json_lines(output / "parts" / "examples.jsonl")
    assert all(len(line["margins"]) == len(line["negatives"]) == 4 for line in lines)
    assert sum(min(line["margins"]) > 0 for line in lines) > len(lines) / 2  # the document of a title is its best
    folders = (checkpoint, output / "parts" / "splade", output / "parts" / "distilled", output)
    old, contrast, distilled, mean = (run.load(folder).state_dict() for folder in folders)
    for name in old:
        torch.testing.assert_close(mean[name], 0.2 * old[name] + 0.4 * contrast[name] + 0.4 * distilled[name])


def test_a_cross_encoder_and_a_query_generator(
    tiny: Path, cross_encoder: Path, generator: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "steps.yaml").write_text(STEPS)
    (tmp_path / "generate.yaml").write_text("max_query_length: 6\n")
    output = tmp_path / "model"
    flags = ["--splade", tmp_path / "steps.yaml", "--distil", tmp_path / "steps.yaml", "--device", "cpu"]
    flags += ["--cross-encoder", cross_encoder, "--generator", generator, "--generate", tmp_path / "generate.yaml"]
    common = ("--collection", tiny, "--base", "splade-tiny", "--output", output)
    done = command("cai_pyserini.trainer.adapt", *common, *flags)
    assert done.returncode == 0, done.stderr
    generated = {line["text"] for line in json_lines(output / "parts" / "generated" / "queries.jsonl")}
    lines = json_lines(output / "parts" / "scored.jsonl")
    assert {line["query"] for line in lines} <= generated
    assert all(len(line["margins"]) == 4 for line in lines)
    artifact.require_manifest(output / "parts" / "distilled", "splade")

    done = command("cai_pyserini.trainer.adapt", *common, *flags, "--dense", "minilm")
    assert done.returncode == 1 and "give one of them" in done.stderr


def test_the_margin_of_a_teacher_is_of_standardized_scores() -> None:
    """Two found documents: scores 1 and 3 are -1 and 1 deviation from their mean, whatever their scale."""
    scores = [np.array([1.0, 3.0, 99.0]), np.array([10.0, 30.0, 0.0]), np.array([0.3, 0.1, 0.0])]
    # of document 1 less document 0: 2 + 2 from BM25 and SPLADE, 2 * -2 from the teacher
    assert pseudo._margins(scores, [0, 1], 1, [0]) == [pytest.approx(0, abs=1e-4)]
    assert pseudo._margins([*scores[:2], -scores[2]], [0, 1], 1, [0]) == [pytest.approx(3 * 8, abs=1e-4)]


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
