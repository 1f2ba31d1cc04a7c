"""Reports: results.json, report.md, report.html (a page with charts, without scripts), the table in the terminal."""

import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from cai_pyserini.collections.check import SAMPLE_SIZE
from cai_pyserini.core import files, tables
from cai_pyserini.core.packages import install_command
from cai_pyserini.core.tables import Cell
from cai_pyserini.core.template import template
from cai_pyserini.experiments.evaluations import values_by_query
from cai_pyserini.experiments.experiment import BASELINE, COUNTS, Results
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import ADAPTED
from cai_pyserini.runs.compared import corrected, difference_cell
from cai_pyserini.runs.significance import ALPHA, NO_P_MEANS, Comparison, Values, p_text
from cai_pyserini.vectors.quantization import loss_text

logger = logging.getLogger(__name__)
ADAPTATION_MARK = "changed by adaptation"
PAGE = template(Path(__file__).with_name("report.html.jinja"))


def write(results: Results, run: RunFolder) -> None:
    files.write_text(run.results_file, files.json_text(asdict(results)))
    files.write_text(run.report, markdown(results))


def table(results: Results) -> str:
    """The table for a terminal; * marks the best of each column, † a significant difference."""
    if not results.scored:
        rows = [tables.aligned(_unscored_rows(results))] if results.searched else []
        return "\n".join([*rows, unscored(results), *results.decision])
    best = "; ".join(_best_lines(results))
    lines = [tables.aligned(result_rows(results, intervals=False)), f"best {best}", *legend(results, "*", False)]
    if results.gains:
        lines += [
            "",
            tables.aligned(_gain_rows(results)),
            *_significance_lines(ADAPTATION_MARK, results.measure, results.gains),
        ]
    return "\n".join([*lines, *results.decision])


def searches(results: Results, folder: Path) -> str:
    """A search command for each system of a run that can be searched."""
    command = f"cai-pyserini search {shlex.quote(str(folder))} --system"
    return "\n".join(f'{command} {name} "free text"' for name in results.systems if parse_system(name).searchable)


def markdown(results: Results) -> str:
    counts, settings = results.counts, results.settings
    sections = [
        f"# {results.collection}, encoder {results.encoder}, split {results.split}",
        f"{collection_size(results)}.{omissions(counts)}",
    ]
    if results.scored:
        sections += [
            tables.markdown(result_rows(results)),
            "; ".join(legend(results, "bold")) + ".",
            "\n".join(f"- Best {line}" for line in _best_lines(results)),
        ]
    else:
        if results.searched:
            sections.append(tables.markdown(_unscored_rows(results)))
        sections.append(f"{unscored(results)}.")
    sections += [
        f"In {parse_system(index).name}, BM25 has the weight "
        + ", ".join(f"{alpha:.3g} ({kind} queries)" for kind, alpha in alphas.items())
        + " beside SPLADE."
        for index, alphas in results.alpha.items()
    ]
    if differences := _differences(results):
        notes = "; ".join([f"{results.evaluated_queries:,} queries", *results.compared.difference_notes()])
        sections += ["## Differences", tables.render(differences, "markdown", f"{notes}.")]
    if results.gains:
        sections += [
            "## Adaptation",
            tables.markdown(_gain_rows(results)),
            "; ".join(_significance_lines(ADAPTATION_MARK, results.measure, results.gains)) + ".",
        ]
    if results.decision:
        sections.append("\n".join(f"- {line}" for line in results.decision))
    if results.published:
        rows = [["system", "nDCG@10", "source"]]
        rows += [[score["system"], f"{score['score']:.4g}", score["source"]] for score in results.published]
        sections += ["## Published scores for this collection", tables.markdown(rows)]
    seconds = [["step", "seconds"], *[[step, f"{value:.1f}"] for step, value in results.timings_s.items()]]
    indexes = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in results.index_bytes.items())
    sections += ["## Time and space", tables.markdown(seconds), f"Indexes: {indexes}."]
    if results.nonzeros_per_document is not None:
        sections.append(f"{results.nonzeros_per_document:.1f} non-zeros per document, encoded in {results.precision}.")
    models = {"Dense encoder": settings.get("dense", {}).get("name"), "Cross-encoder": settings.get("cross_encoder")}
    sections += [f"{kind}: {name}." for kind, name in models.items() if name]
    sections += [f"Quantization of {name}: {loss_text(loss)}." for name, loss in results.quantization_loss.items()]
    sections.append("Versions: " + ", ".join(f"{name} {version}" for name, version in results.versions.items()) + ".")
    return "\n\n".join(sections) + "\n"


def result_rows(results: Results, intervals: bool = True) -> tables.Rows:
    """The table of scores: a row per system, with its difference from the baseline."""
    columns, found = results.compared.score_columns(intervals), results.comparisons
    columns["ms/query"] = [f"{row['ms_per_query']:.2f}" for row in results.systems.values()]
    if found:
        last = [_difference_and_p(found[name]) if name in found else ("", "") for name in results.systems]
        columns[f"{results.measure} − {BASELINE}"], columns["p"] = zip(*last, strict=True)
    return tables.in_rows(columns)


