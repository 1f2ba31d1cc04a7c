"""A retriever for LangChain."""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from cai_pyserini.engine.search import Engine
from cai_pyserini.plugin.documents import documents


class CaiRetriever(BaseRetriever):
    """Retrieve the best `k` documents of a system, with the score in their metadata."""

    engine: Engine
    k: int = 10
    filter: str | None = None

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(id=d.id, page_content=d.text, metadata=d.metadata | {d.score_name: d.score})
            for d in documents(self.engine, query, self.k, self.filter)
        ]
