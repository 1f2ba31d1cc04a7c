"""What n-grams, and neighbours' and associated words, add to BM25 in other languages than English.

Every collection is a YAML file or a folder, with its language. A run makes BM25, the indexes with n-grams and with words
that a dense encoder finds, which are searched without a model, dense retrieval, and its fusion with BM25; p compares
each with BM25.
"""

from pathlib import Path

import harness

BASELINE = "bm25"
INDEXES = ["bm25-grams", "bm25-near-words", "bm25-grams-near-words"]
SYSTEMS = [BASELINE, *INDEXES, "dense", "hybrid-dense-zscore", "fused-bm25-grams-dense-zscore"]


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("collections", nargs="+", help="such as data/ja.yaml, which names the language")
    parser.add_argument("--dense", default="e5-small", help="default %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs/languages"), help="of the run folders")
    args = parser.parse_args()
    rows = []
    for collection in args.collections:
        folder = args.output / Path(collection).stem
        settings = {"dense": args.dense, "systems": SYSTEMS, "output": folder}
        harness.stage("run", collection, "--no-raw", **settings)
        values = harness.ndcg(str(folder), SYSTEMS)
        means = [f"{harness.mean_by_seed([values[name]]):.4f}" for name in SYSTEMS]
        differences = [harness.compared([values[BASELINE]], [values[name]]) for name in SYSTEMS[1:]]
        cells = [f"{mean} ({', '.join(each)})" for mean, each in zip(means[1:], differences, strict=True)]
        rows.append((folder.name, len(values[BASELINE]), means[0], *cells))
    harness.show("nDCG@10 (difference to BM25, p)", ("", "queries", *SYSTEMS), rows)


if __name__ == "__main__":
    main()
