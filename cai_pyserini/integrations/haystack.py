"""A component of Haystack."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from haystack import Document, component

from cai_pyserini.core.metadata import NAME
from cai_pyserini.integrations.documents import documents
from cai_pyserini.search.engine import BadFilter, Engine
from cai_pyserini.search.open import OpenRun, open_index

JOINED = {"AND": " AND ", "OR": " OR ", "NOT": " AND "}
OPENING = Lock()  # of all, so that components can be copied
SIGNS = {"==": ":", "!=": ":", "in": ":", "not in": ":", ">": ">", ">=": ">=", "<": "<", "<=": "<="}


@component
class CaiRetriever:
    """The best `top_k` documents of a system of a run folder, or, without `system`, of an index.

    It is opened when it is first used, and pipelines with it can be saved.
    """

    def __init__(
        self,
        folder: str,
        system: str | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        device: str = "auto",
    ):
        self.folder, self.system, self.filters, self.top_k, self.device = folder, system, filters, top_k, device
        self._engine: Engine | None = None

    def warm_up(self) -> Engine:
        with OPENING:
            if self._engine is None:
                folder, device = Path(self.folder), self.device
                self._engine = (
                    OpenRun(folder, device).open(self.system) if self.system else open_index(folder, device=device)
                )
            return self._engine

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        filters, hits = filters or self.filters, self.top_k if top_k is None else top_k
        found = documents(self.warm_up(), query, hits, as_text(filters) if filters else None)
        return {"documents": [Document(id=d.id, content=d.text, meta=d.metadata, score=d.score) for d in found]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return await asyncio.to_thread(self.run, query, filters, top_k)


def as_text(filters: Mapping[str, Any]) -> str:
    """A filter of Haystack as one of retrieval.filters. Raises BadFilter for what that cannot express."""
    operator = filters.get("operator")
    if operator in JOINED and (conditions := filters.get("conditions")):
        joined = JOINED[operator].join(f"({as_text(each)})" for each in conditions)
        return f"NOT ({joined})" if operator == "NOT" else joined
    name, value = str(filters.get("field")).removeprefix("meta."), filters.get("value")
    values, several = value if isinstance(value, list) else [value], operator in ("in", "not in")
    if operator not in SIGNS or None in values or isinstance(value, list) != several or not NAME.fullmatch(name):
        expected = f"{', '.join(JOINED)} with conditions, or {', '.join(SIGNS)} with a field and a value"
        raise BadFilter(f"filters: expected {expected} (a list for in and not in), not {filters}")
    quoted = ", ".join(map(_quoted, values))
    comparison = f"{name}{SIGNS[operator]}{f'({quoted})' if several else quoted}"
    return f"NOT {comparison}" if operator in ("!=", "not in") else comparison


def _quoted(value: Any) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
