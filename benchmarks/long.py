"""Long documents: what the settings for them do to the scores, and why windows are pooled by a power mean.

Every row of the first table is one run of `cai-pyserini run` per split: cut off, in windows, as passages, and as
passages of which each has half of its document's first.
The second is of SPLADE vectors with IDF, whose dot products are computed exactly: a document is its first window, or it
has the score of its best window, or one vector, the maximum or a mean over its windows.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

SYSTEMS = ("bm25", "splade-idf", "hybrid-splade-idf-minmax", "joint-doc-near", "joint-near", "dense", "trio")
READINGS: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {  # settings, and the systems to run with them
    "cut off": ({}, SYSTEMS),
    "windows, overlap 0": ({"overlap": 0}, ("splade-idf", "hybrid-splade-idf-minmax", "dense")),
    "windows, overlap 32": ({"overlap": 32}, SYSTEMS[1:3]),
    "windows, overlap 64": ({"overlap": 64}, SYSTEMS[1:3]),
    "passages of 100 words": ({"passages": 100}, SYSTEMS),
    "passages, with the first": ({"passages": 100, "first_passage": 0.5}, SYSTEMS),
}
POWERS = (1, 2, 3, 4, 8)
MEASURES = ("nDCG@10", "R@100")

PerQuery = dict[str, dict[str, float]]  # measure -> query -> value
Values = dict[tuple[str, str], PerQuery]  # system and split


def configure(collection: str, reading: str, encoders: dict[str, str], output: str) -> harness.Result:
    """Write the YAML files of a way of reading: of the collection and of each encoder."""
    from cai_pyserini.core import files
    from cai_pyserini.core.config import encoder_yaml, load_encoder, load_index_config

    settings, folder = READINGS[reading][0], Path(output)
    config = load_index_config(collection)
    source = str(Path(config.source).resolve()) if Path(config.source).is_dir() else config.source
    passages = {name: settings.get(name, 0) for name in ("passages", "first_passage")}
    values = config.replace(source=source, **passages).model_dump(exclude_defaults=True)
    files.write_text(folder / "collection.yaml", json.dumps(values))  # which is YAML, too
    for kind, spec in encoders.items():
        used = load_encoder(spec).replace(overlap=settings.get("overlap"))
        files.write_text(folder / f"{kind}.yaml", encoder_yaml(used, folder))
    return {}


def run(
    collection: str, reading: str, encoders: dict[str, str], output: Path, splits: list[str]
) -> tuple[dict[str, Any], Values]:
    """Run systems with a way of reading: results.json, and the measures of every query of each system."""
    from cai_pyserini.experiments.systems import parse_system

    folder = output / re.sub(r"\W+", "-", reading)
    harness.fresh(configure, collection=collection, reading=reading, encoders=encoders, output=str(folder))
    command = [sys.executable, "-m", "cai_pyserini", "run", f"{folder}/collection.yaml", "--output", f"{folder}/run"]
    for kind in encoders:
        command += [f"--{kind}", f"{folder}/{kind}.yaml"]
    systems = [name for name in READINGS[reading][1] if name in SYSTEMS[:3] or "dense" in encoders]
    values: Values = {}
    for split in splits:
        print(f"{reading}: {split}", file=sys.stderr)
        harness.run([*command, "--split", split, "--systems", *systems])
        for system in systems:
            path = folder / "run" / "evaluations" / f"{parse_system(system).long_name}.json"
            values[system, split] = json.loads(path.read_text())
    return json.loads((folder / "run" / "results.json").read_text()), values


def rows(results: dict[str, dict[str, Any]], values: dict[str, Values], splits: list[str]) -> Iterator[list[str]]:
    """A row per system and way of reading; † marks what differs from the system's first way."""
    for system in SYSTEMS:
        if not (readings := [name for name in values if (system, splits[0]) in values[name]]):
            continue
        cells = scores({name: {split: values[name][system, split] for split in splits} for name in readings})
        for name in readings:
            yield [system, name, *cells[name], *costs(system, results[name], results[readings[0]])]


def scores(values: dict[str, dict[str, PerQuery]]) -> dict[str, list[str]]:
    """The cells of all measures in all splits, by row; † marks what differs from the first row (paired t-test,
    p < 0.05, Holm-corrected)."""
    from cai_pyserini.runs.measures import mean
    from cai_pyserini.runs.significance import compare

    first, *others = values
    cells: dict[str, list[str]] = {name: [] for name in values}
    for split in values[first]:
        for measure in MEASURES:
            compared = compare(values[first][split][measure], {name: values[name][split][measure] for name in others})
            for name, cell in cells.items():
                p = compared[name].p if name != first else None
                cell.append(f"{mean(values[name][split][measure]):.4f}{'†' * (p is not None and p < 0.05)}")
    return cells


