"""Make runs and indexes from Python."""

import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from inspect import signature
from pathlib import Path
from typing import Any, Unpack

from cai_pyserini.collections import in_python
from cai_pyserini.collections.contract import OF_PYTHON
from cai_pyserini.collections.in_python import Documents
from cai_pyserini.collections.values import checked_path
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.files import atomic_write
from cai_pyserini.core.lock import require_free
from cai_pyserini.core.settings import build
from cai_pyserini.engine.open import Action, Run
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.prepare import Preparation
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunOptions, RunSettings

type Types = Mapping[str, str]  # of metadata, by name


def index(
    documents: str | Path | Documents,
    folder: str | Path | None = None,
    *,
    system: str | None = None,
    encoder: str | Path = "splade-tiny",
    dense: str | Path | None = None,
    metadata: Types | None = None,
    **settings: Unpack[RunOptions],
) -> Engine:
    """Index documents, and open the index. The same call again opens it at once, if the documents are the same.

    `documents` are a folder in BEIR's layout, a folder of files (PDF, Word, HTML, …), a file of documents, the name of
    a collection, texts, {id: text}, (id, text) pairs, or dicts or rows of a table (pandas, polars, Arrow) with `text`
    and, as they have them, `id` (or `_id`, `docid`, `docno`, `doc_id`), `title` and metadata; ids are by default their
    labels in pandas, or their numbers, from 0. Everything is kept in `folder`, by default `runs/COLLECTION/ENCODER`, or
    a temporary one for what is not in files. The default `system` is joint, SPLADE and BM25 in one index; with a dense
    encoder, joint-near. `metadata` has the types of metadata by name: number, string, date or list. Without it, they
    are inferred, except in files; booleans become 0 and 1. `settings` are those of `cai-pyserini run`. Raises CaiError
    for what cannot be read.

    >>> index = cai.index(["Brachydactyly: short digits of the hand", "Macrocephaly: an enlarged skull"])
    >>> [hit.id for hit in index.search("large skull", k=1)]
    ['1']
    """
    options = _options(index, settings)
    system = parse_system(system or ("joint-near" if dense else "joint")).name
    temporary = None
    if isinstance(documents, str | Path) and RunFolder(checked_path(documents, "documents")).is_finished:
        raise CaiError(f"{documents} is a finished run: open it with cai.open({str(documents)!r})")
    collection, types = documents, metadata
    try:
        if not isinstance(collection, str | Path):
            build(RunSettings, options | {"collections": [""]}, "")  # to refuse values before anything is written
            if folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="cai-pyserini-")
                folder = Path(temporary.name) / "run"
            folder = checked_path(folder, "folder")
            collection, types = _written(collection, folder, metadata, bool(settings.get("strict")))
        made = run(
            collection,
            [system],
            folder=folder,
            encoder=encoder,
            dense=dense,
            metadata=types,
            evaluate=False,
            **options,
        )
        engine = made.open(system)
    except BaseException:
        if temporary:
            temporary.cleanup()
        raise
    if temporary:
        weakref.finalize(engine, temporary.cleanup)
    return engine


def run(
    collection: str | Path,
    systems: str | Sequence[str] = (),
    *,
    folder: str | Path | None = None,
    encoder: str | Path = "splade-tiny",
    dense: str | Path | None = None,
    metadata: Types | None = None,
    evaluate: bool = True,
    **settings: Unpack[RunOptions],
) -> Run:
    """Run an experiment, and open it: indexes of the systems, and their measures if the collection has qrels.

    As `cai-pyserini run`, whose other settings are keywords (`passages=100`, `device="cuda"`, `adapt=True`); what is up
    to date is not done again, and an interrupted run continues. Without `evaluate`, only indexes are made. Raises
    CaiError for settings that do not exist.

    >>> run = cai.run("tests/data/tiny", ["bm25", "joint"], folder="runs/tiny")
    >>> run.systems
    ['joint', 'bm25']
    """
    checked_path(collection, "the collection")
    given = {
        "collections": [str(collection)],
        "systems": [systems] if isinstance(systems, str) else [*systems],
        "output": None if folder is None else checked_path(folder, "folder"),
        "encoder": str(encoder),
        "dense": dense and str(dense),
    }
    values = {name: value for name, value in (given | _options(run, settings)).items() if value is not None}
    changes = {"metadata": dict(metadata)} if metadata else {}
    preparation = Preparation(build(RunSettings, values, ""), **changes)
    (collection,) = preparation.configs
    prepared = preparation.prepare(collection)
    with redirect_stdout(sys.stderr):  # the seconds of each step
        prepared.execute(evaluate)
    return open_run(prepared.run.root, preparation.settings.device)


def open_run(folder: str | Path, device: str = "auto") -> Run:
    """Open a finished run; see api.open."""
    return Run(folder, device, _change)


def _options(function: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call. Raises CaiError for one that does not exist, with the nearest that does."""
    known = [*RunOptions.__annotations__, *(each for each in signature(function).parameters if each != "settings")]
    if unknown := next((name for name in options if name not in known), None):
        hint = did_you_mean(unknown, known) if unknown != "output" else "; did you mean folder?"
        raise CaiError(f"{function.__name__} has no keyword {unknown!r}{hint or f'; it has {", ".join(known)}'}")
    return {name: value for name, value in options.items() if value is not None}


def _written(
    documents: Documents, folder: Path, metadata: Mapping[str, str] | None, strict: bool
) -> tuple[Path, Types]:
    """Write documents beside the run folder that is made of them, and return their types of metadata too. Raises
    CaiError for what is no document, and if there is another file of that name."""
    path, run = folder.with_name(f"{folder.name}{OF_PYTHON}"), RunFolder(folder)
    of_run = Path(run.experiment.collection.source).resolve() if run.is_finished else None
    if path.exists() and not (of_run == path.resolve() if of_run else run.lock.exists()):
        raise CaiError(f"{path} is not what an index in {folder} was made of: choose another folder")
    if run.lock.exists():
        require_free(run.lock, folder)  # another process would index these documents
    types = in_python.MetadataTypes(metadata, strict)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line for _, line in in_python.lines(in_python.documents(documents), types))
    found = types.found()
    folder.mkdir(exist_ok=True)
    run.lock.touch()  # the folder, and so the file, are ours, even if the run is interrupted now
    return path, found


def _change(folder: Path, action: Action, documents: Any) -> None:
    from cai_pyserini.engine.edit import change  # imports what updates need, which searches do not

    with redirect_stdout(sys.stderr):
        change(folder, action, documents)
