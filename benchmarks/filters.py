"""What a filter costs: searches of BM25 and of impacts, one after another, with and without filters of several widths.

Documents are random texts of 60 words with Zipf's frequencies, of one of 36 years and of 500 journals.
"""

import json
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

FILTERS = {  # share of the documents -> filter
    "all": None,
    "35/36, a range": "year>=1991",
    "35/36, as NOT": "NOT year:1990",
    "1/4, a range": "year>=2017",
    "1/36, a range": "year:2020",
    "1/500, a keyword": "journal:j7",
}
KINDS = {"year": "number", "journal": "string"}


def write_indexes(documents: int, folder: str) -> harness.Result:
    """An index of text and one of impacts, with metadata, and the seconds without and with it."""
    import numpy as np

    from cai_pyserini.collections.beir_folder import BeirFolder
    from cai_pyserini.indexes.impact_index import index_impacts
    from cai_pyserini.indexes.text_index import index_bm25

    draw, source, vectors = np.random.default_rng(0), Path(folder, "source"), Path(folder, "vectors")
    for path in (source, vectors):
        path.mkdir()
    with (source / "corpus.jsonl").open("w") as texts, (vectors / "vectors.jsonl").open("w") as impacts:
        for id, words in enumerate(harness.random_texts(draw, documents)):
            metadata = {"year": int(draw.integers(1990, 2026)), "journal": f"j{draw.integers(500)}"}
            texts.write(json.dumps({"_id": f"d{id}", "text": " ".join(words), "metadata": metadata}) + "\n")
            impacts.write(json.dumps({"id": f"d{id}", "contents": "", "vector": Counter(words)}) + "\n")
    seconds: dict[str, list[float]] = {"text": [], "impacts": []}
    for kinds in ({}, KINDS):
        collection = BeirFolder(source, "source", metadata=kinds)  # type: ignore[arg-type]
        for name in seconds:
            start, output = time.perf_counter(), Path(folder, name + " plain" * (not kinds))
            index_bm25(collection, output) if name == "text" else index_impacts(vectors, output, collection)
            seconds[name].append(time.perf_counter() - start)
    return {"seconds": seconds}


def searching(folder: str, name: str, queries: int) -> harness.Result:
    """The milliseconds of searches with each filter, and of counting facets."""
    import numpy as np

    from cai_pyserini.indexes.engines import open_searcher
    from cai_pyserini.indexes.filters import parse_filter

    searcher = open_searcher(Path(folder, name))
    rows = harness.random_texts(np.random.default_rng(9), queries, 6)
    asked: list[Any] = [" ".join(row) if name == "text" else dict.fromkeys(row, 7) for row in rows]
    measured = {}
    for share, text in FILTERS.items():
        keep = text and parse_filter(text, searcher.metadata)
        times = []
        for query in [*asked, *asked]:  # the first half warms up
            start = time.perf_counter()
            (searcher.filtered(keep) if keep else searcher).search(query, 100)
            times.append(1000 * (time.perf_counter() - start))
        measured[share] = times[queries:]
    times = []
    for query in asked:
        start = time.perf_counter()
        matches = searcher.matches(None, query)
        matches.values("journal", "string", 10), matches.values("year", "number", 10)
        times.append(1000 * (time.perf_counter() - start))
    return {"ms": measured | {"facets: journal and year": times}}


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    args = parser.parse_args()
    import numpy as np

    from cai_pyserini.core.tables import markdown

    rows = [["documents", "index", "p50, ms", "p99, ms"]]
    with TemporaryDirectory() as folder:
        seconds = harness.fresh(write_indexes, documents=args.documents, folder=folder)["seconds"]
        for name in seconds:
            measured = harness.fresh(searching, folder=folder, name=name, queries=args.queries)["ms"]
            for share, times in measured.items():
                rows.append([share, name, *(f"{np.percentile(times, percent):.1f}" for percent in (50, 99))])
    print(f"{args.documents:,} documents, {args.queries:,} queries of 6 words, 100 hits")
    for name, (plain, having) in seconds.items():
        print(f"index of {name}: {plain:.1f} s without metadata, {having:.1f} s with it")
    print(markdown(rows))


if __name__ == "__main__":
    main()
