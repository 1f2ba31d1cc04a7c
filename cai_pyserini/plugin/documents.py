"""Hits with their documents, for the retrievers of other frameworks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.hits import Hit
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.searcher import Stored


class RetrievedDocument(NamedTuple):
    """A hit with its document or, in an index of passages, its best passage, whose metadata say where it is."""

    id: str  # of the document or passage
    document: str  # the document's id
    score: float
    text: str  # title and text
    metadata: dict[str, Any]  # with the title, if there is one
    score_name: str  # a key for the score that metadata does not use


def documents(engine: Engine, text: str, hits: int, filter: str | None = None) -> Iterator[RetrievedDocument]:
    """Yield the best documents for a query, as of Engine.search. Raises CaiError if no index stores documents."""
    name = {each: _unused_name(each, engine) for each in ("title", "score", "document", "start", "end")}
    for hit in engine.search(text, hits, filter=filter) if hits else ():
        document = stored(engine, hit)
        metadata: dict[str, Any] = dict(document.metadata)
        if document.title:
            metadata[name["title"]] = document.title
        if hit.passage:
            metadata |= {name["document"]: hit.id, name["start"]: hit.start, name["end"]: hit.end}
        yield RetrievedDocument(hit.stored, hit.id, hit.score, document.contents, metadata, name["score"])


def _unused_name(name: str, engine: Engine) -> str:
    """The name, prefixed with underscores until no metadata field of the collection has it."""
    return _unused_name(f"_{name}", engine) if name in engine.metadata else name


def stored(engine: Engine, hit: Hit) -> Stored:
    """The document of a hit, or its best passage. Raises CaiError if no index stores documents."""
    if hit.document is None:
        raise CaiError(f"no index of {engine.name} stores documents: make one without the setting no_raw")
    return hit.document
