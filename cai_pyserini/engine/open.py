"""Open indexes and systems of run folders for search, and change the documents that a Python program gave."""

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import cached_property
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import WeakSet

from cai_pyserini.collections import in_python
from cai_pyserini.collections.contract import OF_PYTHON
from cai_pyserini.collections.file_listing import FileListing
from cai_pyserini.collections.values import checked_id, checked_path
from cai_pyserini.core import artifact
from cai_pyserini.core.bars import progress_line
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write, without_links
from cai_pyserini.core.lock import alone_in
from cai_pyserini.core.packages import lazy
from cai_pyserini.engine.found import Fusing
from cai_pyserini.engine.retriever import Retriever
from cai_pyserini.engine.search import Action, Engine
from cai_pyserini.experiments import report
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import BEIR, RunFolder, current
from cai_pyserini.experiments.systems import BM25, System
from cai_pyserini.indexes.engines import SearchOptions, open_searcher
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.runs.rerank import Reranker as Reranker
from cai_pyserini.vectors.queries import Representation

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


def open_index(
    index: str | Path, encoder: str | None = None, query: Representation | None = None, device: str = "auto"
) -> Engine:
    """Open an index, or an export to Milvus, as an engine named after the folder.

    `encoder` encodes queries; it defaults to the index's own and is required for a dense index. Raises CaiError for a
    folder that is none of these, and if Milvus cannot be reached.

    >>> with cai.open_index("runs/tiny/indexes/bm25") as engine:
    ...     [hit.id for hit in engine.search("high blood pressure", k=2)]
    ['d10', 'd5']
    """
    index = checked_path(index, "the index")
    retriever = Retriever(index, encoder, query, device)
    name = index.resolve().name
    searcher = retriever.searcher
    passages = searcher.manifest.stats.get("passages", False)
    return Engine(name, {name: retriever}, passages=passages, language=searcher.language)


def open_systems(
    folders: Sequence[Path], systems: Sequence[str] = (), device: str = "auto", *, files: bool = True
) -> dict[str, Engine]:
    """Open indexes and systems of run folders (by default all that have indexes) by name; the best of a run first.
    Without `files`, none of those that the documents were read from can be opened.

    Starts over if an update deletes a run's current version meanwhile. Raises CaiError for indexes and systems that
    cannot be opened, and for duplicate names.
    """
    engines: dict[str, Engine] = {}
    resolved = _resolve(folders)
    with ExitStack() as on_error:
        try:
            for folder in resolved:
                opened: Iterable[Engine]
                if artifact.require_if_ours(folder):
                    opened = [open_index(folder, device=device)]
                else:
                    run = Run(folder, device)
                    best = [run.best_name, *run.systems[1:]]
                    opened = map(run.open, sorted(systems or best, key=lambda name: (*best, name).index(name)))
                for engine in opened:
                    on_error.callback(engine.close)
                    if engine.files and not files:
                        engine.files.folder = None
                    if engines.setdefault(engine.name, engine) is not engine:
                        raise CaiError(f"{folder}: there are two {engine.name}; serve them on two ports, or rename one")
            on_error.pop_all()
            return engines
        except Exception:  # missing files raise many kinds
            if _resolve(folders) == resolved:
                raise
    return open_systems(folders, systems, device, files=files)


def _resolve(folders: Sequence[Path]) -> list[Path]:
    """The folders of indexes and of the current versions of runs, without links."""
    return [current(without_links(folder)) for folder in folders]


