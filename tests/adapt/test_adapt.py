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
from cai_pyserini.adapt.choice import Candidate, Choice, Decision
from cai_pyserini.adapt.examples import Examples
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

    def __init__(self, tiny: Path, folder: Path):
        self.folder = folder
        self.output = folder / "model"
        (folder / "steps.yaml").write_text(STEPS)
        self.flags = ["--collection", str(tiny), "--base", "splade-tiny", "--dense", "minilm"]
        self.flags += [f"--{name}={folder / 'steps.yaml'}" for name in ("splade", "distil")]
        self.flags += ["--device", "cpu", "--output", str(self.output)]

    def run(self) -> str:
        with redirect_stdout(StringIO()) as printed:
            main(self.flags)
        return printed.getvalue()


@pytest.fixture(scope="module")
def adapted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    adapted = Adapted(tiny, tmp_path_factory.mktemp("adapt"))
    adapted.printed = adapted.run()  # type: ignore[attr-defined]
    return adapted


@pytest.mark.slow
def test_it_says_what_it_does_and_how_long_it_takes(adapted: Adapted, tiny: Path) -> None:
    *plan, estimate, decision, end = adapted.printed.splitlines()  # type: ignore[attr-defined]
    assert plan == [
        f"adapt splade-tiny to tiny, steps in {adapted.output}.steps:",
        "1. pseudo queries: at most 5,000, with 4 negatives each, from 12 documents",
        "2. projection: of dense vectors, 200 steps with 48 queries each",
        "3. contrast 1/2: 4 steps with 4 queries each",
        "4. distillation 2/2: 4 steps with 4 queries each",
        "5. mean of weights, 0.4 or 0 new, as held-out queries decide; IDF",
    ]
    assert re.fullmatch(
        r"(adapted: |not adapted: the encoders are used as before, since no candidate gains significantly in each "
        r"recommended system; )(weight 0\.[48] of the trained SPLADE)?( and )?(weight 0\.\d+ of the projection)?"
        r"( comes closest)? \(sources of \d+ pseudo queries of \d+ documents found without their words; "
        r"gains in nDCG@10: hybrid-splade-idf-dense-zscore [+-]\S+ ± \S+, joint-splade-idf-smooth .*\)",
        decision,
    )
    assert artifact.require(adapted.output, "adapt").stats["decision"] == [decision]
    assert estimate.startswith("about ") and estimate.endswith("seconds distillation 2/2")
    assert end == f"{adapted.output}: ./run_beir.sh {tiny} --encoder {adapted.output}"


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

    def decide(self: Choice, values: dict[Candidate, object]) -> Decision:
        assert len(values) == 6 and min(values) == (0, 0)
        return Decision(Candidate(weight, projection), "why", [])

    monkeypatch.setattr(Choice, "decide", decide)
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
def test_another_weight_trains_nothing_again(adapted: Adapted, capsys: pytest.CaptureFixture[str]) -> None:
    steps = adapted.folder / "model.steps"
    before = {path: path.stat().st_mtime_ns for path in steps.rglob("*")}
    other = adapted.folder / "other"
    steps.rename(adapted.folder / "other.steps")  # another output keeps its own steps
    try:
        main([*adapted.flags[:-1], str(other), "--weight", "0.5"])
    finally:
        (adapted.folder / "other.steps").rename(steps)
    assert {path: path.stat().st_mtime_ns for path in steps.rglob("*")} == before
    out = capsys.readouterr().out
    assert out.count("(done)") == 4 and "about" not in out and "0.5 old and 0.5 new;" in out
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
    printed = killed.run()
    assert printed.count("(done)") == 3 and "contrast" not in printed.splitlines()[-2]  # the estimate
    assert [path.stat().st_mtime_ns for path in finished] == made
    one, other = weights(killed.output), weights(adapted.output)
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert killed.run().count("\n") == 1  # up to date: no plan


