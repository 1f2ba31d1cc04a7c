"""JSONL that Seismic builds its approximate index from: {"id": …, "content": "", "vector": {term: weight}}."""

from pathlib import Path

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.export.source import Source


def export_seismic(source: Source, output: Path) -> artifact.Manifest:
    """Write documents.jsonl and, if there are topics, queries.jsonl."""

    def write(folder: Path) -> list[str]:
        found = ({"id": id, "content": "", "vector": vector} for id, vector in source.documents() if vector)
        written = jsonl.write(folder / "documents.jsonl", found)
        queries = source.queries()
        if queries:
            jsonl.write(folder / "queries.jsonl", ({"id": id, "vector": vector} for id, vector in queries.items()))
        empty = source.manifest.stats["vectors"] - written
        return [
            f"documents without any impact: {empty:,}; none of them matches a query",
            "exactness: Seismic skips documents that its summaries rule out; heap_factor and query_cut say how many",
        ]

    return source.export(output, write, "seismic")
