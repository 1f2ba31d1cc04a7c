"""results.json, report.md and the table in the terminal."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cai_pyserini import artifact
from cai_pyserini.config import EncoderConfig, IndexConfig
from cai_pyserini.evaluate import MEASURES, Comparison, PerQuery, compare, mean

if TYPE_CHECKING:
    from cai_pyserini.line import Line
    from cai_pyserini.systems import System

BASELINE = "bm25"
SIGNIFICANT = 0.05


@dataclass
class Results:
    """What a run of the line found; `systems` maps a name to its means."""

    collection: str
    encoder: str
    split: str
    systems: dict[str, dict[str, float]]
    comparisons: dict[str, Comparison]
    timings_s: dict[str, float]
    index_bytes: dict[str, int]
    nonzeros_per_document: float | None
    counts: dict[str, int]
    settings: dict[str, Any]
    versions: dict[str, str]
    published: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def gather(cls, line: "Line", systems: list["System"], timings: dict[str, float]) -> "Results":
        """Collect what the stages left in the folder of a line."""
        values: dict[str, PerQuery] = {}
        rows: dict[str, dict[str, float]] = {}
        for system in systems:
            values[system.name] = json.loads((line.output / "evaluations" / f"{system.name}.json").read_text())
            manifest = artifact.read_manifest(line.run_path(system)) or {}
            rows[system.name] = {measure: mean(values[system.name][measure]) for measure in MEASURES}
            rows[system.name] |= {"queries": len(line.topics), "ms_per_query": manifest["ms_per_query"]}
        main_measure = {name: measured[MEASURES[0]] for name, measured in values.items()}
        baseline = main_measure.get(BASELINE)
        others = {name: value for name, value in main_measure.items() if name != BASELINE}
        kinds = {system.kind for system in systems}
        indexes = [label.removeprefix("index ") for label in timings if label.startswith("index ")]
        manifests = {name: artifact.require_manifest(line.output / "indexes" / name, "index") for name in indexes}
        vectors = artifact.read_manifest(line.output / "vectors" / "documents") if "splade" in kinds else None
        losses = {
            name: artifact.require_manifest(line.output / "impacts" / name, "impact")["loss"]
            for name in indexes
            if name.startswith("splade")
        }
        check = artifact.require_manifest(line.output / "collection.json", "check")
        return cls(
            collection=line.config.name,
            encoder=line.encoder_config.name,
            split=line.split,
            systems=rows,
            comparisons=compare(baseline, others) if baseline and others else {},
            timings_s=timings,
            index_bytes={name: manifest["bytes"] for name, manifest in manifests.items()},
            nonzeros_per_document=vectors["nonzeros"] / vectors["vectors"] if vectors else None,
            counts={key: check[key] for key in ("documents", "queries", "judgments")},
            settings={
                "collection": {"source": _source(line.config), "fields": line.config.fields},
                "encoder": _given(line.encoder_config),
                "dense": line.dense_config and _given(line.dense_config),
                "cross_encoder": line.cross_encoder,
                "generated": line.generated and str(line.generated),
                "precision": vectors and vectors["recipe"]["precision"],
                "bm25": {"k1": line.config.k1, "b": line.config.b},
                "hits": line.config.hits,
                "quantization_loss": losses,
            },
            versions=check["versions"],
            published=[asdict(score) for score in line.config.published],
        )

    def write(self, folder: Path) -> None:
        """Write results.json and report.md."""
        data = asdict(self) | {"comparisons": {name: c._asdict() for name, c in self.comparisons.items()}}
        artifact.write_text(folder / "results.json", json.dumps(data, indent=1) + "\n")
        artifact.write_text(folder / "report.md", self.markdown())

    def table(self) -> str:
        """The table for a terminal: the best of each column is marked *, a significant difference †."""
        return "\n".join(aligned(self._rows("*{}", " {}"))) + f"\n{self._legend('*')}"

    def markdown(self) -> str:
        """The report."""
        rows = self._rows("**{}**", "{}")
        lines = [
            f"# {self.collection}, encoder {self.encoder}, split {self.split}",
            "",
            f"{self.counts['documents']:,} documents, {self.counts['queries']:,} queries, "
            f"{self.counts['judgments']:,} judgments.",
            "",
            *_markdown(rows),
            "",
            self._legend("bold"),
            "",
        ]
        if self.published:
            published = [["system", "nDCG@10", "source"]]
            published += [[score["system"], f"{score['score']:.4g}", score["source"]] for score in self.published]
            lines += ["## Published scores for this collection", "", *_markdown(published), ""]
        lines += [
            "## What it took",
            "",
            *_markdown([["stage", "seconds"], *[[k, f"{v:.1f}"] for k, v in self.timings_s.items()]]),
        ]
        lines += [
            "",
            "Indexes: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in self.index_bytes.items()) + ".",
        ]
        if self.nonzeros_per_document is not None:
            lines.append(
                f"Non-zeros a document: {self.nonzeros_per_document:.1f}. Products in {self.settings['precision']}."
            )
        models = {
            "Dense encoder": (self.settings["dense"] or {}).get("name"),
            "Cross-encoder": self.settings["cross_encoder"],
        }
        lines += [f"{kind}: {name}." for kind, name in models.items() if name]
        for name, loss in self.settings["quantization_loss"].items():
            lines.append(
                f"Quantization of {name}: relative error {loss['relative_error']:.2%}, {loss['dropped']:.2%} of the "
                f"entries became 0, {loss['clipped']:.2%} were cut to the range."
            )
        lines += [
            "",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".",
            "",
        ]
        return "\n".join(lines)

    def _rows(self, best: str, other: str) -> list[list[str]]:
        header = ["system", *MEASURES, "ms/query", f"{MEASURES[0]} − {BASELINE}", "p"]
        rows = [header]
        tops = {measure: max(round(row[measure], 4) for row in self.systems.values()) for measure in MEASURES}
        for name, row in self.systems.items():
            cells = [(best if round(row[m], 4) == tops[m] else other).format(f"{row[m]:.4f}") for m in MEASURES]
            comparison = self.comparisons.get(name)
            difference = f"{comparison.difference:+.4f}{' †'[comparison.p < SIGNIFICANT]}" if comparison else ""
            rows.append(
                [name, *cells, f"{row['ms_per_query']:.2f}", difference, f"{comparison.p:.3f}" if comparison else ""]
            )
        return rows

    def _legend(self, mark: str) -> str:
        return (
            f"{mark}: best of its column; † differs from {BASELINE} (paired t-test on {MEASURES[0]}, p Holm-corrected "
            f"over the {len(self.comparisons)} systems, < {SIGNIFICANT}). ms/query: encoding and search, in batches."
        )


def _source(config: IndexConfig) -> str:
    """Where the collection is, from wherever."""
    return str(Path(config.source).resolve()) if Path(config.source).is_dir() else config.source


def _given(config: EncoderConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if value is not None}


def aligned(rows: list[list[str]]) -> list[str]:
    """The lines of a table for a terminal; the first row is its header, the first column is aligned left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _markdown(rows: list[list[str]]) -> list[str]:
    header, *body = ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows]
    return [header, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body]
