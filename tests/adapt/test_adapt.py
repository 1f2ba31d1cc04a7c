"""adapt on the tiny collection, with few steps: what it says and makes, the mean of weights, and interruptions."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from scipy.sparse import diags_array

from cai_pyserini.adapt.__main__ import main
from cai_pyserini.adapt.choice import Candidate, Decision
from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.idf.idf import Idf
from cai_pyserini.models.splade import Splade
from cai_pyserini.trainer.training import load_model
from tests.conftest import json_lines
from tests.trainer.conftest import weights

STEPS = "max_steps: 4\nbatch_size: 4\nwarmup: 0.25\nsave_seconds: 0\n"


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
def adapted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    adapted = Adapted(tiny, tmp_path_factory.mktemp("adapt"))
    adapted.run()
    return adapted


@pytest.mark.slow
def test_it_says_what_is_decided(adapted: Adapted, tiny: Path) -> None:
    decision, end = adapted.printed.splitlines()
    assert re.fullmatch(
        r"(adapted: |not adapted: the encoders are used as before, since no candidate gains significantly in each "
        r"recommended system; )(weight 0\.[48] of the trained SPLADE)?( and )?(weight 0\.\d+ of the projection)?"
        r"( comes closest)? \(sources of \d+ pseudo queries of \d+ documents found without their words; "
        r"gains in nDCG@10: hybrid-splade-idf-dense-zscore [+-]\S+ ± \S+, joint-splade-idf-smooth .*\)",
        decision,
    )
    assert artifact.require(adapted.output, "adapt").stats["decision"] == [decision]
    assert end == f"{adapted.output}: ./run_beir.sh {tiny} --encoder {adapted.output}"


@pytest.mark.slow
def test_a_dry_run_shows_what_would_run(
    adapted: Adapted, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*flags: str) -> dict[str, str]:
        main([*flags, "--dry-run"])
        lines = capsys.readouterr().out.splitlines()
        return {line[:53].strip(): line[53:] for line in lines}

    assert plan(*Adapted(tiny, tmp_path).flags) == {
        "adapt: splade vectors": "must run: missing or unfinished",
        "adapt: dense vectors": "must run: missing or unfinished",
        "adapt: pseudo queries": "must run: after adapt: splade vectors",
        "adapt: projection": "must run: after adapt: splade vectors",
        "adapt: contrast": "must run: after adapt: pseudo queries",
        "adapt: distilled": "must run: after adapt: pseudo queries",
        "adapt": "must run: after adapt: splade vectors",
    }
    assert not (tmp_path / "model.steps").exists()
    assert plan(*adapted.flags) == {"adapt": "up to date"}
    last = plan(*adapted.flags, "--weight", "0.5")
    assert last.pop("adapt") == "must run: weight default → 0.5" and set(last.values()) == {"up to date"}


@pytest.mark.slow
@pytest.mark.parametrize("weight, projection", [(0.4, 0.0), (0.0, 0.25)])
def test_what_was_decided_is_what_is_written(
    adapted: Adapted,
    weight: float,
    projection: float,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean of old and new weights, or a projection; what is not adapted stays as it was."""

    def decide(values: dict[Candidate, object], *_: object) -> Decision:
        assert len(values) == 6 and min(values) == (0, 0)
        return Decision(Candidate(weight, projection), "why", [])

    monkeypatch.setattr("cai_pyserini.adapt.adapt.decide", decide)
    output, steps = tmp_path / "model", tmp_path / "model.steps"
    shutil.copytree(adapted.folder / "model.steps", steps)
    main([*adapted.flags[:-1], str(output)])
    stats = artifact.require(output, "adapt").stats
    assert (stats["weight"], stats["projection"], stats["decision"]) == (weight, projection, ["why"])
    folders = (checkpoint, steps / "contrast", steps / "distilled", output)
    old, contrast, distilled, mean = (load_model(folder).state_dict() for folder in folders)
    for new in (contrast, distilled):
        assert any(not torch.equal(old[name], new[name]) for name in old)
    for name in old:
        torch.testing.assert_close(
            mean[name], (1 - weight) * old[name] + weight / 2 * (contrast[name] + distilled[name])
        )
        assert weight or torch.equal(mean[name], old[name])
    config = load_encoder(str(output / "dense"))
    assert bool(config.projection) == bool(projection)


