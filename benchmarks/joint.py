"""Size, speed and nDCG@10 of a joint index, beside the two indexes of a hybrid.

Compared are joint, with all words of BM25 and with only those that the encoder's vocabulary splits (those
of which most occurrences are in words of several pieces), and hybrid-splade-idf-minmax; and the same with bag-of-words
queries (-doc). Queries are encoded beforehand. Each goes to every system in turn, one thread, in an order that changes
from query to query, after 1,000 queries as a warm-up; a hybrid takes 100 hits of both indexes and min-max sums. Sizes
are also given without the positions and document vectors that the BM25 index stores for query expansion; no index
stores the documents.
"""

import json
import re
import time
from collections import Counter
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness

DEPTH = 100
HITS = 10
FOR_EXPANSION = (".pos", ".tvd", ".tvx", ".tvm")  # files of positions and document vectors
JOINT = "joint-splade-idf"  # the name of its files
SYSTEMS = {"joint": [JOINT], "joint, split words": ["split"], "hybrid": ["bm25", "splade-idf"]}


def prepare(collection: str, encoder: str, folder: str) -> harness.Result:
    """A run folder, and the index with only the words that the vocabulary splits."""
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.indexes.analyzer import Analyzer
    from cai_pyserini.indexes.impact_index import index_impacts
    from cai_pyserini.models.checkpoint import checkpoint_folder
    from cai_pyserini.models.tokenizer import WORD, Tokenizer

    systems = ["bm25", "splade-idf", "joint"]
    harness.stage("run", collection, "--no-raw", encoder=encoder, systems=systems, output=f"{folder}/run")
    tokenizer, analyzer = Tokenizer(checkpoint_folder(load_encoder(encoder))), Analyzer()
    surface: Counter[str] = Counter()
    for document in harness.opened(collection)[0].documents():
        surface.update(re.findall(r"\w+", document.contents))
    split: Counter[str] = Counter()
    for form, pieces in zip(surface, tokenizer.encode(list(surface), None, special=False), strict=True):
        for word in analyzer(form):
            split[word] += surface[form] if len(pieces) > 1 else -surface[form]
    source, target = Path(folder, "run/impacts", JOINT), Path(folder, "split-impacts")
    target.mkdir()
    for path in sorted(source.glob("*.jsonl")):
        with path.open() as lines, (target / path.name).open("w") as output:
            for line in lines:
                record = json.loads(line)
                vector = record["vector"].items()
                kept = {t: w for t, w in vector if not t.startswith(WORD) or split[t.removeprefix(WORD)] > 0}
                output.write(json.dumps(record | {"vector": kept}) + "\n")
    index_impacts(target, Path(folder, "run/indexes/split"))
    return {}


def search(collection: str, folder: str) -> harness.Result:
    """Median milliseconds, sizes and nDCG@10 of every system."""
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.indexes.analyzer import Analyzer
    from cai_pyserini.indexes.engines import open_searcher
    from cai_pyserini.models.encoder import EncoderModel
    from cai_pyserini.runs.measures import mean, measure
    from cai_pyserini.runs.trec import run_of
    from cai_pyserini.vectors.queries import Queries, WordQueries

    _, topics, qrels = harness.opened(collection)
    indexes = {name: Path(folder, "run/indexes", name) for parts in SYSTEMS.values() for name in parts}
    searchers = {name: open_searcher(path) for name, path in indexes.items()}
    joint = load_encoder(str(indexes[JOINT]))
    encoder, words = EncoderModel(joint), WordQueries(Analyzer(), joint)
    result: harness.Result = {}
    for kind in ("splade", "bow"):
        plain, _ = Queries(topics, encoder, kind).for_search(joint.query_scale)
        both, _ = Queries(topics, encoder, kind, words=words).for_search(joint.query_scale)
        asked = {"bm25": topics, "splade-idf": plain, JOINT: both, "split": both}

        def found_by(parts: list[str], id: str, asked: Any = asked) -> list[tuple[str, float]]:
            if len(parts) == 1:
                return searchers[parts[0]].search(asked[parts[0]][id], HITS)
            scores: Counter[str] = Counter()
            for name in parts:
                hits = searchers[name].search(asked[name][id], DEPTH)
                low, high = (hits[-1][1], hits[0][1]) if hits else (0.0, 0.0)
                for document, score in hits:
                    scores[document] += (score - low) / (high - low) if high > low else 1.0
            return scores.most_common(HITS)

        seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
        found: dict[str, dict[str, Any]] = {name: {} for name in SYSTEMS}
        for number, id in enumerate([*islice(cycle(topics), harness.WARM_UP), *topics]):
            for name in sorted(SYSTEMS, reverse=number % 2 == 0):
                start = time.perf_counter()
                found[name][id] = found_by(SYSTEMS[name], id)
                seconds[name].append(time.perf_counter() - start)
        for name, parts in SYSTEMS.items():
            files = [file for part in parts for file in indexes[part].iterdir()]
            result[f"{name}, {kind} queries"] = {
                "ms": 1000 * median(seconds[name][harness.WARM_UP :]),
                "bytes": sum(file.stat().st_size for file in files),
                "needed": sum(file.stat().st_size for file in files if file.suffix not in FOR_EXPANSION),
                "ndcg": mean(measure(qrels, run_of(found[name]), ["nDCG@10"])["nDCG@10"]),
            }
    return result


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    with TemporaryDirectory() as folder:
        harness.fresh(prepare, collection=args.collection, encoder=args.encoder, folder=folder)
        searching = partial(harness.fresh, search, collection=args.collection, folder=folder)
        results = harness.rounds(args.repeats, {"search": searching})["search"]
    rows = []
    for name in [name for name in results[0] if name != "peak"]:
        first, ms = results[0][name], harness.middle([result[name] for result in results], "ms")
        sizes = (f"{first[key] / 1e6:.2f}" for key in ("bytes", "needed"))
        rows.append((name, f"{first['ndcg']:.4f}", *sizes, f"{ms:.3f}"))
    title = f"Joint indexes of {Path(args.collection).name}, {HITS} hits, medians of {args.repeats}"
    header = ("", "nDCG@10", "indexes, MB", "without positions and vectors", "ms per query")
    harness.show(title, header, rows)


if __name__ == "__main__":
    main()
