"""Encoders: what their vectors depend on, and what is found out before a model is loaded."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.idf.idf import compute
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.splade import Splade


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copied"))


def encoder(folder: Path, device: str = "cpu", **settings: object) -> Encoder:
    return Encoder(EncoderConfig(name="test", checkpoint=str(folder)).replace(**settings), device)


def test_queries_are_encoded_in_float32(checkpoint: Path) -> None:
    config = EncoderConfig(name="test", checkpoint=str(checkpoint), max_query_length=7)
    made = Encoder(config, "cpu", "bfloat16")
    assert (made.precision("documents"), made.precision("queries")) == ("bfloat16", "float32")
    assert (made.max_length("documents"), made.max_length("queries")) == (256, 7)
    assert made.recipe("queries")["precision"] == "float32" and made.recipe("queries")["max_length"] == 7
    queries = made.load("queries")
    assert isinstance(queries, Splade) and queries.transformer.precision == "float32"
    assert made.load("queries") is queries and made.load("documents") is not queries
    assert made.load("documents").transformer.precision == "bfloat16"


def test_windows_are_of_documents(checkpoint: Path) -> None:
    cut, windows = encoder(checkpoint), encoder(checkpoint, overlap=0)
    assert (cut.overlap("documents"), windows.overlap("documents"), windows.overlap("queries")) == (None, 0, None)
    assert windows.recipe("documents") != cut.recipe("documents")
    assert windows.recipe("documents") != encoder(checkpoint, overlap=1).recipe("documents")
    assert windows.recipe("queries") == cut.recipe("queries")


def test_a_recipe_needs_no_model(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(b"broken")
    made = encoder(copied)
    made.require_loadable()
    assert made.recipe("documents")["checkpoint"] == made.digest
    with pytest.raises(CaiError, match=r"broken \*\.safetensors"):
        made.load("documents")


def test_a_recipe_depends_on_the_checkpoint(checkpoint: Path, copied: Path) -> None:
    assert encoder(copied).recipe("documents") == encoder(checkpoint).recipe("documents")
    (copied / "config.json").write_text((copied / "config.json").read_text() + "\n")
    assert encoder(copied).recipe("documents") != encoder(checkpoint).recipe("documents")


def test_only_dense_vectors_depend_on_the_idf(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    idf = compute(BeirFolder(tiny, "tiny"), checkpoint, tmp_path / "idf")
    dense = {"kind": "dense"}
    plain = encoder(checkpoint, **dense).recipe("documents")
    weighted = encoder(checkpoint, **dense, idf=str(idf))
    assert weighted.recipe("documents") != plain
    assert weighted.recipe("documents") == encoder(checkpoint, **dense, idf=str(idf)).recipe("documents")
    assert encoder(checkpoint, **dense, idf=str(idf), idf_power=0.5).recipe("documents") != weighted.recipe("documents")
    assert encoder(checkpoint, **dense, idf=str(idf), idf_power=0.0).recipe("documents") == plain
    splade = encoder(checkpoint).recipe("documents")
    assert encoder(checkpoint, idf=str(idf)).recipe("documents") == splade != plain
    with pytest.raises(CaiError, match="nowhere is missing or unfinished"):
        encoder(checkpoint, **dense, idf=str(tmp_path / "nowhere")).recipe("documents")

    models = weighted.load("documents"), encoder(checkpoint, **dense).load("documents")
    assert all(isinstance(model, Dense) for model in models)
    one, other = (model.encode(["insulin of the patient"], 256) for model in models)
    assert abs(one - other).max() > 1e-3


def test_dense_vectors_depend_on_the_projection(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    settings = {"kind": "dense", "projection": str(path)}
    with pytest.raises(CaiError, match=r"no projection .*p\.safetensors: write"):
        encoder(checkpoint, **settings)
    recipes = [encoder(checkpoint, kind="dense").recipe("queries")]
    for width in (3, 128):
        save_file({"weight": torch.eye(width).flip(0)}, path)
        projected = encoder(checkpoint, **settings)
        recipes.append(projected.recipe("queries"))
    assert all(recipes.count(recipe) == 1 for recipe in recipes)
    plain = encoder(checkpoint, kind="dense")
    for role in ("documents", "queries"):
        vectors = [made.load(role).encode(["insulin of the patient"], 256) for made in (plain, projected)]
        assert abs(vectors[0][:, ::-1] - vectors[1]).max() < 1e-6


def test_a_checkpoint_without_safetensors_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(CaiError, match=r"has no \*\.safetensors; other formats can run code"):
        encoder(copied).require_loadable()


def test_a_device_that_does_not_exist_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CaiError, match="no device 'tpu'"):
        encoder(checkpoint, "tpu").require_loadable()
    beyond = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(CaiError, match=f"no device '{beyond}': torch .* sees {torch.cuda.device_count()} GPUs"):
        encoder(checkpoint, beyond).require_loadable()


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="no checkpoint folder"):
        encoder(tmp_path / "nowhere")


def test_the_tokenizer_is_that_of_the_checkpoint() -> None:
    assert Encoder(load_encoder("splade-tiny"), "cpu").tokenizer.terms[101] == "[CLS]"


def test_a_search_without_a_model_does_not_wait_for_torch() -> None:
    """Importing torch and transformers takes four seconds, in which a search by BM25 is done."""
    modules = "search.open", "serve.service", "fusion.rerank", "ship.index", "impact.impacts", "index.dense"
    imports = "\n".join(f"import cai_pyserini.{module}" for module in modules)
    program = f"import sys\n{imports}\nsys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