@pytest.mark.slow
def test_the_plan_and_the_estimate_come_before_the_work(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Examples) -> None:
        raise InterruptedError

    monkeypatch.setattr(Examples, "write", interrupt)
    (tmp_path / "splade.yaml").write_text("batch_size: 4\nepochs: 2\n")
    flags = ["--collection", str(tiny), "--base", "splade-tiny", "--splade", str(tmp_path / "splade.yaml")]
    with pytest.raises(InterruptedError):
        main([*flags, "--output", str(tmp_path / "model")])
    plan = capsys.readouterr().out
    assert "2. contrast: at most 2,500 steps with 4 queries each\n3. mean of weights, 0.3 or 0 new, as held-out" in plan
    assert "about " in plan.splitlines()[-1] and plan.endswith(" contrast\n")


@pytest.mark.slow
def test_a_cross_encoder_and_a_query_generator(
    tiny: Path, cross_encoder: Path, generator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps.yaml").write_text(STEPS)
    (tmp_path / "generate.yaml").write_text("max_query_length: 6\n")
    flags = ["--collection", str(tiny), "--base", "splade-tiny", "--output", str(tmp_path / "model"), "--device", "cpu"]
    flags += [f"--{name}={tmp_path / 'steps.yaml'}" for name in ("splade", "distil")]
    flags += ["--cross-encoder", str(cross_encoder)]
    flags += ["--generator", str(generator), "--generate", str(tmp_path / "generate.yaml")]
    main(flags)
    out = capsys.readouterr().out
    assert "1. query generation: 3 queries for each of 12 documents\n" in out
    assert "3. cross-encoder: scores of at most 25,000 pairs\n" in out
    steps = tmp_path / "model.steps"
    generated = {line["text"] for line in json_lines(steps / "generated" / "queries.jsonl")}
    lines = json_lines(steps / "scored.jsonl")
    assert lines and {line["query"] for line in lines} <= generated
    assert all(len(line["margins"]) == 4 for line in lines)
    digest = artifact.file_digest(steps / "scored.jsonl")
    assert artifact.require(steps / "distilled", "trainer splade").recipe["data"] == digest


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
    assert capsys.readouterr().out.splitlines()[1:5] == [
        "1. vocabulary: in increments of 20 tokens",
        "2. pretraining: 3 steps with 4 sequences of 32 tokens each",
        "3. splade: 3 steps with 4 queries each",  # half of 24 lines
        "4. mean of weights, 0 old and 1 new; IDF",
    ]
    steps = tmp_path / "model.steps"
    assert len(weights(steps / "vocabulary")["bert.embeddings.word_embeddings.weight"]) == 30522 + 20
    assert artifact.require(steps / "splade", "trainer splade").stats["steps"] == 3
    trained, output = weights(steps / "splade"), weights(tmp_path / "model")
    assert all(torch.equal(trained[name], output[name]) for name in trained)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--dense", "minilm", "--cross-encoder", "x"], "--dense and --cross-encoder are both teachers: choose one"),
        (["--data", "x.jsonl", "--dense", "minilm"], "--data is the paper's recipe, which has no --dense"),
        (["--data", "x.jsonl", "--weight", "0.5"], "--data is the paper's recipe, which has no --weight"),
        (["--data", "x.jsonl", "--queries", "9"], "--data is the paper's recipe, which has no --queries"),
        (["--data", "x.jsonl", "--vectors", "x"], "--data is the paper's recipe, which has no --vectors"),
        (["--distil", "x.yaml"], "--distil needs a teacher: --dense or --cross-encoder"),
        (["--generate", "x.yaml"], "--generate needs --generator"),
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
        (["--vocabulary"], "steps: 3\n", "steps.yaml: unknown key steps; known keys: base, config, corpus"),
        (["--data"], None, "no file "),
        (["--data"], '{"query": "a", "positive": "b"}\n', "steps.yaml:1: 0 negatives, fewer than the 1"),
        (["--splade"], "negatives: 5\n", "contrast: negatives 5, but pseudo queries have 4 each"),
        (["--splade"], "loss: margin-mse\n", "contrast: loss margin-mse needs a teacher: --dense or --cross-encoder"),
        (["--splade"], "max_document_length: 1024\n", "has 512 positions, too few for --max-document-length 1024"),
        (
            ["--dense", "minilm", "--distil"],
            "max_document_length: 1024\n",
            "has 512 positions, too few for --max-document-length 1024",
        ),
        (["--pretrain"], "max_length: 1024\n", "has 512 positions, too few for max_length of pretraining 1024"),
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