class Run:
    """A run, whose systems, by name, open when they are first asked for, and share indexes and models. Of a run that
    has not finished, those systems can be opened whose indexes are there; a note names the others.

    As a text, it is the table of its results; in notebooks, with a chart. Raises CaiError for a folder without a run.

    >>> run = cai.open("runs/tiny")
    >>> run["bm25"].search("high blood pressure", k=1)[0].id
    'd10'
    """

    def __init__(self, folder: str | Path, device: str = "auto"):
        self._run = RunFolder(checked_path(folder, "the folder"), started=True)
        self._device = device
        self._opened = WeakSet[Engine]()
        results = self._run.results
        self._engines: dict[str, Engine] = {}
        self._scores = dict.fromkeys([*results.systems, *results.searches.values()], 0.0)  # the latter without queries
        self._scores |= {name: row.get(results.measure, 0.0) for name, row in results.systems.items()}
        self._retrievers: dict[str, Retriever] = {}
        self._encoders: dict[str, EncoderModel] = {}
        if self._run.is_started:
            planned = map(parse_system, self._scores)
            awaited = [s.name for s in planned if not _unsearchable_part(s) and self._missing(s)]
            if awaited and self.systems:
                logger.info("%s: not there yet: %s; %s", folder, ", ".join(awaited), self._run.remedy)

    @property
    def systems(self) -> list[str]:
        """The systems that can be opened, best first: by the run's scores, or else by expected quality. An update
        without evaluation keeps the order."""
        systems = [parse_system(name) for name in self._scores]
        results = self._run.results
        if results.scored:
            systems.sort(key=lambda system: self._scores[system.name], reverse=True)
        elif results.searched or "queries" not in results.counts:
            systems.sort(key=lambda system: system.expected_quality, reverse=True)
        return [s.name for s in systems if not _unsearchable_part(s) and not self._missing(s)]

    @property
    def folder(self) -> Path:
        return self._run.root

    @property
    def measures(self) -> "pd.DataFrame":
        """The means of the measures, and what a query costs: a row per system, the best first. Raises CaiError without
        pandas."""
        return (
            lazy("pandas")
            .DataFrame.from_dict(self._run.results.systems, orient="index")
            .reindex([system.name for system in self._run.systems])
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.systems)

    def __len__(self) -> int:
        return len(self.systems)

    def __getitem__(self, name: str) -> Engine:
        """A system, which stays open until the run is closed. Raises CaiError as `open` does."""
        if name not in self._engines:
            self._engines[name] = self.open(name)
        return self._engines[name]

    @property
    def best_name(self) -> str:
        """The best of the systems that can be opened. Raises CaiError if there is none."""
        if not self.systems:
            remedy = f" yet: {self._run.remedy}" if self._run.is_started else f": run {BEIR} again with other systems"
            raise CaiError(f"{self._run.root} has no system that can be searched{remedy}")
        return self.systems[0]

    @property
    def best(self) -> Engine:
        """The best of the systems that can be opened."""
        return self[self.best_name]

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            message = f"a run has no attribute {name!r}"
            if hasattr(Engine, name):
                message += f", but its systems have: run.best.{name}, or run[NAME].{name} with one of run.systems"
            raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        if self._run.is_started:
            return f"{self.folder} has not finished: {self._run.remedy}"
        return report.table(self._run.results)

    def _repr_html_(self) -> str:
        table = f"<pre>{escape(repr(self))}</pre>"
        if not self._run.results.scored or not find_spec("matplotlib"):
            return table
        from cai_pyserini.experiments.report_charts import scores_chart  # matplotlib takes 0.3 seconds

        chart = scores_chart(self._run.results)
        return f'{table}\n<figure style="background: white">{chart.image}</figure>'

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the systems that were opened by name."""
        for engine in self._opened:
            engine.keep_hits()
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def open(self, name: str) -> Engine:
        """Open a system, which the caller closes. Raises CaiError for a missing index, and for cross-encoder."""
        system, experiment = parse_system(name), self._run.experiment
        if unsearchable := _unsearchable_part(system):
            raise CaiError(f"{unsearchable} cannot be searched, only run: take one of {', '.join(self.systems)}")
        if missing := self._missing(system):
            remedy = f"run {BEIR} again with the system {name}"
            if self._run.is_started and name in self._scores:
                remedy = self._run.remedy
            others = f", or take one of {', '.join(self.systems)}" if self.systems else ""
            raise CaiError(f"{self._run.root} has no up-to-date {missing}: {remedy}{others}")
        retrievers = {part.name: self._retriever(part) for part in system.searched}
        has_words = BM25.name in self._run.results.searches and not self._missing(BM25)
        texts = self._retriever(BM25).searcher if has_words else None
        if texts is None and not any(index_of(part, self._run).stores_documents for part in system.searched):
            texts = self._texts
        ranking, collection = ranking_of(system, self._run), experiment.collection
        engine = Engine(
            system.name,
            retrievers,
            Fusing(ranking.method, experiment.depth, ranking.weights()) if ranking.method else None,
            most_hits=collection.hits,
            passages=bool(collection.passages),
            texts=texts,
            language=collection.language,
            files=self._files,
            change=self._changed,
        )
        self._opened.add(engine)
        return engine

    def _changed(self, action: Action, documents: Any) -> None:
        """Change the documents, and reopen the systems that are open."""
        with alone_in(self.folder):  # other threads and processes wait
            _change(self.folder, action, documents)
            opened, engines = [*self._opened], self._engines
            for engine in opened:
                engine.keep_hits()
            self.__init__(self.folder, self._device)  # type: ignore[misc]
            for engine in opened:
                engine.become(self.open(engine.name))
            self._opened, self._engines = WeakSet(opened), engines

    def _missing(self, system: System) -> str | None:
        """What a system lacks to be searched: the index of a part, or its weights."""
        run = self._run
        missing = (f"index of {part.name}" for part in system.searched if not run.has(index_of(part, run).output))
        chosen = ranking_of(system, run).chosen
        lacks_weights = chosen and not run.has(chosen.output)
        return next(missing, f"weights of {system.name}" if lacks_weights else None)

    def _retriever(self, system: System) -> Retriever:
        if system.name not in self._retrievers:
            index, config = index_of(system, self._run), self._run.experiment.collection
            self._retrievers[system.name] = Retriever(
                index.output,
                index.query_encoder(),
                system.query,
                self._device,
                options=SearchOptions(config.bm25),
                encoders=self._encoders,
            )
        return self._retrievers[system.name]

    @cached_property
    def _files(self) -> FileListing | None:
        return FileListing.load(self._run.files)

    @cached_property
    def _texts(self) -> Searcher | None:
        return index_with_texts(self._run)


def index_with_texts(run: RunFolder) -> Searcher | None:
    """An index of a run that stores the documents, as dense ones cannot; None if there is none."""
    is_complete = run.has if run.is_finished else artifact.read_manifest
    indexes = filter(is_complete, (path.parent for path in sorted(run.folder.glob("indexes/*/segments_*"))))
    return next((open_searcher(index) for index in indexes if artifact.require(index, "index").stats["raw"]), None)


def _unsearchable_part(system: System) -> str | None:
    """The part of a system whose scores need more than indexes."""
    return next((part.name for part in system.walk() if not part.searchable), None)


def _change(folder: Path, action: Action, given: Any) -> None:
    """Add or delete documents, or replace those with the same ids and add the others; then update the run. If that
    fails, the documents are as before; a change that was killed is finished first. Raises CaiError for a run of the
    user's own files, for an id to add that is there, for one to delete that is not, and for deleting all documents."""
    config = RunFolder(folder).experiment.collection
    path = Path(config.source)
    if not path.name.endswith(OF_PYTHON):
        raise CaiError(f"{folder} was made of {path}: change documents there, then `cai-pyserini update {folder}`")
    previous = path.with_suffix(".previous")
    if previous.exists():  # a change that was killed
        with _undone_by_errors(path, previous):
            _update(folder)
    ids = {_id(line) for line in _lines(path)}
    new, gone = dict[str, str](), set[str]()
    if action == "delete":
        gone = {checked_id(getattr(id, "id", id), "the document") for id in given}
        if gone == ids:
            raise CaiError("these are all documents, and an index has at least one")
        if unknown := min(gone - ids, default=None):
            raise CaiError(f"there is no document {unknown!r} to delete")
    else:
        types = in_python.MetadataTypes(config.metadata, bool(config.strict))
        unused = 1 + max((int(id) for id in ids if id.isdecimal()), default=-1)
        new = dict(in_python.lines(in_python.documents(given, unused if action == "add" else None), types))
        if action == "add" and (known := next((id for id in new if id in ids), None)):
            raise CaiError(f"document {known!r} is there already: `update` replaces it")
        types.warn()
        if types.undeclared:
            logger.warning("metadata left out, which the index does not have: %s", ", ".join(types.undeclared))
    os.link(path, previous)
    with _undone_by_errors(path, previous):
        with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(new.pop(id, line) for line in _lines(previous) if (id := _id(line)) not in gone)
            file.writelines(new.values())
        _update(folder)


def _update(folder: Path) -> None:
    from cai_pyserini.experiments.update import update  # imports what searches do not need

    with redirect_stdout(sys.stderr):
        for line in update(folder):
            progress_line(line)


@contextmanager
def _undone_by_errors(path: Path, previous: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        previous.replace(path)
        raise
    previous.unlink()


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [*file]


def _id(line: str) -> str:
    return str(json.loads(line)["_id"])
