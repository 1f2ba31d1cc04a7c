"""A retriever of LlamaIndex."""

import asyncio
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from cai_pyserini.integrations.documents import Found, documents
from cai_pyserini.search.engine import Engine


class CaiRetriever(BaseRetriever):
    """The best `similarity_top_k` documents of a system; `settings` are those of BaseRetriever."""

    def __init__(self, engine: Engine, similarity_top_k: int = 10, filter: str | None = None, **settings: Any):
        super().__init__(**settings)
        self.engine, self.similarity_top_k, self.filter = engine, similarity_top_k, filter

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = documents(self.engine, query_bundle.query_str, self.similarity_top_k, self.filter)
        return [NodeWithScore(node=_node(each), score=each.score) for each in found]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(found: Found) -> TextNode:
    """A document, or a passage of it. Without a source, LlamaIndex would drop documents of the same text."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=found.document)}
    return TextNode(id_=found.id, text=found.text, metadata=found.metadata, relationships=source)
