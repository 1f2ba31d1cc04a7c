"""Continual pretraining: the held-out loss of a real model falls; packing and masking."""

import json
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, TrainingArguments

from cai_pyserini.cli.train import main
from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core.artifact import require
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.trainer import pretrain, training
from cai_pyserini.trainer.settings import PretrainSettings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    documents = islice(Hpo().documents(), 400)
    path.write_text("".join(json.dumps({"text": document.contents}) + "\n" for document in documents))
    return path


def test_sequences_are_packed_without_loss(corpus: Path, checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    sequences = [row["input_ids"] for row in pretrain.packed(str(checkpoint), [str(corpus)], 0, 64)]
    assert {len(sequence) for sequence in sequences} == {64}
    flat = [id for sequence in sequences for id in sequence]
    expected = [id for line in corpus.open() for id in tokenizer(json.loads(line)["text"])["input_ids"]]
    assert flat == expected[: len(flat)]
    assert len(expected) - len(flat) < 64


def test_masks_are_15_percent_and_others_in_every_epoch(corpus: Path, checkpoint: Path) -> None:
    """Also for a single sequence. The fault: at batch size 1, masks were the same in every epoch."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = list(islice(pretrain.packed(str(checkpoint), [str(corpus)], 0, 128), 32))
    data = training.Epochs(rows, partial(pretrain.with_mask_seed, 42))
    collate = pretrain.MaskingCollator(tokenizer, mlm_probability=0.15)
    whole = collate([data[i] for i in range(32)])
    text = sum(id not in tokenizer.all_special_ids for row in rows for id in row["input_ids"])
    assert 0.13 < (whole["labels"] != -100).sum() / text < 0.17
    alone = collate([data[7]])
    assert alone["labels"][0].equal(whole["labels"][7])  # in any batch
    for epoch in range(1, 4):
        data.on_epoch_begin(None, SimpleNamespace(epoch=float(epoch)), None)
        assert not collate([data[7]])["labels"].equal(alone["labels"])
    same = training.Epochs([rows[0], rows[0]], partial(pretrain.with_mask_seed, 42))
    assert not collate([same[0]])["labels"].equal(collate([same[1]])["labels"])


def test_the_loss_and_its_gradients_are_those_of_transformers(corpus: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Even though only logits of masked tokens are computed; a batch without masks has the loss 0, not NaN."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = list(islice(pretrain.packed(str(checkpoint), [str(corpus)], 0, 32), 4))
    data = training.Epochs(rows, partial(pretrain.with_mask_seed, 42))
    batch = pretrain.MaskingCollator(tokenizer, mlm_probability=0.15)([data[i] for i in range(4)])
    model = training.load_model(checkpoint).eval()
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = pretrain.MaskingTrainer(model, arguments, None, data, data)
    gradients = []
    for loss in (trainer.compute_loss(model, dict(batch)), model(**batch).loss):
        model.zero_grad()
        loss.backward()
        gradients.append([loss.item(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(*gradients, strict=True):
        assert (
            ours == pytest.approx(theirs, abs=1e-6)
            if isinstance(ours, float)
            else torch.allclose(ours, theirs, atol=1e-6)
        )
    batch["labels"] = torch.full_like(batch["labels"], -100)
    assert trainer.compute_loss(model, batch) == 0


@pytest.mark.slow
def test_the_held_out_loss_falls_with_the_learning_rate_of_the_settings(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--max-length 32 --batch-size 16 --max-steps 16 --learning-rate 1e-3 --held-out 0.05 --log-steps 1"
    flags += f" --device cpu --corpus {corpus} --base splade-tiny --output {tmp_path / 'model'}"
    main(["pretrain", *flags.split()])
    stats = require(tmp_path / "model", "trainer pretrain").stats
    before, after = stats["held_out_loss_before"], stats["held_out_loss_after"]
    assert after < 0.9 * before
    assert stats["held_out"] == round(0.05 * (stats["examples"] + stats["held_out"]))
    log = json.loads((tmp_path / "model" / "log.json").read_text())
    rates = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
    assert len(rates) == 16 and max(rates) == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-3 / 15)  # falls to 0 after the last step, not before
    out = capsys.readouterr().out
    assert out == f"{tmp_path / 'model'}: 16 steps, held-out loss {before:.3f} -> {after:.3f}\n"


@pytest.mark.slow
def test_accumulated_batches_are_one_batch(corpus: Path, tmp_path: Path) -> None:
    """The fault: a loss multiplied by the accumulated batches."""
    losses = []
    for name, sizes in {"whole": "--batch-size 8", "parts": "--batch-size 4 --accumulate 2"}.items():
        flags = f"--corpus {corpus} --base splade-tiny --max-steps 2 --max-length 16 --log-steps 1 --device cpu"
        flags += f" --dropout 0 --precision float32 --output {tmp_path / name} {sizes}"
        main(["pretrain", *flags.split()])
        log = json.loads((tmp_path / name / "log.json").read_text())
        losses.append([entry["loss"] for entry in log if "loss" in entry])
    assert len(losses[0]) == 2
    assert losses[0] == pytest.approx(losses[1], rel=0.2)  # batches of 4 have unequal numbers of masks


def test_a_base_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("some text\n")
    base = tmp_path / "base"
    base.mkdir()
    values = {"corpus": [str(tmp_path / "corpus.txt")], "base": str(base), "output": tmp_path / "model"}
    settings = build(PretrainSettings, values | {"device": "cpu"}, "")
    needed = r"config\.json, \*\.safetensors and a tokenizer"
    with pytest.raises(CaiError, match=rf"base is not a checkpoint, which has {needed}: it has no config\.json$"):
        pretrain.pretrain(settings)


@pytest.mark.slow
def test_too_little_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("too short\n")
    values = {"corpus": [str(tmp_path / "corpus.txt")], "base": "splade-tiny", "output": tmp_path / "model"}
    settings = build(PretrainSettings, values | {"device": "cpu"}, "")
    with pytest.raises(CaiError, match="the corpus yields 0 sequences of 512 tokens: use more text"):
        pretrain.pretrain(settings)
    with pytest.raises(CaiError, match="no text of at least 128 words"):
        pretrain.pretrain(settings.replace(min_words=128))
    (tmp_path / "corpus.txt").write_text("one sequence of eight tokens, and no more\n")
    with pytest.raises(CaiError, match="the corpus yields 1 sequences of 8 tokens"):
        pretrain.pretrain(settings.replace(max_length=8))
    assert not (tmp_path / "model" / "manifest.json").exists()
