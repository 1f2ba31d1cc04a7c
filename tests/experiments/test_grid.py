"""Experiments: the runs that settings ask for, encoders that are trained first, and what is refused before."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from cai_pyserini.cli.run import main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.grid import Grid
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunSettings
from tests.conftest import DATA, json_lines

DOCUMENTED = Path("docs/how-to/experiments.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
CORPUS = f"{DATA}/tiny/corpus.jsonl"
TRAINED = {"mine": [{"splade": {"base": "splade-tiny", "data": CORPUS}}]}


@pytest.mark.parametrize(
    "changes, folders",
    [
        ({}, ["runs/tiny/splade-tiny"]),
        ({"output": "out"}, ["out"]),
        ({"output": "out", "seed": [1, 2]}, ["out"]),  # nothing is trained
        ({"output": "out", "seed": 7, "adapt": True}, ["out"]),
        ({"collections": ["tiny", "de"]}, ["runs/tiny/splade-tiny", "runs/de/splade-tiny"]),
        ({"collections": ["tiny", "de"], "output": "out"}, ["out/tiny", "out/de"]),
        ({"encoder": ["splade-tiny", "org/other"]}, ["runs/tiny/splade-tiny", "runs/tiny/other"]),
        ({"seed": [1, 2], "adapt": True}, ["runs/tiny/splade-tiny-seed-1", "runs/tiny/splade-tiny-seed-2"]),
        ({"train": TRAINED}, ["runs/tiny/mine-seed-42"]),
        (
            {"train": TRAINED, "encoder": ["splade-tiny", "mine"], "seed": [1, 2], "output": "out"},
            ["out/tiny/splade-tiny", "out/tiny/mine-seed-1", "out/tiny/mine-seed-2"],
        ),
        # The encoder is not a trained dense one, but the default.
        (
            {"train": {"tuned": [{"dense": {"base": "minilm", "data": CORPUS}}]}, "dense": "tuned"},
            ["runs/tiny/splade-tiny-seed-42"],
        ),
        # No seed shapes it.
        ({"train": {"mine": [{"vocabulary": {"base": "b", "corpus": ["hpo"]}}]}, "seed": [1, 2]}, ["runs/tiny/mine"]),
    ],
)
def test_runs_and_their_folders(changes: dict[str, Any], folders: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Faults: an encoder that nothing trains is run for each seed, or several seeds are ignored in silence; two runs
    share a folder; a run moves."""
    collections = [f"{DATA}/{name}.yaml" for name in changes.pop("collections", ["tiny"])]
    if "output" in changes:
        changes["output"] = Path(changes["output"])
    cells = Grid(RunSettings(collections=collections, **changes)).cells
    default = "runs/{}/{}"
    assert [str(c.settings.output or default.format(c.config.name, c.variant.encoder)) for c in cells] == folders
    is_unseeded = all(cell.variant.seed is None for cell in cells)
    assert ("nothing is trained that depends on the seed" in caplog.text) == (is_unseeded and "seed" in changes)


STEPS = "systems: [bm25]\ntrain:\n  mine:\n    - "


