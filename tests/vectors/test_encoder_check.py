"""Encoders compared with the library that saved their folders, for each kind."""

from pathlib import Path

import pytest

from cai_pyserini.cli import doctor
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.vectors import encoder_check as module
from cai_pyserini.vectors.encoder_check import TOKENS, check, example_documents, verdict
from tests.models.kinds import KINDS, VOCABULARY

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as few documents as possible."""
    monkeypatch.setattr(module, "EXAMPLES", 8)


@pytest.mark.parametrize(
    "name, modules, queries",
    [
        ("splade-tiny", ["Transformer", "SpladePooling max relu"], "model"),
        ("SPLADE, sum", ["Transformer", "SpladePooling sum relu"], "model"),
        ("bag-of-words queries", ["Transformer", "SpladePooling max log1p_relu"], "bags of words"),
        ("dense, prompt for passages", ["Transformer", "Pooling mean"], "model"),
        ("dense, mean and a layer", ["Transformer", "Pooling mean", "Dense", "Normalize"], "model"),
        ("token vectors", ["StaticEmbedding"], "model"),
    ],
)
def test_vectors_are_those_of_the_library(name: str, modules: list[str], queries: str, tmp_path: Path) -> None:
    if name in KINDS:
        KINDS[name].build(tmp_path / "folder")
    found = check(load_encoder(str(tmp_path / "folder") if name in KINDS else name), "cpu")
    assert found["equal"] and found["documents_differ_by"] < 1e-5 and (found["queries_differ_by"] or 0) < 1e-5
    assert (found["modules"], found["queries"]) == (modules, queries)
    assert found["query_prompt"] == ("query: " if "passages" in name else "")
    assert verdict(found).startswith(f"The vectors of 10 texts are those of {found['library']}")


@pytest.mark.parametrize(
    "text, compared",
    [
        ("query: bow", False),
        ("binary_queries: true\nexpand_queries: false\npooling: sum", True),
        ("query_checkpoint: {}\nmax_active_dims: 5\nrescore: 9\nkeep_query_mass: 0.6\nquery_prompt: 'query: '", True),
    ],
)
def test_settings_of_a_bare_checkpoint_are_given_to_the_library(text: str, compared: bool, tmp_path: Path) -> None:
    folder = load_checkpoint("splade-tiny")
    (tmp_path / "mine.yaml").write_text(f"checkpoint: {folder}\nmax_document_length: 64\n{text.format(folder)}\n")
    found = check(load_encoder(str(tmp_path / "mine.yaml")), "cpu", "float32")
    assert found["equal"] and found["differs_from_float32_by"] == 0
    assert (found["queries_differ_by"] is not None) == compared and (found["queries_differ_by"] or 0) < 1e-5


def test_an_encoder_that_pools_in_another_way_than_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    KINDS["SPLADE, max"].build(tmp_path / "folder")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("checkpoint: folder\nactivation: log1p_relu\nmax_document_length: 32\n")
    found = check(load_encoder(str(wrong)), "cpu", "float32")
    assert found["documents_differ_by"] > 0.1 and not found["equal"]
    assert found["settings"] == {"activation": "log1p_relu"} and found["max_document_length"] == 32
    assert doctor.main(["--encoder", str(wrong)]) == 1
    assert "are NOT those of sentence-transformers" in capsys.readouterr().out.splitlines()[-1]

    assert doctor.main(["--encoder", str(tmp_path / "folder"), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(tmp_path / "folder") and lines[2].split() == ["encoder", "folder"]
    assert {"vocabulary": f"{VOCABULARY:,}", "similarity": "dot"}.items() <= dict(
        line.split() for line in lines[3:] if len(line.split()) == 2
    ).items()


def test_what_cannot_be_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaiError, match=r"org/model: no complete answer from .*: check the connection"):
        doctor.main(["--encoder", "org/model"])
    with pytest.raises(SystemExit, match="2"):
        doctor.main(["--precision", "int8"])
    assert "--device and --precision are for --encoder: name one" in capsys.readouterr().err


def test_documents_have_the_length_that_is_said() -> None:
    lengths = (tokenizer := Tokenizer(load_checkpoint("splade-tiny"))).lengths(
        texts := example_documents(tokenizer, 50)
    )
    assert len(set(texts)) == 50 and min(lengths) > 0.7 * TOKENS and max(lengths) < 1.4 * TOKENS
