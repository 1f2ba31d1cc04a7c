"""Fixtures that all tests share: a tiny collection, a real checkpoint, and commands run as a user runs them."""

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import jnius_config
import numpy as np
import pytest
from filelock import FileLock

from cai_pyserini.cli.run import main as beir
from cai_pyserini.cli.stage import main as stage
from cai_pyserini.collections import text_cache
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact, manifest
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from cai_pyserini.experiments import report_charts
from cai_pyserini.indexes import jvm
from cai_pyserini.models.checkpoint import checkpoint_folder
from cai_pyserini.models.hub import download
from cai_pyserini.plugin import hook
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.vectors.cache import VARIABLE
from cai_pyserini.vectors.shards import Matrix, Shard, Vectors, shard_path, write_shard
from tests.hub import Hub, serving

if TYPE_CHECKING:  # slow imports
    from playwright.sync_api import Browser

    from cai_pyserini.experiments.run_folder import RunFolder

os.environ.pop("COLUMNS", None)  # set by the library readline in pytest, and so in its workers
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before any test imports it

jnius_config.add_options("-XX:TieredStopAtLevel=1")  # compiling for hours costs more than it saves in minutes

DATA = Path(__file__).parent / "data"

LONG = ("test_run.py", "test_stages.py", "test_continued.py", "test_docs.py", "test_pairs.py", "test_update.py")

Command = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest, so that no process runs one alone at the end."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Do not search all that was imported for garbage again and again."""
    gc.freeze()


pytest_sessionfinish = pytest_collection_finish


@pytest.fixture(scope="session", autouse=True)
def without_fsync() -> Iterator[None]:
    """Do not wait for the disk, which would take longer than many tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def without_charts() -> Iterator[None]:
    """Draw none at the end of each of hundreds of runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_charts, "charts", lambda results, values: [])
        yield


@pytest.fixture(scope="session", autouse=True)
def without_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Encode in every test what it encodes, and leave the caches of the user alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        patch.setenv(text_cache.VARIABLE, str(tmp_path_factory.mktemp("texts")))
        yield


@pytest.fixture(scope="session")
def tiny() -> Path:
    """A hand-written BEIR folder: 12 documents, 5 test queries, of which one is a document."""
    return DATA / "tiny"


