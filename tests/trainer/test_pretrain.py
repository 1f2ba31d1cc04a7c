"""Continual pretraining: the held-out loss of a real model falls; packing and masking."""

import json
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cai_pyserini.artifact import require_manifest
from cai_pyserini.collection import Hpo
from cai_pyserini.trainer import pretrain
from tests.conftest import Command


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    documents = islice(Hpo().documents(), 400)
    path.write_text("".join(json.dumps({"text": document.contents}) + "\n" for document in documents))
    return path


def test_sequences_are_packed_without_loss(corpus: Path, checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    sequences = [row["input_ids"] for row in pretrain.packed(tokenizer, [str(corpus)], 0, 64)]
    assert {len(sequence) for sequence in sequences} == {64}
    flat = [id for sequence in sequences for id in sequence]
    wanted = [id for line in corpus.open() for id in tokenizer(json.loads(line)["text"])["input_ids"]]
    assert flat == wanted[: len(flat)]
    assert len(wanted) - len(flat) < 64


def test_masks_are_15_percent_and_the_same_for_the_same_batch(corpus: Path, checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    given = pretrain.Settings(corpus=[str(corpus)], base="x", output="x")
    batch = list(islice(pretrain.packed(tokenizer, [str(corpus)], 0, 128), 32))
    first, again = (pretrain.collator(tokenizer, given)(batch) for _ in range(2))
    assert first["input_ids"].equal(again["input_ids"])
    text = sum(id not in tokenizer.all_special_ids for row in batch for id in row["input_ids"])
    assert 0.13 < (first["labels"] != -100).sum() / text < 0.17


def test_the_held_out_loss_falls(corpus: Path, tmp_path: Path, command: Command) -> None:
    flags = "--max-length 64 --batch-size 16 --max-steps 20 --warmup-steps 2 --learning-rate 5e-4 --held-out 0.1"
    flags += " --device cpu --log-steps 10"
    given = ("--corpus", corpus, "--base", "splade-tiny", "--output", tmp_path / "model", *flags.split())
    done = command("cai_pyserini.trainer.pretrain", *given)
    assert done.returncode == 0, done.stderr
    manifest = require_manifest(tmp_path / "model", "pretrain")
    assert manifest["held_out_loss_after"] < 0.9 * manifest["held_out_loss_before"]
    assert manifest["held_out"] == round(0.1 * (manifest["sequences"] + manifest["held_out"]))


def test_too_little_text_is_refused(tmp_path: Path, command: Command) -> None:
    (tmp_path / "corpus.txt").write_text("too short\n")
    given = ("--corpus", tmp_path / "corpus.txt", "--base", "splade-tiny", "--output", tmp_path / "model")
    done = command("cai_pyserini.trainer.pretrain", *given)
    assert done.returncode == 1
    assert done.stderr.endswith("error: no training example: there is too little text, or the file is empty\n")
    done = command("cai_pyserini.trainer.pretrain", *given, "--min-words", 128)
    assert done.returncode == 1
    assert "no text of at least 128 words" in done.stderr
    assert not (tmp_path / "model" / "manifest.json").exists()
