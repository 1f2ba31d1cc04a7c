"""Long documents: what the settings for them do to the scores.

Every row is one run of `cai-pyserini run` per split: cut off, as passages, and as passages of which each has half of
its document's first.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

SYSTEMS = ("bm25", "splade-idf", "hybrid-splade-idf-minmax", "joint-doc-near", "joint-near", "dense", "trio")
READINGS: dict[str, dict[str, float]] = {  # settings of the collection
    "cut off": {},
    "passages of 100 words": {"passages": 100},
    "passages, with the first": {"passages": 100, "first_passage": 0.5},
}
MEASURES = ("nDCG@10", "R@100")

PerQuery = dict[str, dict[str, float]]  # measure -> query -> value
Values = dict[tuple[str, str], PerQuery]  # system and split


def configure(collection: str, reading: str, encoders: dict[str, str], output: str) -> harness.Result:
    """Write the YAML files of a way of reading: of the collection and of each encoder."""
    from cai_pyserini.core import files
    from cai_pyserini.core.config import encoder_yaml, load_encoder, load_index_config

    settings, folder = READINGS[reading], Path(output)
    config = load_index_config(collection)
    source = str(Path(config.source).resolve()) if Path(config.source).is_dir() else config.source
    passages = {name: settings.get(name, 0) for name in ("passages", "first_passage")}
    values = config.replace(source=source, **passages).model_dump(exclude_defaults=True)
    files.write_text(folder / "collection.yaml", json.dumps(values))  # which is YAML, too
    for kind, spec in encoders.items():
        files.write_text(folder / f"{kind}.yaml", encoder_yaml(load_encoder(spec), folder))
    return {}


def run(
    collection: str, reading: str, encoders: dict[str, str], output: Path, splits: list[str]
) -> tuple[dict[str, Any], Values]:
    """Run systems with a way of reading: results.json, and the measures of every query of each system."""
    from cai_pyserini.experiments.names import parse_system

    folder = output / re.sub(r"\W+", "-", reading)
    harness.fresh(configure, collection=collection, reading=reading, encoders=encoders, output=str(folder))
    command = [sys.executable, "-m", "cai_pyserini", "run", f"{folder}/collection.yaml", "--output", f"{folder}/run"]
    for kind in encoders:
        command += [f"--{kind}", f"{folder}/{kind}.yaml"]
    systems = [name for name in SYSTEMS if name in SYSTEMS[:3] or "dense" in encoders]
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


def main() -> None:
    parser = harness.parser(__doc__, repeats=None)
    parser.add_argument("--splits", nargs="+", default=["test"])
    parser.add_argument("--output", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--dense", help="a dense encoder, such as minilm, to run it too")
    parser.add_argument("--readings", nargs="+", choices=READINGS)
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


if __name__ == "__main__":
    main()