def _differences(results: Results) -> tables.Rows:
    """The differences from the baseline, with intervals and tests; empty for too few queries."""
    has_intervals = any(found.interval for found in results.comparisons.values())
    return results.compared.differences() if has_intervals else []


def _unscored_rows(results: Results) -> list[list[str]]:
    rows = [
        [name, f"{row['ms_per_query']:.2f}", f"runs/{parse_system(name).long_name}.trec"]
        for name, row in results.systems.items()
        if row
    ]
    return [["system", "ms/query", "run"], *rows]


def unscored(results: Results) -> str:
    """Why there are no scores, and where the outputs are."""
    if results.searched:
        return "no qrels: nothing is evaluated; the runs are in runs/, the indexes in indexes/"
    if "queries" in results.counts:
        return "made without evaluation: nothing is searched or evaluated; the indexes are in indexes/"
    return "no queries: nothing is searched or evaluated; the indexes are in indexes/"


def _gain_rows(results: Results) -> list[list[str | Cell]]:
    rows: list[list[str | Cell]] = [["system", results.measure, "adapted", "gain", "p"]]
    for name, gain in results.gains.items():
        plain = name.removeprefix(ADAPTED)
        scores = [f"{results.systems[system][results.measure]:.4f}" for system in (plain, name)]
        rows.append([plain, *scores, *_difference_and_p(gain)])
    return rows


def _significance_lines(mark: str, measure: str, comparisons: Mapping[str, Comparison]) -> list[str]:
    """The legend of † and of differences without a p-value."""
    count, lines = sum(comparison.p is not None for comparison in comparisons.values()), []
    if count:
        test = f"two-sided paired t-test on {measure}, p < {ALPHA}{corrected(count, 'systems')}"
        lines.append(f"†: {mark} ({test})")
    if count < len(comparisons):
        lines.append(NO_P_MEANS)
    return lines


def _difference_and_p(found: Comparison) -> tuple[Cell, str]:
    return difference_cell(found), p_text(found.p)


def collection_size(results: Results) -> str:
    """The numbers of documents, queries and judgments."""
    return ", ".join(f"{results.counts[key]:,} {key}" for key in COUNTS if key in results.counts)


def omissions(counts: dict[str, float]) -> str:
    """Sentences about truncated documents, judgments that are left out, and empty queries."""
    text = ""
    if counts.get("cut"):
        about = " about" if counts.get("passages", counts["documents"]) > SAMPLE_SIZE else ""
        text += f"{about} {counts['cut']:,} are truncated: {counts['lost']:.1%} of the text is lost."
    if left_out := counts.get("left_out_judgments"):
        text += f" {left_out:,} judgments of documents that the collection lacks are left out"
        text += f", and {queries:,} queries without others." if (queries := counts.get("left_out_queries")) else "."
    if empty := counts.get("empty_queries"):
        text += f" {empty:,} queries have no text: they are not searched for, and count as 0."
    return text


def _best_lines(results: Results) -> list[str]:
    """The best system without a model, and what further models gain."""
    least = {name: need for need, name in reversed(results.best.items())}
    return [f"{need}: {name} {results.systems[name][results.measure]:.4f}" for name, need in reversed(least.items())]


def legend(results: Results, mark: str, intervals: bool = True) -> list[str]:
    """The legend of the table of scores, with or without intervals; `mark` marks the best score."""
    differs = _significance_lines(f"differs from {BASELINE}", results.measure, results.comparisons)
    return [f"{mark}: best of its column", *differs, *notes(results), *results.compared.score_notes(intervals)]


def notes(results: Results) -> list[str]:
    """How its systems were searched."""
    lines = ["ms/query: encoding and search, in batches"] if results.searched else []
    plain = [name.removeprefix(ADAPTED) for name in results.systems]
    if any(name.startswith(("hybrid", "fused", "cross-encoder")) for name in plain):
        depth = results.settings["depth"]
        lines.append(f"hybrids and reranking use the best {depth} documents of each run (the setting depth)")
    return lines


def write_page(run: RunFolder) -> None:
    """Write the page of a run whose results.json has just been written."""
    length = run.experiment.encoder.max_document_length
    files.write_text(run.page, page(run.results, values_by_query(run), length))


def page(results: Results, values: Values, length: int) -> str:
    """The page; equal results give equal text. `length` is the number of tokens that SPLADE reads of a document."""
    shown = []
    if results.scored and not find_spec("matplotlib"):
        logger.info("the report has no charts, which need matplotlib: %s", install_command("encode"))
    elif results.scored:
        from cai_pyserini.experiments.report_charts import charts  # matplotlib and scipy.stats take a second

        shown = charts(results, values)
    return PAGE.render(
        results=results,
        size=f"{collection_size(results)}.{omissions(results.counts)}",
        rows=result_rows(results, intervals=False) if results.scored else [],
        notes=legend(results, "*", intervals=False) if results.scored else [unscored(results)],
        differences=_differences(results),
        difference_notes=results.compared.difference_notes(),
        charts=shown,
        lost=results.counts.get("lost"),
        length=length,
    )
