"""Query generation, a teacher's margins, and GPL, with local models whose weights nobody has trained."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cai_pyserini import artifact
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder, open_collection
from cai_pyserini.config import load_encoder, load_index_config
from cai_pyserini.rerank import CrossEncoder
from cai_pyserini.trainer import dense, generate, score
from tests.conftest import Command, json_lines


@pytest.fixture(scope="module")
def generated(tiny: Path, generator: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("generated") / "queries"
    return generate.generate(settings(tiny, generator, output))


def settings(tiny: Path, generator: Path, output: Path, **more: object) -> generate.Settings:
    return generate.Settings(str(tiny), str(generator), str(output), max_query_length=6, device="cpu", **more)  # type: ignore[arg-type]


def test_generated_queries_are_a_collection(tiny: Path, generated: Path) -> None:
    collection = open_collection(load_index_config(str(generated)))
    documents = {id: text.strip() for id, text in BeirFolder(tiny, "tiny").documents()}
    assert {id: text.strip() for id, text in collection.documents()} == documents
    qrels = collection.qrels("train")
    assert len(collection.topics("train")) == len(qrels) == artifact.require_manifest(generated, "generate")["queries"]
    assert 24 < len(qrels) <= 36  # three a document, the same ones once
    assert all(query.rpartition("-")[0] in judged and set(judged.values()) == {1} for query, judged in qrels.items())


def test_generation_can_be_repeated_resumed_and_sampled(
    tiny: Path, generator: Path, generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "PART", 5)
    whole = generate.generate(settings(tiny, generator, tmp_path / "whole"))
    wanted = (whole / "queries.jsonl").read_text()

    class Stop(Exception):
        pass

    def stop(number: int, part: object) -> None:
        raise Stop

    made = generate._generator

    def two_parts(*arguments: object) -> object:
        generator = made(*arguments)  # type: ignore[arg-type]
        return lambda number, part: generator(number, part) if number < 2 else stop(number, part)

    monkeypatch.setattr(generate, "_generator", two_parts)
    with pytest.raises(Stop):
        generate.generate(settings(tiny, generator, tmp_path / "resumed"))
    assert not (tmp_path / "resumed").exists()
    monkeypatch.setattr(generate, "_generator", lambda *a: lambda n, p: made(*a)(n, p) if n == 2 else stop(n, p))  # type: ignore[arg-type]
    resumed = generate.generate(settings(tiny, generator, tmp_path / "resumed"))  # makes just the third part
    assert (resumed / "queries.jsonl").read_text() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["resumed", "whole"]

    monkeypatch.undo()
    few = generate.generate(settings(tiny, generator, tmp_path / "few", documents=4, per_document=1))
    assert len(json_lines(few / "corpus.jsonl")) == len(json_lines(few / "queries.jsonl")) == 4


def test_a_checkpoint_that_generates_nothing_is_refused(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="sequence-to-sequence"):
        generate.generate(settings(tiny, checkpoint, tmp_path / "queries"))


def test_margins_are_the_teachers(triples: Path, cross_encoder: Path, tmp_path: Path) -> None:
    output = score.score(score.Settings(str(triples), str(cross_encoder), str(tmp_path / "scored.jsonl"), "cpu"))
    model = CrossEncoder(cross_encoder, "cpu")
    lines = json_lines(output)
    assert len(lines) == len(json_lines(triples))
    for line in lines[:3]:
        texts = [line["positive"], *line["negatives"]]
        positive, *others = model.score([line["query"]] * 3, texts).tolist()
        assert line["margins"] == pytest.approx([positive - other for other in others], abs=2e-3)  # bfloat16 batches


def test_documents_are_expanded_with_generated_queries(
    tiny: Path, generated: Path, command: Command, tmp_path: Path
) -> None:
    """A document is found by a word that only its generated query has."""
    copy = tmp_path / "generated"
    (copy / "qrels").mkdir(parents=True)
    (copy / "queries.jsonl").write_text(json.dumps({"_id": "g", "text": "heart attack"}) + "\n")
    (copy / "corpus.jsonl").write_text((generated / "corpus.jsonl").read_text())
    (copy / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\ng\td6\t1\n")
    systems = ("bm25", "doct5query", "hybrid-doct5query-exact")
    done = command("cai_pyserini.beir", tiny, "--systems", *systems, "--generated", copy, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr

    def found(system: str) -> set[tuple[str, str]]:
        hits = (tmp_path / "run" / "runs" / f"{system}.trec").read_text().splitlines()
        return {(hit.split()[0], hit.split()[2]) for hit in hits}

    assert ("q4", "d6") in found("doct5query") - found("bm25")
    done = command("cai_pyserini.beir", tiny, "--systems", "doct5query", "--output", tmp_path / "without")
    assert done.returncode == 1 and "doct5query needs --generated" in done.stderr


@pytest.fixture
def arguments(tiny: Path, generator: Path, cross_encoder: Path, tmp_path: Path) -> list[str]:
    train = "max_steps: 3\nbatch_size: 4\nwarmup_steps: 1\nlog_steps: 1\n"
    (tmp_path / "train.yaml").write_text(train)
    (tmp_path / "generate.yaml").write_text("max_query_length: 6\n")
    given = {"collection": tiny, "base": "splade-tiny", "generator": generator, "cross-encoder": cross_encoder}
    given |= {"retrievers": "minilm", "output": tmp_path / "gpl", "device": "cpu"}
    given |= {"train": tmp_path / "train.yaml", "generate": tmp_path / "generate.yaml"}
    return [text for key, value in given.items() for text in (f"--{key}", str(value))]


def test_gpl_killed_at_every_stage_goes_on(arguments: list[str], command: Command, tmp_path: Path) -> None:
    parts = tmp_path / "gpl.parts"
    stages = [
        parts / "generated" / "manifest.json",
        parts / "runs" / "splade-tiny" / "runs" / "splade.trec.manifest.json",
        parts / "negatives.jsonl.manifest.json",
        parts / "train.jsonl.manifest.json",
    ]
    for stage in stages:
        process = subprocess.Popen(
            [sys.executable, "-m", "cai_pyserini.trainer.gpl", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while not stage.exists():
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    made = {stage: stage.stat().st_mtime_ns for stage in stages}
    done = command("cai_pyserini.trainer.gpl", *arguments)
    assert done.returncode == 0, done.stderr
    assert {stage: stage.stat().st_mtime_ns for stage in stages} == made  # nothing was done twice
    log = json.loads((tmp_path / "gpl" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [1, 2, 3]
    assert load_encoder(str(tmp_path / "gpl")).max_document_length == 350
    lines = json_lines(parts / "train.jsonl")
    assert all(len(line["margins"]) == len(line["negatives"]) == 1 for line in lines)
    trained = (tmp_path / "gpl" / "model.safetensors").stat().st_mtime_ns
    assert command("cai_pyserini.trainer.gpl", *arguments).returncode == 0
    assert (tmp_path / "gpl" / "model.safetensors").stat().st_mtime_ns == trained


def test_dense_training_lowers_its_loss_and_gives_an_encoder(triples: Path, tmp_path: Path, tiny: Path) -> None:
    from cai_pyserini.config import checkpoint_folder
    from cai_pyserini.idf import compute

    base = load_encoder("minilm")
    idf = compute(BeirFolder(tiny, "tiny"), checkpoint_folder(base), tmp_path / "idf")
    given = dense.Settings(
        data=str(triples),
        base="minilm",
        output=str(tmp_path / "dense"),
        idf=str(idf),
        batch_size=48,
        max_steps=4,
        warmup_steps=0,
        learning_rate=5e-5,
        log_steps=1,
        device="cpu",
    )
    dense.train(given)
    log = [entry["loss"] for entry in json.loads((tmp_path / "dense" / "log.json").read_text())]
    assert log[-1] < 0.7 * log[0]  # every step has all examples
    trained = load_encoder(str(tmp_path / "dense"))
    assert trained.kind == "dense" and trained.max_document_length == 300
    assert replace(trained, checkpoint="", name="") == replace(
        base, checkpoint="", name="", source=None, max_document_length=300
    )
