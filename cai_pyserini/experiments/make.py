"""Make runs and indexes from Python."""

import json
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write
from cai_pyserini.core.settings import build
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.open import Run
from cai_pyserini.experiments.prepare import Preparation
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunSettings

type Text = str | Mapping[str, Any]  # of a document: its text, or its fields
type Documents = Iterable[Text] | Mapping[Any, str] | pd.DataFrame


def index(
    documents: str | Path | Documents,
    folder: str | Path | None = None,
    *,
    system: str | None = None,
    encoder: str | Path = "splade-tiny",
    dense: str | Path | None = None,
    metadata: Mapping[str, str] | None = None,
    **settings: Any,
) -> Engine:
    """Index documents, and open the index. The same call again opens it at once, if the documents are the same.

    `documents` are a folder in BEIR's layout, a folder of files (PDF, Word, HTML, …), a file of documents, the name of
    a collection, texts, {id: text}, or dicts or rows of a DataFrame with `text` and, as they have them, `id`, `title`
    and metadata; ids are by default their numbers, from 0. Everything is kept in `folder`, by default
    `runs/COLLECTION/ENCODER`, or a temporary one for what is not in files. The default `system` is joint, SPLADE and
    BM25 in one index; with a dense encoder, joint-near.
    `metadata` has the types of metadata by name, and `settings` are those of `cai-pyserini run`. Raises CaiError for
    what cannot be read.

    >>> index = cai.index(["Brachydactyly: short digits of the hand", "Macrocephaly: an enlarged skull"])
    >>> [hit.id for hit in index.search("large skull", k=1)]
    ['1']
    """
    system = system or ("joint-near" if dense else "joint")
    temporary = None
    if isinstance(documents, str | Path) and RunFolder(Path(documents)).is_finished:
        raise CaiError(f"{documents} is a finished run: open it with cai.open({str(documents)!r})")
    if not isinstance(documents, str | Path):
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="cai-pyserini-")
            folder = Path(temporary.name) / "run"
        documents = _written(documents, Path(folder))
    try:
        options = settings | {"folder": folder, "encoder": encoder, "dense": dense, "metadata": metadata}
        engine = run(documents, [system], evaluate=False, **options).open(system)
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
    metadata: Mapping[str, str] | None = None,
    evaluate: bool = True,
    **settings: Any,
) -> Run:
    """Run an experiment, and open it: indexes of the systems, and their measures if the collection has qrels.

    As `cai-pyserini run`, whose other settings are keywords (`passages=100`, `device="cuda"`, `adapt=True`); what is up
    to date is not done again, and an interrupted run continues. Without `evaluate`, only indexes are made. Raises
    CaiError for settings that do not exist.

    >>> run = cai.run("tests/data/tiny", ["bm25", "joint"], folder="runs/tiny")
    >>> run.systems
    ['joint', 'bm25']
    """
    given = {
        "collections": [str(collection)],
        "systems": [systems] if isinstance(systems, str) else [*systems],
        "output": folder and Path(folder),
        "encoder": str(encoder),
        "dense": dense and str(dense),
    }
    values = {name: value for name, value in (given | settings).items() if value is not None}
    changes = {"metadata": dict(metadata)} if metadata else {}
    preparation = Preparation(build(RunSettings, values, ""), **changes)
    (collection,) = preparation.configs
    prepared = preparation.prepare(collection)
    with redirect_stdout(sys.stderr):  # the seconds of each step
        prepared.execute(evaluate)
    return Run(prepared.run.root, preparation.settings.device)


def _written(documents: Documents, folder: Path) -> Path:
    """Write documents beside the run folder that is made of them, as FOLDER.jsonl. Raises CaiError for a document
    without a text, if there are none, and if there is another file of that name."""
    path, run = folder.with_name(f"{folder.name}.jsonl"), RunFolder(folder)
    of_run = Path(run.experiment.collection.source).resolve() if run.is_finished else None
    if path.exists() and not (of_run == path.resolve() if of_run else run.lock.exists()):
        raise CaiError(f"{path} is not what an index in {folder} was made of: choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        number = -1
        for number, fields in enumerate(_fields(documents)):
            if not isinstance(fields.get("text"), str):
                has = ", ".join(map(str, fields)) or "nothing"
                raise CaiError(f"document {number}, counted from 0, has no `text`, but only {has}")
            id = fields.pop("_id", fields.pop("id", number))
            file.write(json.dumps({"_id": str(id), **fields}) + "\n")
        if number < 0:
            raise CaiError("there are no documents")
    return path


def _fields(documents: Documents) -> Iterator[dict[Any, Any]]:
    """The fields of each document. Raises CaiError for what is not a document."""
    if isinstance(documents, pd.DataFrame):
        documents = ({str(name): value for name, value in row.dropna().items()} for _, row in documents.iterrows())
    elif isinstance(documents, Mapping):
        documents = ({"id": id, "text": text} for id, text in documents.items())
    elif not isinstance(documents, Iterable):
        raise CaiError(f"documents are a {type(documents).__name__}: give a path, texts or dicts")
    for number, document in enumerate(documents):
        if not isinstance(document, str | Mapping):
            raise CaiError(f"document {number}, counted from 0, is a {type(document).__name__}: give a text or a dict")
        yield {"text": document} if isinstance(document, str) else dict(document)
