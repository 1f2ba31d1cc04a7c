"""The JSON lines that Seismic reads."""

from pathlib import Path

from cai_pyserini.core import jsonl
from cai_pyserini.plugin.source import Source


def write_seismic(source: Source, folder: Path) -> list[str]:
    """Write documents.jsonl, {"id": …, "content": "", "vector": {term: impact}}, and queries.jsonl."""
    records = ({"id": id, "content": "", "vector": vector} for id, vector in source.documents() if vector)
    written = jsonl.write(folder / "documents.jsonl", records)
    source.write_queries(folder)
    empty = source.manifest.stats["vectors"] - written
    return [
        f"documents without any impact: {empty:,}; none of them matches a query",
        "exactness: Seismic skips documents that its summaries rule out; heap_factor and query_cut control how many",
    ]
