"""A retriever for Haystack."""

from pathlib import Path
from threading import Lock

from haystack import Document, component

from cai_pyserini.engine.open import Run, open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.plugin.documents import documents

OPEN_LOCK = Lock()  # not a field, so that components can be copied


@component
class CaiRetriever:
    """Retrieve the best `top_k` documents, from a system of a run folder or, without `system`, from an index.

    `filter` is of indexes.filters. The index is opened at first use, so that pipelines with this component can be
    saved.
    """

    def __init__(
        self, folder: str, system: str | None = None, filter: str | None = None, top_k: int = 10, device: str = "auto"
    ):
        self.folder, self.system, self.filter, self.top_k, self.device = folder, system, filter, top_k, device
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
    def run(self, query: str, filter: str | None = None, top_k: int | None = None) -> dict[str, list[Document]]:
        hits = self.top_k if top_k is None else top_k
        retrieved = documents(self.warm_up(), query, hits, filter or self.filter)
        return {"documents": [Document(id=d.id, content=d.text, meta=d.metadata, score=d.score) for d in retrieved]}