@pytest.mark.slow
def test_it_is_an_encoder_with_the_idf_of_the_collection(adapted: Adapted, tiny: Path) -> None:
    """Its weighted vectors rank a relevant document first, except for q4 and d8, which share no word with one."""
    config = load_encoder(str(adapted.output))
    assert {path.name for path in adapted.output.iterdir()} == {
        "config.json", "dense", "encoder.yaml", "idf", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    idf = Idf.load(Path(config.idf or ""))
    assert idf.documents == 12
    collection = BeirFolder(tiny, "tiny")
    ids, texts = zip(*collection.documents(), strict=True)
    topics, qrels = collection.topics("test"), collection.qrels("test")
    model = Splade(Path(config.checkpoint), "cpu")
    documents = model.encode(texts, config.max_document_length) @ diags_array(idf.weights(config.idf_power))
    scores = (model.encode(list(topics.values()), config.max_query_length) @ documents.T).toarray()
    found = {topic: ids[int(best)] for topic, best in zip(topics, scores.argmax(1), strict=True)}
    assert {topic for topic in topics if qrels[topic].get(found[topic], 0) == 0} <= {"q4", "d8"}


@pytest.mark.slow
def test_the_teacher_prefers_the_document_of_a_title(adapted: Adapted) -> None:
    lines = json_lines(adapted.folder / "model.steps" / "examples.jsonl")
    assert all(len(line["margins"]) == len(line["negatives"]) == 4 for line in lines)
    assert sum(min(line["margins"]) > 0 for line in lines) > len(lines) / 2


@pytest.mark.slow
def test_another_weight_trains_nothing_again(adapted: Adapted) -> None:
    steps = adapted.folder / "model.steps"
    before = {path: path.stat().st_mtime_ns for path in steps.rglob("*")}
    other = adapted.folder / "other"
    steps.rename(adapted.folder / "other.steps")  # another output keeps its own steps
    try:
        main([*adapted.flags[:-1], str(other), "--weight", "0.5"])
    finally:
        (adapted.folder / "other.steps").rename(steps)
    assert {path: path.stat().st_mtime_ns for path in steps.rglob("*")} == before
    assert artifact.require(other, "adapt").stats["weight"] == 0.5  # which nothing decides
    name = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(weights(other)[name], weights(adapted.output)[name])


@pytest.mark.slow
def test_killed_in_its_second_training_it_continues_there(adapted: Adapted, tiny: Path, tmp_path: Path) -> None:
    killed = Adapted(tiny, tmp_path)
    call = [sys.executable, "-m", "cai_pyserini.adapt", *killed.flags]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    steps = tmp_path / "model.steps"
    work = steps / "distilled" / "training"
    while process.poll() is None and not any(work.glob("checkpoint-*/trainer_state.json")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not killed.output.exists()
    finished = [steps / "examples.jsonl", steps / "contrast" / "manifest.json"]
    made = [path.stat().st_mtime_ns for path in finished]
    killed.run()
    assert [path.stat().st_mtime_ns for path in finished] == made
    one, other = weights(killed.output), weights(adapted.output)
    assert all(torch.equal(one[name], other[name]) for name in other)
    shutil.rmtree(steps)
    killed.run()
    assert killed.printed.count("\n") == 1 and not steps.exists()  # up to date: the steps need not be


@pytest.mark.slow
def test_the_papers_recipe_from_a_training_file(
    tiny: Path, triples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pretrain.yaml").write_text("max_steps: 3\nbatch_size: 4\nmax_length: 32\n")
    (tmp_path / "splade.yaml").write_text("epochs: 0.5\nbatch_size: 4\n")
    (tmp_path / "vocabulary.yaml").write_text("increment: 20\nmax_steps: 1\n")
    flags = [f"--{name}={tmp_path / name}.yaml" for name in ("vocabulary", "pretrain", "splade")]
    flags += ["--data", str(triples), "--device", "cpu", "--collection", str(tiny), "--base", "splade-tiny"]
    main([*flags, "--output", str(tmp_path / "model")])
    made = [line[:53].strip() for line in capsys.readouterr().err.splitlines() if line.startswith("adapt")]
    assert made == ["adapt: vocabulary", "adapt: pretraining", "adapt: splade", "adapt"]
    steps = tmp_path / "model.steps"
    assert len(weights(steps / "vocabulary")["bert.embeddings.word_embeddings.weight"]) == 30522 + 20
    assert artifact.require(steps / "splade", "trainer splade").stats["steps"] == 3  # half of 24 lines
    trained, output = weights(steps / "splade"), weights(tmp_path / "model")
    assert all(torch.equal(trained[name], output[name]) for name in trained)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--data", "x.jsonl", "--dense", "minilm"], "--data is the paper's recipe, which has no --dense"),
        (["--data", "x.jsonl", "--weight", "0.5"], "--data is the paper's recipe, which has no --weight"),
        (["--data", "x.jsonl", "--queries", "9"], "--data is the paper's recipe, which has no --queries"),
        (["--data", "x.jsonl", "--vectors", "x"], "--data is the paper's recipe, which has no --vectors"),
        (["--distil", "x.yaml"], "--distil needs a teacher: --dense"),
        (["--vocabulary", "x.yaml"], "--vocabulary is a step of the paper's recipe, which needs --data"),
        (["--pretrain", "x.yaml"], "--pretrain is a step of the paper's recipe, which needs --data"),
        (["--weight", "1.5"], "--weight: 1.5 should be less than or equal to 1"),
        (["--weight", "0"], "--weight: 0.0 should be greater than 0"),
        (["--queries", "0"], "--queries: 0 should be greater than or equal to 1"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--collection", "hpo", "--base", "splade-tiny", "--output", str(tmp_path / "model"), *flags])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, yaml, message",
    [
        (["--splade"], "base: other\n", "steps.yaml: base cannot be set here"),
        (["--splade"], "batch_size: 0\n", "steps.yaml: batch_size: 0 should be greater than or equal to 1"),
        (
            ["--data", "triples", "--vocabulary"],
            "steps: 3\n",
            "steps.yaml: unknown key steps; known keys: base, config, corpus",
        ),
        (["--data"], None, "no file "),
        (["--data"], '{"query": "a", "positive": "b"}\n', "steps.yaml:1: 0 negatives, fewer than the 1"),
        (["--splade"], "negatives: 5\n", "contrast: negatives 5, but pseudo queries have 4 each"),
        (["--splade"], "loss: margin-mse\n", "contrast: loss margin-mse needs a teacher: --dense"),
        (["--splade"], "max_document_length: 1024\n", "has 512 positions, too few for --max-document-length 1024"),
        (
            ["--dense", "minilm", "--distil"],
            "max_document_length: 1024\n",
            "has 512 positions, too few for --max-document-length 1024",
        ),
        (
            ["--data", "triples", "--pretrain"],
            "max_length: 1024\n",
            "has 512 positions, too few for max_length of pretraining 1024",
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


def test_a_folder_with_other_files_is_refused_before_any_work(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").touch()
    with pytest.raises(CaiError, match="files that this command has not made"):
        main(["--collection", str(tiny), "--base", "splade-tiny", "--output", str(tmp_path / "model")])
    assert not (tmp_path / "model.steps").exists()
