"""Encoders as folders for a hub."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from cai_pyserini.cli.ship import main
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.plugin.encoder import ship_encoder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


def test_an_adapted_encoder(
    adapted_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cai_pyserini.plugin.encoders import CaiDocumentEncoder, CaiQueryEncoder

    run = Path(shutil.copytree(adapted_run, tmp_path / "run"))
    original = CaiQueryEncoder(str(run / "adapted")).encode("bladder infection")
    documents = CaiDocumentEncoder(str(run / "adapted")).encode(["Infection of the bladder"])
    main(["encoder", str(run / "adapted"), "--license", "apache-2.0", "--output", str(tmp_path / "tiny-splade")])
    assert capsys.readouterr().out == f"{tmp_path / 'tiny-splade'}\n"
    digest = checkpoint_digest(run / "adapted")
    shutil.rmtree(run)
    shutil.move(tmp_path / "tiny-splade", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert checkpoint_digest(Path("moved")) == digest
    assert CaiQueryEncoder("moved").encode("bladder infection") == original != {}
    assert CaiDocumentEncoder("moved").encode(["Infection of the bladder"]) == documents
    card = ModelCard.load("moved/README.md")
    assert "With cai-pyserini, which reads" in card.text  # no link: it is not published
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "transformers")
    assert card.data.tags[0] == "splade" and card.data.base_model is None
    assert "adapted to the collection tiny, on 20" in card.text and "\n# tiny-splade\n" in card.text
    results = json.loads((adapted_run / "results.json").read_text())["systems"]
    assert f"\n| adapted-splade-idf | {results['adapted-splade-idf']['nDCG@10']:.4f} | " in card.text
    assert "| bm25 |" not in card.text and "| adapted-dense |" not in card.text
    assert str(tmp_path) not in card.content and "\n\n\n" not in card.content


def test_an_adapted_dense_encoder(adapted_run: Path, tmp_path: Path) -> None:
    found = ship_encoder(str(adapted_run / "adapted" / "dense"), tmp_path / "dense", "apache-2.0", "de", "org/model")
    assert load_encoder(str(found)).kind == "dense"
    card = ModelCard.load(found / "README.md")
    assert (card.data.base_model, card.data.language) == ("org/model", "de")
    assert "adapted to the collection tiny from [org/model](https://huggingface.co/org/model), on 20" in card.text
    assert "\n| adapted-dense | " in card.text and "export-encoder" not in card.text


def test_a_projection_travels_with_its_encoder(tmp_path: Path) -> None:
    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    save_file({"weight": torch.eye(384).flip(0)}, tmp_path / "reversed.safetensors")
    minilm = load_encoder("minilm")
    (tmp_path / "mine.yaml").write_text(
        f"checkpoint: {minilm.checkpoint}\nkind: dense\nprojection: reversed.safetensors\n"
    )
    found = ship_encoder(str(tmp_path / "mine.yaml"), tmp_path / "dense", "apache-2.0")
    text = (found / "README.md").read_text()
    assert "multiplied by a projection" in text and "## Scores" not in text and "adapted" not in text
    assert "\n\n\n" not in text
    (tmp_path / "reversed.safetensors").unlink()
    plain, projected = (CaiQueryEncoder(str(spec), device="cpu").encode("fever") for spec in ("minilm", found))
    assert projected == pytest.approx(plain[::-1], abs=1e-6)


def test_what_cannot_be_shipped(run_folder: Path, adapted_run: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"is the encoder of a joint index, .*: ship the index"):
        ship_encoder(str(run_folder / "indexes" / "joint-splade-idf"), tmp_path / "x", "mit")
    source = Path(shutil.copytree(adapted_run / "adapted", tmp_path / "adapted"))
    for spec in (source, source / "dense"):
        with pytest.raises(CaiError, match="which it would replace: choose another output"):
            ship_encoder(str(spec), source, "mit")
    assert (source / "model.safetensors").is_file()
    with pytest.raises(CaiError, match=r"no config\.json"):
        ship_encoder(str(run_folder), tmp_path / "x", "mit")
    (tmp_path / "long.yaml").write_text(f"checkpoint: {checkpoint}\nmax_query_length: 513\n")
    with pytest.raises(CaiError, match="has 512 positions, too few for max_query_length 513"):
        ship_encoder(str(tmp_path / "long.yaml"), tmp_path / "x", "mit")
    assert not (tmp_path / "x").exists()
