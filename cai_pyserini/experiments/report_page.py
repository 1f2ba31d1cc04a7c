"""report.html: scores, differences, cost and truncation of a run, as one page with charts and without scripts."""

import json
from pathlib import Path

from cai_pyserini.core import files
from cai_pyserini.core.template import template
from cai_pyserini.experiments.artifacts import Evaluation
from cai_pyserini.experiments.report import MEASURE, Values, collection_size, legend, omissions, result_rows, unscored
from cai_pyserini.experiments.results import Results
from cai_pyserini.experiments.run_folder import RunFolder

TEMPLATE = template(Path(__file__).with_name("report.html.jinja"))


def write_page(run: RunFolder) -> None:
    """Write the page of a run whose results.json has just been written."""
    length = run.experiment.encoder.max_document_length
    files.write_text(run.page, page(run.results, values_by_query(run), length))


def values_by_query(run: RunFolder) -> Values:
    """MEASURE by system and query, of the evaluations of a run that are up to date."""
    paths = {system.name: Evaluation(system, run).output for system in run.systems}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))[MEASURE] for name, path in paths.items() if run.has(path)
    }


def page(results: Results, values: Values, length: int) -> str:
    """The page; equal results give equal text. `length` is the number of tokens that SPLADE reads of a document."""
    shown = []
    if results.scored:
        from cai_pyserini.experiments.report_charts import charts  # matplotlib and scipy.stats take a second

        shown = charts(results, values)
    return TEMPLATE.render(
        results=results,
        size=f"{collection_size(results)}.{omissions(results.counts)}",
        rows=result_rows(results, "*{}", "{}") if results.scored else [],
        notes=legend(results, "*") if results.scored else [unscored(results)],
        charts=shown,
        lost=results.counts.get("lost"),
        length=length,
    )
