"""What every stage keeps to, whatever it makes: a table of the stages, and the tests that each of them passes.

Called twice, a stage writes nothing the second time. Interrupted, it leaves nothing that a later stage takes for whole,
and the next call makes what an uninterrupted one makes. An input that is missing, damaged or of another stage is
refused by its name. The recipe changes if and only if an input or a setting does that shapes the result.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cai_pyserini.__main__ import main
from cai_pyserini.cli.stage import STAGES as COMMANDS
from cai_pyserini.collections.check import check
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import remove
from cai_pyserini.runs.measures import evaluate
from tests.experiments import outputs
from tests.indexes.stock import everything

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


class Stage(NamedTuple):
    """A stage, by the command that makes its output; {NAME} is the output of the stage NAME."""

    command: str
    code: str  # its name in stages.json, which begins with that in recipes
    shaping: tuple[str, ...] = ()  # flags that change the result
    others: tuple[str, ...] = ()  # flags that do not
    reads: tuple[str, ...] = ("corpus.jsonl",)  # the files of the collection that shape it


COLLECTION = "hand-written"
STAGES = {
    "check": Stage("check {hand-written}", "beir check", reads=("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")),
    "idf": Stage("stage idf --collection {hand-written} --encoder splade-tiny", "idf", ("--formula bm25idf",)),
    "vectors": Stage(
        "stage encode --collection {hand-written} --encoder splade-tiny --precision float32",
        "encode documents splade",
        ("--split test", "--precision bfloat16", "--encoder minilm"),
        ("--device cpu", "--batch-size 2"),
    ),
    "dense": Stage(
        "stage encode --collection {hand-written} --encoder minilm --precision float32",
        "encode documents dense",
        ("--split test", "--precision bfloat16", "--encoder splade-tiny"),
        ("--device cpu", "--batch-size 2"),
    ),
    "words": Stage("stage words --collection {hand-written}", "words"),
    "idf-power": Stage(
        "stage idf-power --vectors {vectors} --idf {idf} --words {words} --encoder splade-tiny",
        "idf power",
        (),
        ("--device cpu",),
    ),
    "near": Stage("stage near --vectors {dense}", "near", ("--neighbours 3",)),
    "smooth": Stage("stage near-documents --vectors {vectors} --near {near}", "smooth", ("--weight 0.3",)),
    "expansion": Stage(
        "stage near-words --words {words} --vectors {dense} --near {near} --encoder minilm",
        "expand",
        (),
        ("--device cpu",),
    ),
    "impacts": Stage(
        "stage impact --vectors {vectors} --idf {idf} --encoder splade-tiny",
        "impact",
        ("--bits 8", "--idf-power 0.5", "--keep-terms 5", "--keep-mass 0.5"),
        ("--threads 1",),
    ),
    "joint": Stage(
        "stage impact --vectors {smooth} --idf {idf} --words {words} --near-words {expansion} --encoder splade-tiny",
        "impact",
        ("--alpha 2", "--k1 1.2", "--b 0.7", "--bits 8"),
        ("--threads 1",),
    ),
    "index": Stage(
        "stage index impact --input {joint} --collection {hand-written}", "index impact", (), ("--threads 1",)
    ),
    "bm25-index": Stage("stage index bm25 --collection {hand-written}", "index bm25", ("--no-raw",), ("--threads 1",)),
    "dense-index": Stage("stage index dense --vectors {dense}", "index dense", ("--method hnsw",), ("--threads 1",)),
    "run": Stage(
        "stage search --index {index} --collection {hand-written}",
        "search impact",
        ("--hits 3", "--remove-query never", "--query bow"),
        ("--threads 1", "--device cpu", "--k1 2"),
        ("queries.jsonl",),
    ),
    "bm25-run": Stage(
        "stage search --index {bm25-index} --collection {hand-written}",
        "search bm25",
        ("--hits 3", "--remove-query never", "--k1 2", "--b 0.9", "--filter contents:cancer"),
        ("--threads 1",),
        ("queries.jsonl",),
    ),
    "dense-run": Stage(
        "stage search --index {dense-index} --collection {hand-written} --encoder minilm",
        "search dense",
        ("--hits 3", "--remove-query never"),
        ("--threads 1", "--device cpu"),
        ("queries.jsonl",),
    ),
    "fused": Stage(
        "fuse --trec {bm25-run} {run} {dense-run}",
        "fusion fuse",
        ("--method rrf", "--depth 2", "--hits 3", "--weights 2 1 1"),
    ),
    "reranked": Stage(
        "rerank --collection {hand-written} --trec {bm25-run} --cross-encoder {cross-encoder} --depth 2",
        "fusion rerank",
        ("--depth 3",),
        ("--device cpu",),
        ("corpus.jsonl", "queries.jsonl"),
    ),
    "evaluation": Stage("evaluation {hand-written} {fused}", "beir evaluation", reads=("qrels/test.tsv",)),
}
INPUTS = {name: re.findall(r"{(.+?)}", stage.command) for name, stage in STAGES.items()}
USES = [(name, source) for name, sources in INPUTS.items() for source in sources if source != "cross-encoder"]
MEASURED = {"seconds", "encoding_seconds", "ms_per_query", "bytes"}  # statistics that differ between two calls


def call(name: str, folder: Path, flags: str = "", output: str = "") -> Path:
    """Call a stage whose inputs are in a folder, where it writes its output, by default under its own name."""
    stage, target = STAGES[name], folder / (output or name)
    command, *words = (word.format(**{each: folder / each for each in INPUTS[name]}) for word in stage.command.split())
    if command in ("check", "evaluation"):
        collection = load_collection(words[0])
        if command == "check":
            return check(collection, "test", target)
        return evaluate(Path(words[1]), collection.qrels("test"), target)
    main([command, *words, "--output", str(target), *flags.split()])
    return target


@pytest.fixture(scope="module")
def made(tiny: Path, cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collection and the output of every stage; not to be changed."""
    folder = tmp_path_factory.mktemp("stages")
    shutil.copytree(tiny, folder / COLLECTION)
    (folder / "cross-encoder").symlink_to(cross_encoder)
    for name in STAGES:
        call(name, folder)
    return folder


