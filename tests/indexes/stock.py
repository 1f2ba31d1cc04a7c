"""Indexes as stock Pyserini sees them."""

import json
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

Hits = list[tuple[str, float]]


def run_module(module: str, *arguments: object) -> None:
    """Run a module of Pyserini's as `python -m` does, in this process, where it has been imported."""
    with patch.object(sys, "argv", [module, *map(str, arguments)]):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def reader(index: Path) -> Any:
    """Pyserini's reader of an index."""
    from pyserini.index.lucene import LuceneIndexReader

    return LuceneIndexReader(str(index))


def postings(index: Path, term: str) -> dict[str, int]:
    """Document id -> impact of a term."""
    stock = reader(index)
    found = stock.get_postings_list(term, analyzer=None) or []
    return {stock.convert_internal_docid_to_collection_docid(posting.docid): posting.tf for posting in found}


def everything(index: Path) -> list[tuple[str, str | None, dict[str, int]]]:
    """All documents of an index in its order: id, stored document, and impacts."""
    stock = reader(index)
    numbers = range(stock.stats()["documents"])
    documents: list[tuple[str, str | None, dict[str, int]]] = [
        (stock.convert_internal_docid_to_collection_docid(n), stock.reader.storedFields().document(n).get("raw"), {})
        for n in numbers
    ]
    for term in stock.terms():
        for posting in stock.get_postings_list(term.term, analyzer=None):
            documents[posting.docid][2][term.term] = posting.tf
    return documents


def search(index: Path, *queries: dict[str, int], hits: int = 100) -> list[Hits]:
    """What Pyserini finds for queries of impacts."""
    from pyserini.encode import QueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    class PreEncoded(QueryEncoder):
        def encode(self, text: str, **kwargs: Any) -> dict[str, int]:
            return json.loads(text)

    searcher = LuceneImpactSearcher(str(index), PreEncoded(), min_idf=-1)
    return [[(hit.docid, hit.score) for hit in searcher.search(json.dumps(query), hits)] for query in queries]


def bm25(
    index: Path, queries: Iterable[str], k1: float = 0.9, b: float = 0.4, hits: int = 100, language: str | None = None
) -> list[Hits]:
    """What Pyserini finds for text."""
    from pyserini.search.lucene import LuceneSearcher

    searcher = LuceneSearcher(str(index))
    searcher.set_bm25(k1, b)
    if language:
        searcher.set_language(language)
    return [[(hit.docid, hit.score) for hit in searcher.search(query, hits)] for query in queries]