def costs(system: str, result: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """Milliseconds per query, the size of the index in MB, the non-zeros per document, and the encoding time as a
    multiple of the first's."""
    stage = {"splade-idf": "encode documents", "dense": "encode dense-documents"}.get(system)
    counts, nonzeros = result["counts"], ""
    if system == "splade-idf":
        vectors = counts.get("passages", counts["documents"])
        nonzeros = f"{result['nonzeros_per_document'] * vectors / counts['documents']:,.0f}"
    sizes = {result["searches"][index]: size for index, size in result["index_bytes"].items()}
    return [
        f"{result['systems'][system]['ms_per_query']:.1f}",
        f"{sizes[system] / 1e6:.1f}" if system in sizes else "",
        nonzeros,
        f"{result['timings_s'][stage] / first['timings_s'][stage]:.1f}" if stage else "",
    ]


def pool(collection: str, encoder: str, splits: list[str]) -> harness.Result:
    """The cells of the second table, by row."""
    import numpy as np
    import pandas as pd
    from scipy.sparse import csr_matrix, diags, vstack

    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.models import splade
    from cai_pyserini.models.encoder import Encoder
    from cai_pyserini.runs.measures import measure
    from cai_pyserini.runs.trec import fold_passages, run_of
    from cai_pyserini.vectors.document_frequencies import Idf
    from cai_pyserini.vectors.quantization import weighted
    from cai_pyserini.vectors.queries import encode_queries

    opened, loaded = open_collection(load_index_config(collection)), Encoder(load_encoder(encoder))
    model = loaded.load("documents")
    ids, contents = zip(*opened.documents(), strict=True)
    idf = Idf.count(contents, loaded.tokenizer).weights()
    splade.POWER = 1  # windows have their weights as they are
    windows = model.windows(contents, loaded.max_length("documents"), 0)
    pieces = list(model.encode_batches(windows, None, lambda count: None))
    owners, vectors = np.concatenate([positions for positions, _ in pieces]), vstack([v for _, v in pieces], "csr")
    ranks = pd.Series(owners).groupby(owners).cumcount().to_numpy()

    def of_documents(rows: np.ndarray) -> csr_matrix:
        """(documents, windows): 1 for those of these windows that a document has."""
        return csr_matrix((np.ones(len(rows)), (owners[rows], rows)), shape=(len(ids), len(owners)))

    maximum = csr_matrix((len(ids), model.width))
    for rank in range(ranks.max() + 1):
        maximum = maximum.maximum(of_documents(np.flatnonzero(ranks == rank)) @ vectors)
    means = diags(1 / np.maximum(windows.counts, 1)) @ of_documents(np.arange(len(owners)))
    rows = {
        "first window": (ids, of_documents(np.flatnonzero(ranks == 0)) @ vectors),
        "best window": ([f"{ids[owner]}#{rank}" for owner, rank in zip(owners, ranks, strict=True)], vectors),
        "maximum": (ids, maximum),
        **{f"power mean, {power}": (ids, (means @ vectors.power(power)).power(1 / power)) for power in POWERS},
    }
    values: dict[str, dict[str, PerQuery]] = {name: {} for name in rows}
    for split in splits:
        topics, qrels = opened.topics(split), opened.qrels(split)
        queries = encode_queries(loaded, list(topics.values()), "splade")
        for name, (names, matrix) in rows.items():
            products = (queries @ weighted(matrix.tocsr(), idf).T).toarray()
            best = np.argsort(-products, axis=1)[:, :1000]
            hits = {
                query: [(names[i], float(products[row, i])) for i in best[row] if products[row, i] > 0]
                for row, query in enumerate(topics)
            }
            values[name][split] = measure(qrels, fold_passages(run_of(hits)), MEASURES)
    return {"cells": scores(values)}


def main() -> None:
    parser = harness.parser(__doc__, repeats=None)
    parser.add_argument("--splits", nargs="+", default=["test"])
    parser.add_argument("--output", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--dense", help="a dense encoder, such as minilm, to run it too")
    parser.add_argument("--readings", nargs="+", choices=READINGS, help="only these, without the table of pooling")
    args = parser.parse_args()
    encoders = {"encoder": args.encoder} | ({"dense": args.dense} if args.dense else {})
    results, values = {}, {}
    for name in args.readings or READINGS:
        results[name], values[name] = run(args.collection, name, encoders, args.output, args.splits)
    measures = [f"{split}: {measure}" for split in args.splits for measure in MEASURES]
    counts = next(iter(results.values()))["counts"]
    title = (
        f"{counts['documents']:,} documents, {counts['cut']:,} of them cut off; {counts['lost']:.0%} of the text lost"
    )
    header = [
        "system",
        "documents are",
        *measures,
        "ms per query",
        "index, MB",
        "non-zeros per document",
        "encoding time",
    ]
    harness.show(title, header, list(rows(results, values, args.splits)))
    if not args.readings:
        pooled = harness.fresh(pool, collection=args.collection, encoder=args.encoder, splits=args.splits)["cells"]
        table = [[name, *cells] for name, cells in pooled.items()]
        harness.show("Pooling of windows, splade-idf", ["pooling", *measures], table)


if __name__ == "__main__":
    main()
