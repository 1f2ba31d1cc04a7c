"""Hits with their documents, of which the retrievers of other frameworks make theirs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.search.engine import Engine, Hit, Stored


class Found(NamedTuple):
    """A hit with its document, or, in an index of passages, with the document's best passage."""

    id: str  # in the index
    document: str  # the id of the document
    score: float
    text: str  # what is searched, with the title
    metadata: dict[str, Any]  # that of the document, and its title; both may be missing
    score_name: str  # of the score, in metadata


def documents(engine: Engine, text: str, hits: int, filter: str | None = None) -> Iterator[Found]:
    """Yield the best documents for a text, see Engine.search and `stored`."""
    title, score = (_free(name, engine) for name in ("title", "score"))
    (ranking,) = engine.search([text], hits, filter=filter) if hits else [[]]
    for hit in ranking:
        document = stored(engine, hit)
        metadata = dict(document.metadata) | ({title: document.title} if document.title else {})
        yield Found(hit.stored, hit.id, hit.score, document.contents, metadata, score)


def _free(name: str, engine: Engine) -> str:
    """The name, after as many underscores as metadata of the collection takes."""
    return _free(f"_{name}", engine) if name in engine.metadata else name


def stored(engine: Engine, hit: Hit) -> Stored:
    """The document of a hit, or its best passage. Raises CaiError if no index stores documents."""
    if (document := engine.document(hit.stored)) is None:
        raise CaiError(f"no index of {engine.name} stores documents: build one without --no-raw")
    return document
