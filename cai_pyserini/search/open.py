"""Open what is on disk: an index, or systems of a run folder."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from cai_pyserini.beir.run_folder import BEIR, RunFolder, current
from cai_pyserini.beir.systems import System, parse_system
from cai_pyserini.core import artifact
from cai_pyserini.core.cache import index_here
from cai_pyserini.core.errors import CaiError
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Representation
from cai_pyserini.fusion.rerank import Reranker as Reranker
from cai_pyserini.index.shards import Index, folders
from cai_pyserini.retrieval.lucene import LuceneIndex
from cai_pyserini.search.engine import Engine
from cai_pyserini.search.retriever import Retriever

BM25 = parse_system("bm25")


def open_index(
    index: Index, encoder: str | None = None, query: Representation | None = None, device: str = "auto"
) -> Engine:
    """Open an index, or all shards of one, as a system named after the first folder.

    `encoder`, by default that of the index, encodes queries; a dense index needs one.
    """
    name = folders(index)[0].resolve().name
    retriever = Retriever(index, encoder, query, device)
    return Engine(name, {name: retriever}, language=retriever.language)


def open_systems(folders: Sequence[Path], systems: Sequence[str] = (), device: str = "auto") -> dict[str, Engine]:
    """Open indexes, and systems of run folders (by default all that have indexes), by name; the best of a run first.

    They are opened again if an update meanwhile deletes the version of a run that was current. Raises CaiError for
    what cannot be opened, and for two of one name.
    """
    engines: dict[str, Engine] = {}
    places = _places(folders)
    with ExitStack() as on_error:
        try:
            for folder in places:
                opened: Iterable[Engine]
                if artifact.require_if_ours(folder):
                    opened = [open_index(folder, device=device)]
                else:
                    run = OpenRun(folder, device)
                    best = run.systems
                    opened = map(run.open, sorted(systems or best, key=lambda name: (*best, name).index(name)))
                for engine in opened:
                    on_error.callback(engine.close)
                    if engines.setdefault(engine.name, engine) is not engine:
                        raise CaiError(f"{folder}: there are two {engine.name}; serve them on two ports, or rename one")
            on_error.pop_all()
            return engines
        except Exception:  # of many kinds, where files are missing
            if _places(folders) == places:
                raise
    return open_systems(folders, systems, device)


def _places(folders: Sequence[Path]) -> list[Path]:
    """The folders, or where a link leads to now."""
    return [current(index_here(folder)) for folder in folders]


class OpenRun:
    """A run folder whose systems are opened one by one, and share indexes and models.

    Raises CaiError for a folder without a finished run.
    """

    def __init__(self, folder: Path, device: str = "auto"):
        self._run, self._device = RunFolder(folder), device
        results = self._run.results
        self._scores = dict.fromkeys([*results.systems, *results.searches.values()], 0.0)  # the latter without queries
        self._scores |= {name: row.get("nDCG@10", 0.0) for name, row in results.systems.items()}
        self._retrievers: dict[str, Retriever] = {}
        self._encoders: dict[str, Encoder] = {}

    @property
    def systems(self) -> list[str]:
        """The systems that can be opened, the best first: by the measures of the run, or else as is likely. An update
        without evaluation keeps their order."""
        systems = [parse_system(name) for name in self._scores]
        results = self._run.results
        if results.scored:
            systems.sort(key=lambda system: self._scores[system.name], reverse=True)
        elif any(results.systems.values()) or not results.systems:
            systems.sort(key=lambda system: system.expected_quality, reverse=True)
        return [s.name for s in systems if not _unfit(s) and not self._missing(s)]

    def open(self, name: str) -> Engine:
        """A system. Raises CaiError for a missing index, and for cross-encoder and -exact."""
        system, experiment = parse_system(name), self._run.experiment
        if unfit := _unfit(system):
            raise CaiError(f"{unfit} cannot be searched by hand: its scores need more than indexes")
        if missing := self._missing(system):
            raise CaiError(
                f"{self._run.root} has no up-to-date index of {missing}: run {BEIR} with --systems {name}, "
                f"or take one of {', '.join(self.systems)}"
            )
        parts = _searched(system)
        retrievers = {part.name: self._retriever(part) for part in parts}
        has_words = BM25.name in self._run.results.searches and not self._missing(BM25)
        texts = self._retriever(BM25).index if has_words else None
        if texts is None and all(part.kind == "dense" for part in parts):
            texts = self._texts
        passages, language = experiment.collection.passages is not None, experiment.collection.language
        depth, hits = experiment.depth, experiment.collection.hits
        if system.kind != "hybrid":
            return Engine(name, retrievers, hits=hits, passages=passages, texts=texts, language=language)
        return Engine(name, retrievers, system.fusion, depth, hits, self._weights(system), passages, texts, language)

    def _missing(self, system: System) -> str | None:
        """The first part of a system that has no index."""
        parts = _searched(system)
        return next((part.name for part in parts if not self._run.has(self._run.index(part))), None)

    def _retriever(self, system: System) -> Retriever:
        if system.name not in self._retrievers:
            encoder = self._run.encoder(system).config if system.kind == "dense" else None
            query: Representation | None = "bow" if system.bow else "splade" if system.kind == "splade" else None
            index, config = self._run.index(system), self._run.experiment.collection
            how = self._device, config.k1, config.b, self._encoders
            self._retrievers[system.name] = Retriever(index, encoder, query, *how)
        return self._retrievers[system.name]

    @cached_property
    def _texts(self) -> LuceneIndex | None:
        return index_with_texts(self._run)

    def _weights(self, hybrid: System) -> Sequence[float] | None:
        """The weights of a hybrid's parts: given or chosen ones."""
        given = self._run.experiment.weights_of(hybrid)
        return self._run.chosen_weights() if hybrid.balanced and not given else given


def index_with_texts(run: RunFolder) -> LuceneIndex | None:
    """An index of a run that stores the documents, which a dense one cannot; None if there is none."""
    is_complete = run.has if run.is_finished else artifact.read_manifest
    indexes = filter(is_complete, (path.parent for path in sorted(run.folder.glob("indexes/*/segments_*"))))
    return next((LuceneIndex(index) for index in indexes if artifact.require(index, "index").stats["raw"]), None)


def _searched(system: System) -> Sequence[System]:
    return system.parts if system.kind == "hybrid" else (system,)


def _unfit(system: System) -> str | None:
    """The part of a system that needs more than indexes."""
    return next((s.name for s in system.walk() if s.kind == "cross-encoder" or s.exact), None)
