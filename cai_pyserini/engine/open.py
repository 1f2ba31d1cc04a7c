"""Open what is on disk: an index, or a system of a run folder."""

import json
from pathlib import Path
from typing import Any

from cai_pyserini.beir.layout import Layout
from cai_pyserini.beir.systems import System, parse_system
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.encode.queries import Representation
from cai_pyserini.engine.engine import Engine
from cai_pyserini.engine.lucene_index import LuceneIndex
from cai_pyserini.engine.retriever import Retriever


def open_index(
    index: Path, encoder: str | None = None, query: Representation | None = None, device: str = "auto"
) -> Engine:
    """An index as a system. `encoder`, by default that of the index, encodes queries; a dense index needs one."""
    name = index.resolve().name
    return Engine(name, {name: Retriever(index, encoder, query, device)})


def open_system(folder: Path, name: str | None = None, device: str = "auto") -> Engine:
    """A system of a run folder, by default the best that has indexes.

    Raises CaiError for a folder without a finished run, for a system whose indexes it does not have, and for one that
    needs more than indexes: cross-encoder, -exact and -prf.
    """
    layout = Layout(folder)
    settings = _settings(layout)
    name = name or searchable(folder)[0]
    system = parse_system(name)
    parts = system.parts if system.kind == "hybrid" else (system,)
    if unfit := next((s for s in system.walk() if s.kind == "cross-encoder" or s.exact or s.feedback), None):
        raise CaiError(f"{unfit.name} cannot be searched by hand: its scores need more than indexes")
    if missing := next((part for part in parts if not artifact.read_manifest(layout.index(part))), None):
        raise CaiError(
            f"{folder} has no index of {missing.name}; it has {', '.join(searchable(folder))}. Run "
            f"`python -m cai_pyserini.beir` with --systems {name}"
        )
    retrievers = {part.name: _retriever(layout, part, settings, device) for part in parts}
    texts = _texts(layout) if all(part.kind == "dense" for part in parts) else None
    passages = settings["collection"]["passages"] is not None
    if system.kind != "hybrid":
        return Engine(name, retrievers, passages=passages, texts=texts)
    weights = _weights(layout, system)
    return Engine(name, retrievers, system.fusion, settings["depth"], settings["hits"], weights, passages, texts)


def searchable(folder: Path) -> list[str]:
    """The systems of a run folder that can be searched, the best first."""
    layout = Layout(folder)
    systems = json.loads(layout.results.read_text())["systems"]
    names = sorted(systems, key=lambda name: -systems[name]["nDCG@10"])
    return [name for name in names if _has_indexes(layout, parse_system(name))]


def _has_indexes(layout: Layout, system: System) -> bool:
    fit = not any(s.kind == "cross-encoder" or s.exact or s.feedback for s in system.walk())
    return fit and all(layout.index(part).is_dir() for part in system.parts or (system,))


def _settings(layout: Layout) -> dict[str, Any]:
    if not layout.results.is_file():
        raise CaiError(f"{layout.folder} has no finished run: make one with `python -m cai_pyserini.beir`")
    settings: dict[str, Any] = json.loads(layout.results.read_text())["settings"]
    return settings


def _retriever(layout: Layout, system: System, settings: dict[str, Any], device: str) -> Retriever:
    encoder: EncoderConfig | None = None
    if system.kind == "dense":
        encoder = build(EncoderConfig, settings["dense"], str(layout.results))
        if system.adapted:
            encoder = load_encoder(str(layout.adapted_dense))
        encoder = encoder.replace(idf=str(layout.idf(system)) if system.idf else None)
    query: Representation | None = "bow" if system.bow else "splade" if system.kind == "splade" else None
    return Retriever(layout.index(system), encoder, query, device, settings["bm25"]["k1"], settings["bm25"]["b"])


def _texts(layout: Layout) -> LuceneIndex | None:
    """An index that stores the documents, which a dense one cannot; None if there is none."""
    indexes = (path.parent for path in sorted(layout.folder.glob("indexes/*/segments_*")))
    return next((LuceneIndex(index) for index in indexes if artifact.require(index, "index").recipe["raw"]), None)


def _weights(layout: Layout, hybrid: System) -> list[float] | None:
    """The weights of a hybrid's parts: those of its run, or else those that were chosen for the collection."""
    if run := artifact.read_manifest(layout.run(hybrid)):
        weights: list[float] | None = run.recipe["weights"]
        return weights
    return list(json.loads(layout.weights.read_text()).values()) if hybrid.balanced else None