@pytest.fixture(scope="module")
def copy(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("copied") / "copied", symlinks=True))


@pytest.fixture
def copied(made: Path, copy: Path) -> Iterator[Path]:
    """A copy of this folder, to be changed; what has changed is copied again afterwards."""
    before = state(copy)
    yield copy
    for name in {path.relative_to(copy).parts[0] for path, _ in before.items() ^ state(copy).items()}:
        remove(copy / name)
        if (made / name).is_dir():
            shutil.copytree(made / name, copy / name)
        elif (made / name).exists():
            shutil.copy2(made / name, copy / name)


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    statuses = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in statuses.items()}


def contents(output: Path) -> list[Any]:
    """The digest of an artifact's recipe, its statistics, and what is in its files."""
    manifest = artifact.read_manifest(output)
    assert manifest, output
    stats = {name: value for name, value in manifest.stats.items() if name not in MEASURED}
    if any(output.glob("segments_*")):
        return [manifest.digest, stats, everything(output)]
    files = [output / name for name in manifest.files] if output.is_dir() else [output]
    return [manifest.digest, stats, {file.name: content(file) for file in files}]


def content(file: Path) -> Any:
    if file.suffix != ".npz":
        return file.read_bytes()
    with np.load(file) as arrays:  # without the seconds
        return {name: array.tolist() for name, array in arrays.items() if name != "stats"}


def is_outdated(name: str, folder: Path, flags: str = "") -> bool:
    """Whether a stage would make its output again."""
    try:
        with artifact.dry_run():
            call(name, folder, flags)
    except artifact.NotUpToDate:
        return True
    return False


def test_every_stage_is_in_the_table(made: Path) -> None:
    assert {stage.command.split()[1] for stage in STAGES.values() if stage.command.startswith("stage ")} == {*COMMANDS}
    for name, stage in STAGES.items():
        manifest = artifact.read_manifest(made / name)
        assert manifest and stage.code.startswith(manifest.recipe["stage"])


def test_results_change_only_with_versions(tiny: Path, tmp_path: Path, cross_encoder: Path) -> None:
    """The fault: a commit changes results without raising the version of their stage, and old ones stay in place."""
    shutil.copytree(tiny, tmp_path / COLLECTION)
    (tmp_path / "cross-encoder").symlink_to(cross_encoder)
    found, codes = outputs.make(tmp_path, call, STAGES), {name: stage.code for name, stage in STAGES.items()}
    if outputs.RECORD in os.environ:
        outputs.record(found, codes)
    problems = outputs.differing(found, codes)
    assert not problems, "\n".join(problems.values())


@pytest.mark.parametrize("name", STAGES)
def test_called_twice_it_writes_nothing(name: str, made: Path) -> None:
    before = state(made)
    call(name, made)
    assert state(made) == before


