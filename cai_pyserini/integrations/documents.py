"""Hits with their documents, of which the retrievers of other frameworks make theirs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.search.engine import Engine


class Found(NamedTuple):
    """A hit with its document, or, in an index of passages, with the document's best passage."""

    id: str  # in the index
    document: str  # the id of the document
    score: float
    text: str  # what is searched, with the title
    metadata: dict[str, Any]  # that of the document, and its title; both may be missing


def documents(engine: Engine, text: str, hits: int, filter: str | None = None) -> Iterator[Found]:
    """Yield the best documents for a text, see Engine.search. Raises CaiError if no index stores them."""
    (ranking,) = engine.search([text], hits, filter=filter)
    for hit in ranking:
        if (stored := engine.document(hit.stored)) is None:
            raise CaiError(f"no index of {engine.name} stores documents: build it without --no-raw")
        metadata = dict(stored.metadata) | ({"title": stored.title} if stored.title else {})
        yield Found(hit.stored, hit.id, hit.score, stored.contents, metadata)
