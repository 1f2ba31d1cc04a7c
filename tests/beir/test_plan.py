"""The order of the stages, and what is refused before the first."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.beir import plan, stages
from cai_pyserini.beir.experiment import Experiment
from cai_pyserini.beir.inputs import Inputs
from cai_pyserini.beir.plan import require, run, steps
from cai_pyserini.beir.systems import parse_system
from cai_pyserini.core.config import IndexConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import locked


@pytest.fixture
def experiment(tiny: Path, tmp_path: Path) -> Experiment:
    collection = IndexConfig(name="tiny", source=str(tiny))
    return Experiment(collection, load_encoder("splade-tiny"), tmp_path / "run", device="cpu")


def labels(experiment: Experiment, *names: str) -> list[str]:
    return [label for label, _ in steps(Inputs(experiment), [parse_system(name) for name in names])]


def test_bm25_needs_no_encoder(experiment: Experiment) -> None:
    assert labels(experiment, "bm25") == ["check", "index bm25", "search bm25", "evaluate bm25"]


@pytest.fixture
def unjudged(broken: Path, experiment: Experiment) -> Experiment:
    """An experiment on queries without qrels."""
    shutil.rmtree(broken / "qrels")
    return replace(experiment, collection=IndexConfig(name="broken", source=str(broken)))


def test_without_qrels_nothing_is_evaluated(experiment: Experiment, unjudged: Experiment) -> None:
    systems = ("hybrid-splade-idf-minmax-exact", "splade-doc", "bm25")
    judged = labels(experiment, *systems)
    assert labels(unjudged, *systems) == [label for label in judged if not label.startswith("evaluate")]
    assert any(label.startswith("evaluate") for label in judged)


def test_without_queries_nothing_is_searched(adapting: Experiment, unjudged: Experiment) -> None:
    systems = ("hybrid-splade-idf-dense-zscore", "splade-doc", "adapted-joint-splade-idf")
    (Path(unjudged.collection.source) / "queries.jsonl").unlink()
    alone = replace(adapting, collection=unjudged.collection)
    kept = ("check", "adapt", "idf", "encode", "words", "impacts", "index", "weights")
    every = [label for label in labels(adapting, *systems) if "queries" not in label]
    assert labels(alone, *systems) == [label for label in every if label.startswith(kept)]
    assert "weights" in every and "fuse hybrid-splade-idf-dense-zscore" in every


def test_every_stage_once_after_what_it_needs(experiment: Experiment) -> None:
    found = labels(experiment, "hybrid-splade-idf-minmax", "splade-doc-idf", "splade", "hybrid-splade-idf")
    assert found == [
        "check",
        "idf",
        "encode documents",
        "encode queries-test",
        *("impacts splade-idf", "impacts splade"),
        *("index bm25", "index splade-idf", "index splade"),
        *("search bm25", "search splade-idf", "search splade-doc-idf", "search splade"),
        *("fuse hybrid-splade-idf-minmax", "fuse hybrid-splade-idf"),
        *("evaluate hybrid-splade-idf-minmax", "evaluate splade-doc-idf", "evaluate splade"),
        "evaluate hybrid-splade-idf",
    ]


def test_bags_of_word_pieces_are_not_encoded(experiment: Experiment) -> None:
    assert labels(experiment, "splade-doc") == [
        *("check", "encode documents", "impacts splade", "index splade", "search splade-doc", "evaluate splade-doc"),
    ]


def test_stages_of_the_other_systems(experiment: Experiment) -> None:
    dense = replace(experiment, dense=load_encoder("minilm"), cross_encoder="somewhere")
    assert labels(dense, "hybrid-cross-encoder-dense-idf") == [
        "check",
        "idf-dense",
        "encode dense-idf-documents",
        "encode dense-idf-queries-test",
        *("index bm25", "index dense-idf"),
        *("search bm25", "search dense-idf"),
        "rerank cross-encoder",
        "fuse hybrid-cross-encoder-dense-idf",
        "evaluate hybrid-cross-encoder-dense-idf",
    ]
    exact = labels(dense, "hybrid-splade-dense-exact", "hybrid-splade-dense-product-exact", "doct5query")
    assert [label for label in exact if label.startswith(("rescore", "index"))] == [
        *("index bm25", "index splade", "index dense", "index doct5query"),
        *("rescore bm25-with-splade-dense", "rescore splade-with-bm25-dense", "rescore dense-with-bm25-splade"),
    ]


def test_stages_of_joint_and_smooth(experiment: Experiment) -> None:
    joint = labels(experiment, "joint-splade-doc-idf")
    assert joint == [
        *("check", "idf", "encode documents", "words", "impacts joint-splade-idf", "index joint-splade-idf"),
        *("search joint-splade-doc-idf", "evaluate joint-splade-doc-idf"),
    ]
    smooth = labels(experiment, "splade-smooth", "joint-splade-smooth")
    assert [label for label in smooth if not label.startswith(("search", "evaluate"))] == [
        *("check", "idf", "encode documents", "encode queries-test", "smooth", "words"),
        *("impacts splade-smooth", "impacts joint-splade-smooth", "index splade-smooth", "index joint-splade-smooth"),
    ]
    # What is near is near by the dense encoder, where there is one.
    assert labels(replace(experiment, dense=load_encoder("minilm")), "splade-doc-smooth") == [
        *("check", "idf", "encode documents", "encode dense-documents", "smooth"),
        *("impacts splade-smooth", "index splade-smooth", "search splade-doc-smooth", "evaluate splade-doc-smooth"),
    ]


@pytest.fixture
def adapting(experiment: Experiment, tiny: Path) -> Experiment:
    output = experiment.layout.adapted
    settings = AdaptSettings(collection=str(tiny), base="splade-tiny", dense="minilm", output=output, device="cpu")
    return replace(experiment, adapt=settings, dense=load_encoder("minilm"))


def test_stages_of_adapted_systems(adapting: Experiment) -> None:
    assert labels(adapting, "splade-idf", "bm25") == labels(replace(adapting, adapt=None), "splade-idf", "bm25")
    assert labels(adapting, "joint-splade-idf", "adapted-joint-splade-idf", "adapted-hybrid-dense-minmax") == [
        *("check", "idf", "encode documents", "encode queries-test"),
        *("adapt", "adapted-idf", "encode adapted-documents", "encode adapted-dense-documents"),
        *("encode adapted-queries-test", "encode adapted-dense-queries-test"),
        *("words", "impacts joint-splade-idf", "impacts adapted-joint-splade-idf"),
        *("index joint-splade-idf", "index adapted-joint-splade-idf", "index bm25", "index adapted-dense"),
        *("search joint-splade-idf", "search adapted-joint-splade-idf", "search bm25", "search adapted-dense"),
        "fuse adapted-hybrid-dense-minmax",
        *("evaluate joint-splade-idf", "evaluate adapted-joint-splade-idf", "evaluate adapted-hybrid-dense-minmax"),
    ]
    smooth = labels(adapting, "splade-doc-smooth", "adapted-joint-splade-doc-smooth")
    assert [label for label in smooth if label.startswith(("encode", "smooth", "expand"))] == [
        *("encode documents", "encode dense-documents", "encode adapted-documents", "encode adapted-dense-documents"),
        *("smooth", "smooth adapted", "expand adapted"),
    ]


def test_three_ways_are_balanced_before_they_are_fused(adapting: Experiment) -> None:
    three = "adapted-hybrid-splade-doc-dense-zscore"
    assert labels(adapting, three)[-3:] == ["weights", f"fuse {three}", f"evaluate {three}"]
    assert "weights" not in labels(replace(adapting, weights=(1.0, 1.0, 1.0)), three)
    assert "weights" in labels(replace(adapting, weights=(1.0, 1.0)), three)


def test_adapted_encoders_are_those_of_the_adaptation(adapting: Experiment, checkpoint: Path, tmp_path: Path) -> None:
    adapted = adapting.layout.adapted
    for folder, kind in ((adapted, "splade"), (adapted / "dense", "dense")):
        folder.mkdir(parents=True)
        (folder / "encoder.yaml").write_text(f"checkpoint: {checkpoint}\nkind: {kind}\nmax_query_length: 9\n")
    inputs = Inputs(adapting)
    names = ("adapted-joint-splade-doc", "adapted-dense", "adapted-dense-idf", "splade", "dense")
    configs = [inputs.encoder(parse_system(name)).config for name in names]
    assert [config.name for config in configs] == ["adapted", "dense", "dense", "splade-tiny", "minilm"]
    assert [config.max_query_length for config in configs] == [9, 9, 9, 256, 256]
    assert [config.idf for config in configs[:3]] == [None, None, str(adapting.output / "adapted-idf-dense")]


@pytest.mark.parametrize(
    "changes, systems, message",
    [
        ({"adapt": None}, ["splade", "adapted-splade-idf"], "adapted-splade-idf needs --adapt; --help"),
        ({"adapt": None}, ["adapted-hybrid-splade-dense"], "adapted-splade needs --adapt; --help"),
        ({"dense": None}, ["adapted-dense"], "adapted-dense needs --dense"),
        ({}, ["splade", "bm25"], "--adapt has no effect on these systems: name an adapted one, such as"),
        ({"encoder": load_encoder("minilm")}, ["adapted-dense"], "encoder minilm is dense: use it with --dense"),
    ],
)
def test_an_adaptation_that_cannot_be_is_refused(
    adapting: Experiment, changes: dict, systems: list[str], message: str
) -> None:
    assert_refused(replace(adapting, **changes), systems, message)


def test_passages_that_adaptation_does_not_know_are_refused(adapting: Experiment) -> None:
    changed = replace(adapting, collection=adapting.collection.replace(passages=50))
    assert_refused(changed, ["adapted-splade"], "--passages with --adapt: write `passages` to a YAML file of the")


def test_several_gpus_are_refused_before_any_stage(adapting: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    changed = replace(adapting, adapt=adapting.adapt and adapting.adapt.replace(device="auto"))
    assert_refused(changed, ["adapted-splade"], "one process trains on one GPU, and this one sees 4: choose one")


def test_a_missing_extra_is_named_before_any_stage(adapting: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "PACKAGES", ("no_such_module",))
    assert_refused(adapting, ["adapted-splade"], r"no_such_module not installed: .*\[trainer\]")


@pytest.fixture
def without_weights(checkpoint: Path, tmp_path: Path) -> str:
    """A checkpoint in a format that is refused."""
    copied = Path(shutil.copytree(checkpoint, tmp_path / "pickled"))
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    return str(copied)


def assert_refused(experiment: Experiment, systems: list[str], message: str) -> None:
    """Assert that nothing is written before a run is refused."""
    with pytest.raises(CaiError, match=message):
        run(experiment, systems)
    assert not experiment.output.exists()


@pytest.mark.parametrize(
    "system, message",
    [
        ("dense", "dense needs --dense"),
        ("hybrid-splade-dense-idf-minmax", "dense-idf needs --dense"),
        ("cross-encoder", "cross-encoder needs --cross-encoder"),
        ("hybrid-cross-encoder", "cross-encoder needs --cross-encoder"),
        ("doct5query", "doct5query needs --generated"),
        ("splade-rrf", "no system 'splade-rrf'"),
    ],
)
def test_a_system_without_its_model_is_refused(experiment: Experiment, system: str, message: str) -> None:
    assert_refused(experiment, ["bm25", system], message)


def test_a_dense_encoder_is_no_splade_encoder(experiment: Experiment) -> None:
    dense = replace(experiment, encoder=load_encoder("minilm"))
    assert_refused(dense, ["bm25", "splade"], "encoder minilm is dense: use it with --dense")


def test_idf_of_power_0_is_refused_where_idf_is_asked_for(experiment: Experiment) -> None:
    plain = replace(experiment, encoder=experiment.encoder.replace(idf_power=0.0))
    assert_refused(plain, ["splade", "splade-doc-idf"], "has idf_power 0: splade-doc-idf would be unweighted")
    require(Inputs(plain), [parse_system("splade")])


@pytest.mark.parametrize("field, reads", [("max_document_length", "documents"), ("max_query_length", "queries")])
def test_more_tokens_than_positions_are_refused(experiment: Experiment, field: str, reads: str) -> None:
    """Which was an error in the middle of the run."""
    long = {field: 1024}
    splade, dense = experiment.encoder.replace(**long), load_encoder("minilm").replace(kind="dense", **long)
    message = f"has 512 positions, too few for {field} 1024: set it to 512 at most"
    assert_refused(replace(experiment, encoder=splade), ["bm25", "joint-splade-idf"], message)
    assert_refused(replace(experiment, dense=dense), ["bm25", "dense"], message)
    assert_refused(replace(experiment, encoder=splade.replace(overlap=64)), ["splade"], message)
    bow = replace(experiment, encoder=splade)
    if reads == "queries":  # for which bags of word pieces need no model
        require(Inputs(bow), [parse_system("splade-doc")])
    else:
        assert_refused(bow, ["splade-doc"], message)


@pytest.mark.parametrize("system", ["splade", "dense", "cross-encoder"])
def test_a_device_that_does_not_exist_is_refused(experiment: Experiment, system: str, checkpoint: Path) -> None:
    device = f"cuda:{torch.cuda.device_count()}"
    settings = {"device": device, "dense": load_encoder("minilm"), "cross_encoder": str(checkpoint)}
    assert_refused(replace(experiment, **settings), ["bm25", system], f"no device '{device}'")
    require(Inputs(replace(experiment, **settings)), [parse_system("bm25")])


@pytest.mark.parametrize("system", ["splade-idf", "hybrid-splade-dense", "dense-idf", "cross-encoder"])
def test_a_checkpoint_without_safetensors_is_refused(experiment: Experiment, system: str, without_weights: str) -> None:
    pickled = load_encoder(without_weights)
    settings: dict = {"cross_encoder": without_weights, "dense": pickled.replace(kind="dense")}
    if system == "splade-idf":
        settings["encoder"] = pickled
    assert_refused(replace(experiment, **settings), ["bm25", system], r"pickled has no \*\.safetensors")


@pytest.mark.parametrize("setting", ["encoder", "dense", "cross_encoder", "generated"])
def test_a_folder_that_does_not_exist_is_refused(experiment: Experiment, setting: str, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    value = nowhere if setting in ("cross_encoder", "generated") else load_encoder(nowhere)
    systems = {"encoder": "splade", "dense": "dense", "cross_encoder": "cross-encoder", "generated": "doct5query"}
    message = f"no checkpoint folder {nowhere}|no collection '{nowhere}'"
    assert_refused(replace(experiment, **{setting: value}), ["bm25", systems[setting]], message)


def test_an_output_that_is_a_file_is_refused(experiment: Experiment) -> None:
    experiment.output.write_text("mine")
    with pytest.raises(CaiError, match="run is a file: choose a folder for --output"):
        run(experiment, ["bm25"])
    below = replace(experiment, output=experiment.output / "below")
    with pytest.raises(CaiError, match=r"run/below cannot be written: .*/run is a file; choose another --output"):
        run(below, ["bm25"])
    assert experiment.output.read_text() == "mine"


def test_a_folder_of_other_files_is_refused(experiment: Experiment) -> None:
    experiment.output.mkdir()
    (experiment.output / "thesis.tex").write_text("mine")
    with pytest.raises(CaiError, match="run has files that this command has not made"):
        run(experiment, ["bm25"])
    assert [path.name for path in experiment.output.iterdir()] == ["thesis.tex"]


def test_a_broken_collection_stops_it_before_anything_is_made(broken: Path, experiment: Experiment) -> None:
    with (broken / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "d13", "text": \n')
    collection = experiment.collection.replace(source=str(broken))
    with pytest.raises(CaiError, match=f"{broken}/corpus.jsonl:13: not JSON"):
        run(replace(experiment, collection=collection), ["bm25", "splade"])
    assert [path.name for path in experiment.output.iterdir()] == [".lock"]


def test_a_second_run_in_the_folder_is_refused(experiment: Experiment) -> None:
    experiment.output.mkdir()
    for _ in range(2):  # it is given back
        with locked(experiment.layout.lock, experiment.output, {}):
            with pytest.raises(CaiError, match=f"{experiment.output} is being written by process {os.getpid()} on"):
                run(experiment, ["bm25"])
            assert [path.name for path in experiment.output.iterdir()] == [".lock"]


def test_shards_of_another_process_are_waited_for(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose folder is unfinished ends the run, as where another process still encodes."""
    stage = stages.encode

    def a_half(*arguments: object) -> Path:
        return stage(*arguments, 0, 2)  # type: ignore[arg-type]

    monkeypatch.setattr(stages, "encode", a_half)
    monkeypatch.setattr("cai_pyserini.encode.encode.SHARD", 5)
    with pytest.raises(CaiError, match="encode documents is unfinished: another process has yet to encode its shards"):
        run(experiment, ["splade"])
    assert not experiment.layout.results.exists()
