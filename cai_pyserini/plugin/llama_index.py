"""A retriever for LlamaIndex."""

import asyncio
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from cai_pyserini.engine.search import Engine
from cai_pyserini.plugin.documents import RetrievedDocument, documents


class CaiRetriever(BaseRetriever):
    """Retrieve the best `similarity_top_k` documents of a system; `settings` are passed to BaseRetriever."""

    def __init__(self, engine: Engine, similarity_top_k: int = 10, filter: str | None = None, **settings: Any):
        super().__init__(**settings)
        self.engine, self.similarity_top_k, self.filter = engine, similarity_top_k, filter

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        retrieved = documents(self.engine, query_bundle.query_str, self.similarity_top_k, self.filter)
        return [NodeWithScore(node=_node(document), score=document.score) for document in retrieved]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(retrieved: RetrievedDocument) -> TextNode:
    """A node with a source; without one, LlamaIndex would drop documents with equal texts."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=retrieved.document)}
    return TextNode(id_=retrieved.id, text=retrieved.text, metadata=retrieved.metadata, relationships=source)