def at_the_first_rename(patch: pytest.MonkeyPatch) -> None:
    def rename(*paths: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    for function in ("rename", "replace"):
        patch.setattr(f"os.{function}", rename)


def at_the_end_of_its_work(patch: pytest.MonkeyPatch) -> None:
    make = artifact.make

    def interrupted(path: Path, recipe: artifact.Recipe, write: artifact.Write, **form: Any) -> Path:
        def write_and_stop(place: Path) -> artifact.Stats:
            write(place)
            raise KeyboardInterrupt

        return make(path, recipe, write_and_stop, **form)

    patch.setattr(artifact, "make", interrupted)


@pytest.mark.parametrize("name", STAGES)
def test_interrupted_it_leaves_nothing_that_counts_and_continues(
    name: str, made: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = copied / name
    artifact.manifest_path(output).unlink()
    remove(output)
    for interrupt in (at_the_first_rename, at_the_end_of_its_work):
        with monkeypatch.context() as patch:
            interrupt(patch)
            with pytest.raises(KeyboardInterrupt):
                call(name, copied)
        assert artifact.read_manifest(output) is None
        for later in [later for later, source in USES if source == name]:
            with pytest.raises(CaiError, match=re.escape(str(output))):
                call(later, copied, output="later")
            assert not (copied / "later").exists()
    call(name, copied)
    assert contents(output) == contents(made / name)
    assert {path.name for path in copied.iterdir()} == {path.name for path in made.iterdir()}


def damage(path: Path, how: str, folder: Path) -> None:
    """Damage an input, or replace it with something else."""
    if path.name == COLLECTION and how == "damaged":
        for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
            with (path / file).open("a") as opened:
                opened.write("broken\n")
    elif how == "damaged":
        largest = max(path.iterdir(), key=lambda file: file.stat().st_size) if path.is_dir() else path
        largest.write_bytes(largest.read_bytes()[:-1])
    elif how == "unfinished" and path.is_dir():
        (path / "manifest.json").rename(path / artifact.UNFINISHED)
    elif how == "unfinished":
        manifest = artifact.manifest_path(path)
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": {}}))
    else:
        artifact.manifest_path(path).unlink(missing_ok=True)
        is_folder = path.is_dir()
        remove(path)
        if how == "of another stage" and is_folder:
            shutil.copytree(folder / ("words" if path.name == "idf" else "idf"), path)
        elif how == "of another stage":
            shutil.copy(folder / "check", path)
            shutil.copy(artifact.manifest_path(folder / "check"), artifact.manifest_path(path))


@pytest.mark.parametrize("how", ["missing", "damaged", "of another stage", "unfinished"])
@pytest.mark.parametrize(("name", "source"), USES)
def test_an_input_that_is_not_whole_is_refused_by_name(name: str, source: str, how: str, copied: Path) -> None:
    if source == COLLECTION and how == "unfinished":
        return  # nobody makes a collection
    damage(copied / source, how, copied)
    with pytest.raises(CaiError, match=re.escape(source if source == COLLECTION else str(copied / source))):
        call(name, copied, output="later")
    assert not (copied / "later").exists() or artifact.read_manifest(copied / "later") is None


@pytest.mark.parametrize("name", STAGES)
def test_it_is_made_again_if_an_input_changes_and_not_if_its_place_does(name: str, copied: Path) -> None:
    assert not is_outdated(name, copied)
    for source in [source for later, source in USES if later == name and source != COLLECTION]:
        manifest = artifact.manifest_path(copied / source)
        before = manifest.read_bytes()
        artifact.outdate(copied / source)
        try:
            assert is_outdated(name, copied), source
        except CaiError as error:  # it was not made from another input of this stage, or has other shards
            assert str(copied / source) in str(error)
        manifest.write_bytes(before)


EDITED = {  # file -> a text in it, and another
    "corpus.jsonl": ("suppresses the growth", "favours the growth"),
    "queries.jsonl": ("bladder infection", "fever and cough"),
    "qrels/test.tsv": ("q1\td1\t2", "q1\td1\t1"),
}


@pytest.mark.parametrize("file", EDITED)
@pytest.mark.parametrize("name", [name for name, source in USES if source == COLLECTION])
def test_it_is_made_again_if_it_reads_a_file_of_the_collection_that_changes(name: str, file: str, copied: Path) -> None:
    path, (before, after) = copied / COLLECTION / file, EDITED[file]
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    try:
        assert is_outdated(name, copied) == (file in STAGES[name].reads)
    except CaiError as error:  # an index takes only impacts of the documents that it stores
        assert (name, file) == ("index", "corpus.jsonl") and "of other documents" in str(error)


FLAGS = [(name, flags, True) for name, stage in STAGES.items() for flags in stage.shaping]
FLAGS += [(name, flags, False) for name, stage in STAGES.items() for flags in stage.others]


@pytest.mark.parametrize(("name", "flags", "shapes"), FLAGS)
def test_a_setting_that_shapes_the_result_makes_it_again_and_no_other(
    name: str, flags: str, shapes: bool, made: Path
) -> None:
    assert is_outdated(name, made, flags) == shapes
