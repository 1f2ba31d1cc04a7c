"""GPL on the tiny collection, with local models with random weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.cli.train import main
from cai_pyserini.core.artifact import manifest_path
from cai_pyserini.core.config import EncoderConfig, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments import gpl
from cai_pyserini.experiments.run_folder import RunFolder
from tests.conftest import json_lines

TRAIN = "max_steps: 3\nbatch_size: 4\nwarmup: 0.3\nlog_steps: 1\n"


@pytest.fixture
def flags(tiny: Path, generator: Path, cross_encoder: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "train.yaml").write_text(TRAIN)
    (tmp_path / "generate.yaml").write_text("max_query_length: 6\n")
    flags = f"--collection {tiny} --base splade-tiny --generator {generator} --cross-encoder {cross_encoder}"
    flags += f" --retrievers minilm --train {tmp_path}/train.yaml --generate {tmp_path}/generate.yaml"
    return f"{flags} --output {tmp_path}/gpl --device cpu".split()


@pytest.mark.slow
def test_interrupted_between_its_steps_it_continues(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the second retriever, and before the training."""
    steps = tmp_path / "gpl.steps"
    run = steps / "runs" / "splade-tiny" / "runs" / "splade.trec"
    done = [steps / "generated", run, steps / "negatives.jsonl", steps / "train.jsonl"]
    search = gpl._search

    def first(generated: Path, encoder: EncoderConfig, *where: Any) -> Path:
        return search(generated, encoder, *where) if encoder.kind == "splade" else interrupt()

    def interrupt(*_: object) -> Path:
        raise InterruptedError

    before: list[int] = []
    for function, replacement in (("_search", first), ("train", interrupt)):
        with monkeypatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(gpl, function, replacement)
            main(["gpl", *flags])
        before += [manifest_path(step).stat().st_mtime_ns for step in done[:2]]
    assert before[:2] == before[2:]
    for encoder in ("splade-tiny", "minilm"):  # whose searches are runs as beir's are, locked and with results
        assert RunFolder(steps / "runs" / encoder).results.collection == "generated"
    times = [manifest_path(step).stat().st_mtime_ns for step in done]
    main(["gpl", *flags])
    assert [manifest_path(step).stat().st_mtime_ns for step in done] == times  # nothing was done twice
    log = json.loads((tmp_path / "gpl" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [1, 2, 3]
    assert load_encoder(str(tmp_path / "gpl")).max_document_length == 350
    lines = json_lines(steps / "train.jsonl")
    assert all(len(line["margins"]) == len(line["negatives"]) == 1 for line in lines)
    mined = {line["query"] for line in json_lines(steps / "negatives.jsonl")}
    assert {line["query"] for line in lines} == mined
    assert {path.name for path in (steps / "runs").iterdir()} == {"splade-tiny", "minilm"}
    trained = (tmp_path / "gpl" / "model.safetensors").stat().st_mtime_ns
    main(["gpl", *flags])
    assert (tmp_path / "gpl" / "model.safetensors").stat().st_mtime_ns == trained
    assert capsys.readouterr().out.endswith(f"cai-pyserini run {flags[1]} --encoder {tmp_path / 'gpl'}\n")


def test_retrievers_that_are_named_alike_have_runs_of_their_own(flags: list[str], tmp_path: Path) -> None:
    """The fault: both had the same run, that of the last one."""
    named: list[EncoderConfig] = []
    for folder, length in (("a", 32), ("b", 64), ("c", 64)):
        (tmp_path / folder).mkdir()
        config = load_encoder("splade-tiny").replace(name="", max_query_length=length)
        (tmp_path / folder / "model.yaml").write_text(encoder_yaml(config, tmp_path / folder))
        named.append(load_encoder(str(tmp_path / folder / "model.yaml")))
    names = [*gpl._by_name([named[0], named[1], load_encoder("minilm")])]
    assert len(set(names)) == 3 and all(name.startswith("model-") for name in names[:2]) and names[2] == "minilm"
    assert [*gpl._by_name(named[:1])] == ["model"]
    for twice in (named[1:], [named[0], named[0]]):
        with pytest.raises(CaiError, match="is given twice, or is the base: leave it out"):
            gpl._by_name(twice)
    with pytest.raises(CaiError, match="is given twice"):
        main(["gpl", *flags, "--retrievers", "splade-tiny"])
    assert not (tmp_path / "gpl.steps").exists()


def test_a_cross_encoder_that_is_none_is_refused_before_any_work(flags: list[str], tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="is not a checkpoint"):
        main(["gpl", *flags, "--cross-encoder", str(tmp_path)])
    assert not (tmp_path / "gpl.steps").exists()


@pytest.mark.parametrize(
    "line, message",
    [
        ("loss: in-batch", r"train\.yaml: loss cannot be set here"),
        ("max_document_length: 1024", "has 512 positions, too few for max_document_length 1024"),
    ],
)
def test_settings_of_the_training_are_checked_before_any_work(
    line: str, message: str, flags: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.yaml").write_text(f"{TRAIN}{line}\n")
    with pytest.raises(CaiError, match=message):
        main(["gpl", *flags])
    assert not (tmp_path / "gpl.steps").exists()


@pytest.mark.slow
def test_queries_with_too_few_negatives_are_refused_before_any_is_scored(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(TRAIN + "negatives: 20\n")  # of 12 documents
    with pytest.raises(CaiError, match=r"negatives\.jsonl:1: \d+ negatives, fewer than the 20 that an example needs"):
        main(["gpl", *flags])
    assert not list((tmp_path / "gpl.steps").glob("*train.jsonl*"))