@pytest.mark.parametrize(
    "text, message",
    [
        ("sytems: [bm25]", r"e\.yaml:2: unknown key sytems; did you mean systems\?"),
        ("config: other.yaml", r"e\.yaml:2: config cannot be set in a file"),
        ("systems: [bm26]", "^tiny: no system 'bm26'"),
        ("systems: [bm25]\ndepth: ten", r"e\.yaml:3: depth: 'ten' should be a valid integer"),
        ("seed: [1, 1]", "seed 1 occurs twice"),
        ("seed: [-1]", "seed -1 is below 0"),
        ("encoder: [splade-tiny, org/splade-tiny]", "two encoders are named splade-tiny"),
        (f"{STEPS}splade: {{}}", r"e\.yaml:5: data is missing"),
        (f"{STEPS}splade: {{base: b, data: d, epoch: 2}}", r"e\.yaml:5: unknown key epoch; did you mean epochs\?"),
        (f"{STEPS}splade: {{base: b, data: nowhere.jsonl}}", r"e\.yaml:5: data: no file nowhere\.jsonl"),
        (f"{STEPS}splade: {{output: b}}", r"e\.yaml:5: output cannot be set here"),
        (f"{STEPS}generate: {{}}", r"e\.yaml:5: a step is one of vocabulary, pretrain, "),
        (f"{STEPS}mine: {{collection: hpo, trec: [e.yaml]}}", r"e\.yaml:4: the last step has to train mine"),
        (STEPS.replace("mine", "minilm") + "splade: {}", r"e\.yaml:4: minilm is an encoder already"),
        (STEPS.replace("mine", "../mine") + "splade: {}", r"e\.yaml:4: \.\./mine is an encoder already, or no name"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written: the fault is an error in the last run of a night."""
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(f"collections: [{DATA}/tiny.yaml, {DATA}/de.yaml]\n{text}\n")
    with pytest.raises((CaiError, SystemExit)) as error:
        main(["--config", "e.yaml"])
    assert re.search(message, f"{error.value}\n{capsys.readouterr().err}")
    assert [*tmp_path.iterdir()] == [tmp_path / "e.yaml"]


@pytest.mark.slow
def test_the_documented_experiment(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], later: Callable[[], None]
) -> None:
    """With a small collection and few steps. Faults: a seed that changes nothing; work that is done twice."""
    texts = [document["text"] for document in json_lines(tiny / "corpus.jsonl") if document["text"].strip()]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"query": text[:20], "positive": text}) + "\n" for text in texts))
    experiment = yaml.safe_load(DOCUMENTED)
    vocabulary, pretrain, splade = experiment["train"]["adalm"]
    vocabulary["vocabulary"] |= {"corpus": [str(tiny)], "increment": 20}
    pretrain["pretrain"] |= {"corpus": [str(tiny)], "max_length": 32, "max_steps": 1, "batch_size": 4}
    splade["splade"] |= {"data": str(pairs), "max_steps": 1, "batch_size": 4}
    experiment |= {"collections": [f"{DATA}/tiny.yaml"], "systems": ["bm25", "splade"], "device": "cpu"}
    experiment |= {"output": str(output := tmp_path / "out"), "seed": [1, 2]}

    def write() -> None:
        (tmp_path / "e.yaml").write_text(yaml.safe_dump(experiment))

    def outdated() -> list[str]:
        main(["--config", str(tmp_path / "e.yaml"), "--dry-run"])
        lines = [line for line in capsys.readouterr().out.splitlines() if "up to date" not in line]
        return [line.partition("  ")[0] for line in lines if "must run" in line]

    write()
    steps = [f"train adalm-seed-{seed}: {name}" for seed in (1, 2) for name in ("pretrain", "splade")]
    assert [name for name in outdated() if "train" in name] == ["train adalm: vocabulary", *steps]
    assert not output.exists()
    main(["--config", str(tmp_path / "e.yaml")])
    printed = capsys.readouterr()
    assert printed.out.endswith(f"\n\n{output}/summary.md\n")
    folders = ["splade-tiny", "adalm-seed-1", "adalm-seed-2"]
    runs = [RunFolder(output / "tiny" / folder) for folder in folders]
    assert [run.results.encoder for run in runs] == folders
    assert list(runs[0].results.systems["splade"])[:3] == experiment["measures"]
    weights = [load_file(output / "models" / folder / "model.safetensors") for folder in folders[1:]]
    assert weights[0].keys() == weights[1].keys()
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])

    later()
    main(["--config", str(tmp_path / "e.yaml")])
    assert capsys.readouterr().err == "" and outdated() == []
    shutil.rmtree(output / "models" / "adalm-seed-2")
    pretrain["pretrain"]["max_steps"] = 2
    write()
    assert outdated() == [*steps, "all steps", "all steps"]
