"""A retriever for Haystack."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from haystack import Document, component

from cai_pyserini.core.metadata import NAME
from cai_pyserini.engine.open import Run, open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.filters import BadFilter
from cai_pyserini.plugin.documents import documents

CONNECTIVES = {"AND": " AND ", "OR": " OR ", "NOT": " AND "}
OPEN_LOCK = Lock()  # not a field, so that components can be copied
OPERATORS = {"==": ":", "!=": ":", "in": ":", "not in": ":", ">": ">", ">=": ">=", "<": "<", "<=": "<="}


@component
class CaiRetriever:
    """Retrieve the best `top_k` documents, from a system of a run folder or, without `system`, from an index.

    The index is opened at first use, so that pipelines with this component can be saved.
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
        with OPEN_LOCK:
            if self._engine is None:
                folder, device = Path(self.folder), self.device
                self._engine = (
                    Run(folder, device).open(self.system) if self.system else open_index(folder, device=device)
                )
            return self._engine

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        filters, hits = filters or self.filters, self.top_k if top_k is None else top_k
        retrieved = documents(self.warm_up(), query, hits, as_text(filters) if filters else None)
        return {"documents": [Document(id=d.id, content=d.text, meta=d.metadata, score=d.score) for d in retrieved]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return await asyncio.to_thread(self.run, query, filters, top_k)


def as_text(filters: Mapping[str, Any]) -> str:
    """Translate a filter of Haystack to indexes.filters' syntax. Raises BadFilter if that cannot express it."""
    operator = filters.get("operator")
    if operator in CONNECTIVES and (conditions := filters.get("conditions")):
        joined = CONNECTIVES[operator].join(f"({as_text(each)})" for each in conditions)
        return f"NOT ({joined})" if operator == "NOT" else joined
    name, value = str(filters.get("field")).removeprefix("meta."), filters.get("value")
    values, takes_list = value if isinstance(value, list) else [value], operator in ("in", "not in")
    if operator not in OPERATORS or None in values or isinstance(value, list) != takes_list or not NAME.fullmatch(name):
        expected = f"{', '.join(CONNECTIVES)} with conditions, or {', '.join(OPERATORS)} with a field and a value"
        raise BadFilter(f"filters: expected {expected} (a list for in and not in), not {filters}")
    quoted = ", ".join(map(_quoted, values))
    comparison = f"{name}{OPERATORS[operator]}{f'({quoted})' if takes_list else quoted}"
    return f"NOT {comparison}" if operator in ("!=", "not in") else comparison


def _quoted(value: Any) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
