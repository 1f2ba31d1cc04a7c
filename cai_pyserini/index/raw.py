"""Documents as indexes store them: JSON with the id, the contents, and the title if there is one, in the field `raw`.

Pyserini's `searcher.doc(id).raw()` returns it.
"""

import json
from collections.abc import Callable

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core.errors import CaiError


def raw_json(id: str, title: str, contents: str) -> str:
    """The stored form of a document; `contents` is what is searched of it."""
    titled = {"title": title} if title else {}
    return json.dumps({"id": id, **titled, "contents": contents}, ensure_ascii=False)


def raw_documents(collection: Collection) -> Callable[[str], str]:
    """A function that returns the stored form of the document with an id; ids are asked for in the collection's order.

    It raises CaiError for an id that the rest of the collection does not have.
    """
    records = collection.records()

    def raw(id: str) -> str:
        for record in records:
            if record.id == id:
                return raw_json(id, record.title, collection.contents_of(record))
        raise CaiError(f"document {id!r} is not in collection {collection.name}, or not in this order")

    return raw
