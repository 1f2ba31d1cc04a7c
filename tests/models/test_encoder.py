"""Encoders: what their vectors depend on, and which errors are raised before a model is loaded."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cai_pyserini.cli import doctor
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import compute
from cai_pyserini.models.splade import Splade
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.trainer.generate import Generator
from cai_pyserini.trainer.pairs import base_encoder
from cai_pyserini.trainer.settings import GenerateSettings, SpladeSettings


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copied"))


def encoder(folder: Path, device: str = "cpu", **settings: object) -> EncoderModel:
    return EncoderModel(EncoderConfig(name="test", checkpoint=str(folder)).replace(**settings), device)


def test_queries_are_encoded_in_float32(checkpoint: Path) -> None:
    config = EncoderConfig(name="test", checkpoint=str(checkpoint), max_query_length=7)
    made = EncoderModel(config, "cpu", "bfloat16")
    assert (made.precision("documents"), made.precision("queries")) == ("bfloat16", "float32")
    assert (made.max_length("documents"), made.max_length("queries")) == (256, 7)
    queries = made.load("queries")
    assert isinstance(queries, Splade) and queries.transformer.precision == "float32"
    assert made.load("queries") is queries and made.load("documents") is not queries
    assert made.load("documents").transformer.precision == "bfloat16"


def test_an_identity_needs_no_model_but_depends_on_the_checkpoint(checkpoint: Path, copied: Path) -> None:
    assert encoder(copied).identity("documents") == encoder(checkpoint).identity("documents")
    (copied / "model.safetensors").write_bytes(b"broken")
    made = encoder(copied)
    made.require_loadable()
    assert made.identity("documents") != encoder(checkpoint).identity("documents")
    with pytest.raises(CaiError, match=r"broken \*\.safetensors"):
        made.load("documents")


def test_only_dense_vectors_depend_on_the_idf(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    def identity(kind: str = "dense", **settings: object) -> dict:
        return encoder(checkpoint, kind=kind, **settings).identity("documents")

    idf = str(compute(BeirFolder(tiny, "tiny"), load_encoder(str(checkpoint)), tmp_path / "idf"))
    plain, weighted = identity(), identity(idf=idf)
    assert plain != weighted == identity(idf=idf) != identity(idf=idf, idf_power=0.5) != plain
    assert identity(idf=idf, idf_power=0.0) == plain
    assert identity("splade", idf=idf) == identity("splade") != plain
    with pytest.raises(CaiError, match="nowhere is missing"):
        identity(idf=str(tmp_path / "nowhere"))


def test_dense_vectors_depend_on_the_projection(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    settings = {"kind": "dense", "projection": str(path)}
    with pytest.raises(CaiError, match=r"no projection .*p\.safetensors: write"):
        encoder(checkpoint, **settings)
    identities = [encoder(checkpoint, kind="dense").identity("queries")]
    for width in (3, 128):
        save_file({"weight": torch.eye(width).flip(0)}, path)
        projected = encoder(checkpoint, **settings)
        identities.append(projected.identity("queries"))
    assert all(identities.count(identity) == 1 for identity in identities)
    plain = encoder(checkpoint, kind="dense")
    for role in ("documents", "queries"):
        vectors = [made.load(role).encode(["insulin of the patient"], 256) for made in (plain, projected)]
        assert abs(vectors[0][:, ::-1] - vectors[1]).max() < 1e-6


def test_a_checkpoint_without_safetensors_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(CaiError, match=r"has no \*\.safetensors; other formats can run code"):
        encoder(copied).require_loadable()


def as_documents(folder: Path) -> object:
    return encoder(folder)


def as_queries(folder: Path) -> object:
    return encoder(load_checkpoint("splade-tiny"), query_checkpoint=str(folder))


def as_base(folder: Path) -> object:
    flags = {"base": str(folder), "data": folder / "x.jsonl", "output": folder / "out"}
    return base_encoder(build(SpladeSettings, flags, ""))


def as_generator(folder: Path) -> object:
    flags = {"generator": str(folder), "collection": "hpo", "output": folder / "out"}
    return Generator(build(GenerateSettings, flags, ""))


READS = [as_documents, as_queries, as_base, as_generator, CrossEncoder, Splade, Dense]


@pytest.mark.parametrize("read", READS)
def test_an_adapter_is_refused_by_name_whatever_reads_it(read: Callable[[Path], object], copied: Path) -> None:
    (copied / "adapter_config.json").write_text("{}")
    message = r"copied has an adapter \(adapter_config\.json\).* merge_and_unload, save the result with save_pretrained"
    with pytest.raises(CaiError, match=message):
        read(copied)
    for path in copied.iterdir():  # the adapter alone, as peft saves it
        if path.name != "adapter_config.json":
            path.unlink()
    with pytest.raises(CaiError, match=message):
        read(copied)


def test_an_adapter_of_a_module_is_refused_also_by_the_doctor(copied: Path) -> None:
    inner = copied / "0_Transformer"
    inner.mkdir()
    for path in [*copied.iterdir()]:
        if path != inner:
            path.rename(inner / path.name)
    types = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    modules = [{"type": kind, "path": place} for kind, place in zip(types, ["0_Transformer", "1_Pooling"], strict=True)]
    (copied / "modules.json").write_text(json.dumps(modules))
    (inner / "adapter_config.json").write_text("{}")
    with pytest.raises(CaiError, match="0_Transformer has an adapter"):
        encoder(copied)
    with pytest.raises(CaiError, match="0_Transformer has an adapter"):
        doctor.main(["--encoder", str(copied)])


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_told_from_a_broken_file(name: str, copied: Path) -> None:
    (copied / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 17\n")
    for read in READS:
        with pytest.raises(CaiError, match=rf"{re.escape(name)} is a pointer of Git LFS, .*run `git lfs pull` in "):
            read(copied)


def test_code_of_a_checkpoint_never_runs(copied: Path) -> None:
    (copied / "own.py").write_text(f"import pathlib\npathlib.Path({str(copied / 'ran')!r}).touch()\n")
    models = {"AutoConfig": "own.C", "AutoModel": "own.M", "AutoModelForMaskedLM": "own.M"}
    settings = json.loads((copied / "config.json").read_text()) | {"model_type": "own", "auto_map": models}
    (copied / "config.json").write_text(json.dumps(settings))
    settings = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": [None, "own.T"]}}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    for load in (Splade, Dense, Tokenizer, CrossEncoder):
        with pytest.raises(CaiError, match=r"has code of its own .*, which is not run|contains custom code"):
            load(copied)
    assert not (copied / "ran").exists()


@pytest.mark.slow
def test_a_search_without_a_model_does_not_wait_for_torch() -> None:
    """Importing torch and transformers takes four seconds, longer than a BM25 search."""
    modules = ["engine.open", "service.queue", "runs.rerank"]
    modules += ["plugin.index", "vectors.weighting", "indexes.dense_index"]
    imports = "\n".join(f"import cai_pyserini.{module}" for module in modules)
    program = f"import sys\n{imports}\nsys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
