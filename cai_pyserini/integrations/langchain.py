"""A retriever of LangChain."""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from cai_pyserini.integrations.documents import documents
from cai_pyserini.search.engine import Engine


class CaiRetriever(BaseRetriever):
    """The best `k` documents of a system. Their metadata has the score as well."""

    engine: Engine
    k: int = 10
    filter: str | None = None

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(id=found.id, page_content=found.text, metadata=found.metadata | {found.score_name: found.score})
            for found in documents(self.engine, query, self.k, self.filter)
        ]
