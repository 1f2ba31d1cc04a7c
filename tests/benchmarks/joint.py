"""Claim: a joint index is smaller than the two indexes of a hybrid, and one search of it is faster than two and a
fusion, for rankings that are at least as good.

Compared are joint-splade-idf, with all words of BM25 and with only those that the encoder's vocabulary splits (those
of which most occurrences are in words of several pieces), and hybrid-splade-idf-minmax; and the same with bag-of-words
queries (-doc). Queries are encoded beforehand. Each goes to every system in turn, one thread, in an order that changes
from query to query, after 300 queries as a warm-up; a hybrid takes 100 hits of both indexes and min-max sums. Sizes
are also given without the positions and document vectors that the BM25 index stores for query expansion; no index
stores the documents.
"""

import json
import re
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness

DEPTH = 100
HITS = 10
WARM_UP = 300
FOR_EXPANSION = (".pos", ".tvd", ".tvx", ".tvm")  # files of positions and document vectors


def prepare(collection: str, encoder: str, folder: str) -> dict[str, Any]:
    """A run folder, and the index with only the words that the vocabulary splits."""
    from cai_pyserini.beir.__main__ import main as beir
    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.index.impact import index_impacts
    from cai_pyserini.models.checkpoint import checkpoint_folder
    from cai_pyserini.models.tokenizer import WORD, Tokenizer
    from cai_pyserini.words.analyzer import Analyzer

    systems = ["bm25", "splade-idf", "joint-splade-idf"]
    beir([collection, "--encoder", encoder, "--output", f"{folder}/run", "--no-raw", "--systems", *systems])
    tokenizer, analyzer = Tokenizer(checkpoint_folder(load_encoder(encoder))), Analyzer()
    surface: Counter[str] = Counter()
    for document in open_collection(load_index_config(collection)).documents():
        surface.update(re.findall(r"\w+", document.contents))
    forms = list(surface)
    pieces = tokenizer.encode(forms, None, special=False)
    split: Counter[str] = Counter()
    for form, of_form in zip(forms, pieces, strict=True):
        for word in analyzer(form):
            split[word] += surface[form] if len(of_form) > 1 else -surface[form]
    source, target = (Path(folder, "run/impacts/joint-splade-idf"), Path(folder, "split-impacts"))
    target.mkdir()
    for path in sorted(source.glob("*.jsonl")):
        with path.open() as lines, (target / path.name).open("w") as output:
            for line in lines:
                record = json.loads(line)
                record["vector"] = {
                    term: impact
                    for term, impact in record["vector"].items()
                    if not term.startswith(WORD) or split[term.removeprefix(WORD)] > 0
                }
                output.write(json.dumps(record) + "\n")
    index_impacts(target, Path(folder, "split"))
    return {}


def search(collection: str, folder: str) -> dict[str, Any]:
    """Median milliseconds, sizes and nDCG@10 of every system."""
    import numpy as np

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.core.trec import run_of
    from cai_pyserini.encode.encoder import Encoder
    from cai_pyserini.encode.queries import Queries, WordQueries
    from cai_pyserini.evaluate.measures import mean, measure
    from cai_pyserini.retrieval.search import open_searcher
    from cai_pyserini.words.analyzer import Analyzer

    config = load_index_config(collection)
    opened = open_collection(config)
    topics, qrels = opened.topics(config.split), opened.qrels(config.split)
    indexes = {name: Path(folder, "run/indexes", name) for name in ("bm25", "splade-idf", "joint-splade-idf")}
    indexes["split"] = Path(folder, "split")
    searchers = {name: open_searcher(path) for name, path in indexes.items()}
    joint = load_encoder(str(indexes["joint-splade-idf"]))
    encoder, words = Encoder(joint), WordQueries(Analyzer(), joint)
    sizes = {name: [(file.suffix, file.stat().st_size) for file in path.iterdir()] for name, path in indexes.items()}
    result: dict[str, Any] = {}
    for query in ("splade", "bow"):
        plain, _ = Queries(topics, encoder, query).for_search(joint.query_scale)
        both, _ = Queries(topics, encoder, query, words=words).for_search(joint.query_scale)

        def hybrid(id: str, plain: dict[str, Any] = plain) -> dict[str, float]:
            scores: Counter[str] = Counter()
            for name, asked in (("bm25", topics[id]), ("splade-idf", plain[id])):
                hits = searchers[name].search(asked, DEPTH)
                low, high = (hits[-1][1], hits[0][1]) if hits else (0.0, 0.0)
                for document, score in hits:
                    scores[document] += (score - low) / (high - low) if high > low else 1.0
            return dict(scores.most_common(HITS))

        systems = {
            "joint": lambda id, both=both: searchers["joint-splade-idf"].search(both[id], HITS),
            "joint, split words": lambda id, both=both: searchers["split"].search(both[id], HITS),
            "hybrid": hybrid,
        }
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        found: dict[str, dict[str, Any]] = {name: {} for name in systems}
        for number, id in enumerate([*islice(cycle(topics), WARM_UP), *topics]):
            for name in sorted(systems, reverse=number % 2 == 0):
                start = time.perf_counter()
                hits = systems[name](id)
                seconds[name].append(time.perf_counter() - start)
                found[name][id] = list(dict(hits).items())
        for name, index in zip(systems, (["joint-splade-idf"], ["split"], ["bm25", "splade-idf"]), strict=True):
            result[f"{name}, {query} queries"] = {
                "ms": 1000 * float(np.median(seconds[name][WARM_UP:])),
                "bytes": sum(size for part in index for _, size in sizes[part]),
                "needed": sum(size for part in index for suffix, size in sizes[part] if suffix not in FOR_EXPANSION),
                "ndcg": mean(measure(qrels, run_of(found[name]), ["nDCG@10"])["nDCG@10"]),
            }
    return result


def main() -> None:
    parser = harness.parser(__doc__, "joint")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        harness.fresh(prepare, collection=args.collection, encoder=args.encoder, folder=folder)
        results = harness.rounds(
            args.repeats, {"search": lambda: harness.fresh(search, collection=args.collection, folder=folder)}
        )["search"]
    names = [name for name in results[0] if name != "peak"]
    milliseconds = {name: [result[name]["ms"] for result in results] for name in names}
    first = results[0]
    rows = [
        (
            name,
            f"{first[name]['ndcg']:.4f}",
            *(f"{first[name][key] / 1e6:.2f}" for key in ("bytes", "needed")),
            f"{median(milliseconds[name]):.3f}",
        )
        for name in names
    ]
    harness.show(
        f"Joint indexes of {Path(args.collection).name}",
        ("", "nDCG@10", "indexes, MB", "without positions and vectors", "ms per query"),
        rows,
    )
    print(f"Medians of {args.repeats} repetitions; {HITS} hits, without encoding queries.\n")
    for query in ("splade", "bow"):
        joint, hybrid = f"joint, {query} queries", f"hybrid, {query} queries"
        ratio = median(theirs / ours for ours, theirs in zip(milliseconds[joint], milliseconds[hybrid], strict=True))
        harness.target(f"faster than two searches and a fusion, {query} queries", f"{ratio:.2f} times", ratio > 1)
    size = first["hybrid, splade queries"]["bytes"] / first["joint, splade queries"]["bytes"]
    harness.target("smaller than two indexes", f"{size:.2f} times", size > 1)


if __name__ == "__main__":
    main()
