"""Dense training: real steps of a real model."""

import json
from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.settings import build
from cai_pyserini.idf.idf import compute
from cai_pyserini.models.checkpoint import checkpoint_folder
from cai_pyserini.trainer.dense import DenseTraining
from cai_pyserini.trainer.settings import DenseSettings


@pytest.mark.slow
def test_training_lowers_its_loss_and_gives_an_encoder(triples: Path, tmp_path: Path, tiny: Path) -> None:
    base = load_encoder("minilm")
    idf = compute(BeirFolder(tiny, "tiny"), checkpoint_folder(base), tmp_path / "idf")
    (tmp_path / "data.jsonl").write_text("".join(triples.read_text().splitlines(keepends=True)[:6]))
    values = {
        "data": tmp_path / "data.jsonl", "base": "minilm", "output": tmp_path / "dense", "idf": idf, "batch_size": 12,
        "max_steps": 4, "negatives": 2, "warmup": 0.0, "learning_rate": 5e-5, "log_steps": 1, "device": "cpu",
    }  # fmt: skip
    DenseTraining(build(DenseSettings, values, "")).run()
    log = [entry["loss"] for entry in json.loads((tmp_path / "dense" / "log.json").read_text())]
    assert log[-1] < 0.7 * log[0]  # every step has all examples
    trained = load_encoder(str(tmp_path / "dense"))
    assert trained.name == "dense"
    assert trained.replace(checkpoint="", name="") == base.replace(
        checkpoint="", name="", source=None, kind="dense", max_document_length=300
    )