@pytest.fixture
def broken(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny collection to break."""
    return Path(shutil.copytree(tiny, tmp_path / "broken"))


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The folder of splade-tiny, a real SPLADE checkpoint."""
    return checkpoint_folder(load_encoder("splade-tiny"))


@pytest.fixture(scope="session")
def vnni() -> None:
    """Skip where precision int8 cannot run."""
    import torch

    from cai_pyserini.models.device import resolve_precision

    try:
        resolve_precision("int8", torch.device("cpu"))
    except CaiError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cross_encoder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder with splade-tiny's transformer and a head that nobody has trained."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(str(checkpoint), num_labels=1).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(checkpoint)).save_pretrained(folder)
    return folder


def stage_command(name: str) -> Callable[[Sequence[str]], int | None]:
    """The function that executes a stage with its arguments."""
    return lambda argv: stage([name, *argv])


def damaged(checkpoint: Path, folder: Path, tensor: str, row: int, value: float) -> Path:
    """A copy of a checkpoint where a row of a tensor, found by the end of its name, has another value."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    (name,) = [name for name in tensors if name.endswith(tensor)]
    tensors[name][row] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def with_other_terms(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint in whose vocabulary two terms have changed places."""
    shutil.copytree(checkpoint, folder)
    settings = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = settings["model"]["vocab"]
    vocabulary["fever"], vocabulary["colon"] = vocabulary["colon"], vocabulary["fever"]
    (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def command() -> Command:
    """Run `python -m MODULE ARGUMENT …` in a process of its own, away from the clone's folder where cwd is given."""

    def run(
        module: str, *arguments: object, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
            check=False,
            timeout=600,
        )

    return run


@pytest.fixture
def on_terminal() -> Callable[..., str]:
    """Run a command on a terminal, and return what the terminal gets."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")

    def run(*arguments: object, columns: int = 160) -> str:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(ours, (24, columns))
        with subprocess.Popen([*map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ}):
            os.close(theirs)
            got = b""
            with suppress(OSError):  # at the end, on Linux
                while block := os.read(ours, 4096):
                    got += block
        os.close(ours)
        return got.decode().replace("\r\n", "\n")

    return run


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go to another second: manifests are dated to the second, by which a run knows what it has made."""

    def advance() -> None:
        for module in (artifact, manifest):
            monkeypatch.setattr(module, "now", lambda: "2999-01-01T00:00:00Z")

    return advance


@pytest.fixture(scope="session")
def mounting() -> list[str]:
    """The beginning of a command whose shell script may mount disks."""
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a process may not mount here")
    return [unshare, "-rm", "sh", "-c"]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the session share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def run_folder(tiny: Path, shared: Path) -> Path:
    """The folder of a whole run on the tiny collection, done once; not to be changed."""
    output = shared / "run"
    with FileLock(shared / "run.lock"):
        if not (output / "report.md").exists():
            beir([f"{tiny}.yaml", "--output", str(output)])  # has metadata
    return output


@pytest.fixture(scope="session")
def metadata_run(shared: Path) -> Path:
    """The folder of a run on documents with metadata, tests.metadata, done once; not to be changed."""
    from tests.metadata import write_collection

    folder = shared / "metadata"
    with FileLock(shared / "metadata.lock"):
        if not (folder / "run" / "report.md").exists():
            folder.mkdir(exist_ok=True)
            systems = ["bm25", "splade-idf", "joint", "dense", "hybrid-splade-idf-minmax", "hybrid-dense-minmax"]
            flags = ["--dense", "minilm", "--output", str(folder / "run"), "--systems", *systems]
            beir([str(write_collection(folder)), *flags])
    return folder / "run"


ADAPTED = ["bm25", "splade-doc", "joint-near", "hybrid-splade-idf-minmax", "dense"]
ADAPTED += [f"adapted-{name}" for name in ADAPTED[1:]] + ["adapted-joint", "adapted-splade-idf"]


@pytest.fixture(scope="session")
def adapted_run(tiny: Path, shared: Path) -> Path:
    """The folder of a run of the systems ADAPTED, adapted in a few steps, done once; not to be changed."""
    from cai_pyserini.experiments.execute import execute
    from cai_pyserini.experiments.names import parse_system

    folder = shared / "adapted"
    with FileLock(shared / "adapted.lock"):
        folder.mkdir(exist_ok=True)
        run, adaptation = adapting(tiny, folder)
        if not run.report.exists():
            execute(run, [parse_system(name) for name in ADAPTED], adaptation)
    return run.folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on this machine, which this process uses, without a token and with an empty cache."""
    with serving() as server:
        monkeypatch.delenv("HF_TOKEN", raising=False)
        settings = {
            "ENDPOINT": server.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }
        for name, value in settings.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        download.cache_clear()
        yield server
        download.cache_clear()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A real browser, which has as much time as a busy machine takes."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=120_000)

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium is installed; on Debian or Ubuntu: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def java() -> None:
    """Start the JVM, before anything imports Pyserini, whose import then needs no network."""
    jvm.start()
    hook.register()


def adapting(collection: Path, folder: Path, dense: str | None = "minilm") -> "tuple[RunFolder, AdaptSettings]":
    """A run folder in `folder`, and an adaptation of a few steps for it."""
    from cai_pyserini.experiments.experiment import Experiment
    from cai_pyserini.experiments.run_folder import RunFolder

    short = folder / "steps.yaml"
    short.write_text("max_steps: 4\nbatch_size: 4\nwarmup: 0.25\n")
    experiment = Experiment(
        collection=load_index_config(str(collection)),
        encoder=load_encoder("splade-tiny"),
        dense=load_encoder(dense) if dense else None,
        device="cpu",
    )
    run = RunFolder(folder / "run", experiment)
    settings = AdaptSettings(
        collection=str(collection),
        base="splade-tiny",
        dense=dense,
        output=run.adapted,
        splade=short,
        distil=short if dense else None,
        vectors=run.vectors,
        weight=0.5,
        device="cpu",
    )
    run.adaptation = settings
    return run, settings


def stored_vectors(
    folder: Path,
    *matrices: Matrix,
    ids: list[list[str]] | None = None,
    vocabulary: str = "made by hand",
    stage: str = "encode",
    **facts: object,
) -> Vectors:
    """Vectors as the encode stage leaves them, a shard per matrix; without `ids`, documents are named a, b, c, …"""
    names = (chr(number) for number in range(ord("a"), ord("z") + 1))
    shards = [Shard(ids[i] if ids else [next(names) for _ in range(m.shape[0])], m) for i, m in enumerate(matrices)]
    encoder: dict[str, Any] = {"kind": "splade", "checkpoint": "made by hand", "precision": "float32", "idf": None}
    encoder |= facts
    made = artifact.recipe(stage, {"encoder": encoder}, f"documents {encoder['kind']}" if stage == "encode" else None)

    def write(path: Path) -> artifact.Stats:
        for number, shard in enumerate(shards):
            write_shard(shard_path(path, number), shard, artifact.digest(made), 0.5)
        rows, nonzeros = sum(len(shard.ids) for shard in shards), sum(int((m != 0).sum()) for m in matrices)
        stats = {"vectors": rows, "shards": len(shards), "nonzeros": nonzeros, "seconds": 0.5 * len(shards)}
        return stats | {"vocabulary": vocabulary, "encoder": encoder}

    return Vectors(artifact.make(folder, made, write, resumable=True), stage)


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vectors:
    """2,000 dense vectors about 50 topics, of different lengths, d0, d1, …: enough for approximate indexes."""
    from cai_pyserini.indexes import dense_index as dense
    from cai_pyserini.vectors import neighbours

    for module in (dense, neighbours):
        monkeypatch.setattr(module, "EXACT", 1000)
    draw = np.random.default_rng(0)
    topics = draw.normal(size=(50, 32)).astype(np.float32)
    rows = topics[draw.integers(0, 50, 2000)] + draw.normal(scale=0.3, size=(2000, 32)).astype(np.float32)
    ids = [[f"d{number}" for number in range(start, start + 1000)] for start in (0, 1000)]
    return stored_vectors(tmp_path / "many", rows[:1000], rows[1000:], ids=ids, kind="dense")


def stored_idf(folder: Path, documents: int, frequencies: Sequence[int], vocabulary: str = "made by hand") -> Path:
    """An IDF as the idf stage leaves it."""

    def write(path: Path) -> artifact.Stats:
        arrays = {"documents": documents, "frequencies": frequencies, "vocabulary": vocabulary}
        np.savez(path / "idf.npz", allow_pickle=False, **{key: np.array(value) for key, value in arrays.items()})
        return {"documents": documents}

    return artifact.make(folder, artifact.recipe("idf", {}), write)


def corpus_of(
    folder: Path, texts: Mapping[str, str], queries: Mapping[str, str] | None = None, **qrels: Mapping[str, Any]
) -> BeirFolder:
    """A collection of texts by document id, perhaps with queries and the qrels of splits, written to a folder."""
    for name, by_id in (("corpus", texts), ("queries", queries)):
        if by_id:
            lines = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in by_id.items()]
            write_text(folder / f"{name}.jsonl", "".join(lines))
    for split, judged in qrels.items():
        lines = [f"{query}\t{id}\t{grade}\n" for query, grades in judged.items() for id, grade in grades.items()]
        write_text(folder / "qrels" / f"{split}.tsv", "".join(["query-id\tcorpus-id\tscore\n", *lines]))
    return BeirFolder(folder, folder.name)


def json_lines(path: Path) -> list[dict]:
    """The records of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
