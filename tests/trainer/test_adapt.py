"""adapt on the tiny collection, with few steps: its output, and what it refuses before any work."""

import re
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from cai_pyserini.cli.adapt import main
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf, compute
from cai_pyserini.trainer.adapt import Adaptation
from cai_pyserini.trainer.choice import Candidate, Decision
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.trainer.training import load_model
from tests.conftest import DATA, json_lines

STEPS = "max_steps: 4\nbatch_size: 4\nwarmup: 0.25\n"


class Adapted:
    """An adaptation with a dense teacher, its folder and what it printed."""

    printed = ""

    def __init__(self, tiny: Path, folder: Path):
        self.folder = folder
        self.output = folder / "model"
        (folder / "steps.yaml").write_text(STEPS)
        self.flags = ["--collection", str(tiny), "--base", "splade-tiny", "--dense", "minilm"]
        self.flags += [f"--{name}={folder / 'steps.yaml'}" for name in ("splade", "distil")]
        self.flags += ["--device", "cpu", "--output", str(self.output)]

    def run(self) -> None:
        with redirect_stdout(StringIO()) as printed:
            main(self.flags)
        self.printed = printed.getvalue()


@pytest.fixture(scope="module")
def adapted(tiny: Path, adapted_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """An adaptation with the vectors and trainings of another one."""
    adapted = Adapted(tiny, tmp_path_factory.mktemp("adapt"))
    shutil.copytree(adapted_run / "adapted.steps", steps := adapted.folder / "model.steps")
    for name in ("documents", "dense-documents"):
        shutil.copytree(adapted_run / "vectors" / name, steps / "vectors" / name)
    adapted.run()
    return adapted


@pytest.mark.slow
def test_without_evidence_the_encoders_stay_as_they_were(adapted: Adapted, tiny: Path, checkpoint: Path) -> None:
    """Twelve documents are too few for evidence."""
    decision, end = adapted.printed.splitlines()
    assert re.fullmatch(
        r"not adapted: the encoders are used as before, since no candidate gains significantly in each recommended "
        r"system; weight 0\.\d+ of the (trained SPLADE|projection)( and weight 0\.\d+ of the projection)? comes "
        r"closest \(\d+ pseudo queries from \d+ documents without the queries' words; gains in nDCG@10: "
        r"trio [+-]\S+ ± inf, joint-near .*\)",
        decision,
    )
    stats = artifact.require(adapted.output, "adapt").stats
    assert stats["decision"] == [decision] and len(stats["gains"]) == 5
    assert end == f"{adapted.output}: cai-pyserini run {tiny} --encoder {adapted.output}"
    old, new = (load_model(folder).state_dict() for folder in (checkpoint, adapted.output))
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert load_encoder(str(adapted.output / "dense")).projection is None
    config = load_encoder(str(adapted.output))
    assert {path.name for path in adapted.output.iterdir()} == {
        "config.json", "dense", "encoder.yaml", "idf", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert Idf.load(Path(config.idf or "")).documents == 12
    vectors = EncoderModel(config, "cpu").load("documents").encode(["short fingers"], config.max_document_length)
    assert vectors.nnz > 2
    lines = json_lines(adapted.folder / "model.steps" / "examples.jsonl")
    assert all(len(line["margins"]) == len(line["negatives"]) == 4 for line in lines)
    # The teacher prefers the document of a title.
    assert sum(min(line["margins"]) > 0 for line in lines) > len(lines) / 2


@pytest.mark.slow
def test_a_dry_run_shows_what_would_run(
    adapted: Adapted, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*flags: str) -> dict[str, str]:
        main([*flags, "--dry-run"])
        lines = capsys.readouterr().out.splitlines()
        return {line[:53].strip(): line[53:] for line in lines}

    assert plan(*Adapted(tiny, tmp_path).flags) == {
        "adapt: splade vectors": "must run: missing",
        "adapt: dense vectors": "must run: missing",
        "adapt: pseudo queries": "must run: after adapt: splade vectors",
        "adapt: projection": "must run: after adapt: splade vectors",
        "adapt: contrast": "must run: after adapt: pseudo queries",
        "adapt: distilled": "must run: after adapt: pseudo queries",
        "adapt": "must run: after adapt: splade vectors",
    }
    assert not (tmp_path / "model.steps").exists()
    assert plan(*adapted.flags) == {"adapt": "up to date"}
    last = plan(*adapted.flags, "--weight", "0.5")
    assert last.pop("adapt") == "must run: weight 0.5, was unset" and set(last.values()) == {"up to date"}


@pytest.mark.slow
def test_what_was_decided_is_what_is_written(
    adapted: Adapted, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of old and new weights, and a projection; no earlier step runs again, or is needed afterwards."""

    def decide(values: dict[Candidate, object], *_: object) -> Decision:
        assert len(values) == 6 and min(values) == (0, 0)
        return Decision(Candidate(0.4, 0.25), "why", [])

    monkeypatch.setattr("cai_pyserini.trainer.adapt.decide", decide)
    output, steps = tmp_path / "model", tmp_path / "model.steps"
    shutil.copytree(adapted.folder / "model.steps", steps)
    before = {path: path.stat().st_mtime_ns for path in steps.rglob("*")}
    main([*adapted.flags[:-1], str(output)])
    assert {path: path.stat().st_mtime_ns for path in steps.rglob("*")} == before
    stats = artifact.require(output, "adapt").stats
    assert (stats["weight"], stats["projection"], stats["decision"]) == (0.4, 0.25, ["why"])
    folders = (checkpoint, steps / "contrast", steps / "distilled", output)
    old, contrast, distilled, mean = (load_model(folder).state_dict() for folder in folders)
    for new in (contrast, distilled):
        assert any(not torch.equal(old[name], new[name]) for name in old)
    for name in old:
        torch.testing.assert_close(mean[name], 0.6 * old[name] + 0.2 * (contrast[name] + distilled[name]))
    learned = load_file(steps / "projection.safetensors")["weight"]
    projection = load_file(str(load_encoder(str(output / "dense")).projection))["weight"]
    torch.testing.assert_close(projection, torch.eye(len(learned)) + 0.25 * learned)
    shutil.rmtree(steps)
    main([*adapted.flags[:-1], str(output)])
    assert not steps.exists()


@pytest.mark.parametrize(
    "flags, yaml, message",
    [
        (["--splade"], "base: other\n", "steps.yaml: base cannot be set here"),
        (["--splade"], "max_step: 3\n", "steps.yaml:1: unknown key max_step; did you mean max_steps?"),
        (["--splade"], None, "no file "),
        (["--splade"], "negatives: 5\n", "contrast: negatives 5, but pseudo queries have 4 each"),
        (["--splade"], "loss: margin-mse\n", "contrast: loss margin-mse needs a teacher: the setting dense"),
        (
            ["--dense", "minilm", "--distil"],
            "max_document_length: 1024\n",
            "has 512 positions, too few for max_document_length 1024",
        ),
    ],
)
def test_files_that_are_wrong_are_refused_before_any_work(
    flags: list[str], yaml: str | None, message: str, tiny: Path, tmp_path: Path
) -> None:
    if yaml is not None:
        (tmp_path / "steps.yaml").write_text(yaml)
    call = ["--collection", str(tiny), "--base", "splade-tiny", "--output", str(tmp_path / "model")]
    with pytest.raises(CaiError) as caught:
        main([*call, *flags, str(tmp_path / "steps.yaml")])
    assert message in str(caught.value)
    assert not (tmp_path / "model.steps").exists()


def test_what_shapes_an_adaptation_is_in_its_recipe(tiny: Path, tmp_path: Path) -> None:
    """Settings of the encoders that act on queries or impacts, of the collection and of the simulation, and an IDF that
    a step's file names by its path, whose contents can change."""
    idf = compute(load_collection(str(tiny)), load_encoder("splade-tiny"), tmp_path / "idf")
    base, dense = ({"checkpoint": load_encoder(name).checkpoint} for name in ("splade-tiny", "minilm"))
    files = {"c": {"source": str(tiny)}, "s": base, "d": dense, "step": {"idf": str(idf)}}

    def digest(file: str = "", settings: dict[str, Any] | None = None, **flags: Any) -> str:
        for name, values in files.items():
            more = settings or {} if name == file else {}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values | more))
        collection, base, dense, splade = (str(tmp_path / f"{name}.yaml") for name in files)
        adaptation = AdaptSettings(
            collection=collection, base=base, dense=dense, splade=Path(splade), output=tmp_path / "x", **flags
        )
        return artifact.digest(Adaptation(adaptation).recipe())

    recipes = [
        digest(),
        digest("c", {"k1": 1.2}),
        digest("c", {"hits": 50}),
        digest("s", {"keep_terms": 30}),
        digest("s", {"keep_query_mass": 0.6, "rescore": 9}),
        digest("d", {"max_query_length": 32}),
        digest(alpha=2.0),
        digest(weights=[1.0, 1.0, 1.0]),
        digest(depth=50),
    ]
    assert len(set(recipes)) == len(recipes) and digest() == recipes[0]
    compute(load_collection(str(DATA / "de.yaml")), load_encoder("splade-tiny"), idf)
    assert digest() != recipes[0]
