"""The results of an experiment, as in results.json, and whether they are as expected."""

from dataclasses import dataclass
from typing import Any

from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.evaluate.measures import MEASURES

BASELINE = "bm25"
COUNTS = ("documents", "passages", "queries", "judgments")


@dataclass
class Results:
    """The results of an experiment, as in results.json; `systems` maps a name to means over queries.

    Without qrels, there are no measures among these means; without queries, there are no systems.
    """

    collection: str
    encoder: str
    split: str
    systems: dict[str, dict[str, float]]
    comparisons: dict[str, dict[str, float | None]]  # against the baseline: difference and p
    timings_s: dict[str, float]  # step -> seconds
    index_bytes: dict[str, int]
    searches: dict[str, str]  # index -> a system that searches it
    nonzeros_per_document: float | None  # of SPLADE's raw vectors
    best: dict[str, str]  # what is needed at query time -> the best system
    alpha: dict[str, dict[str, float]]  # joint index -> weight of BM25 by the representation of queries
    gains: dict[str, dict[str, float | None]]  # adapted system -> difference to the same before adaptation, and p
    decision: list[str]  # what the documents decided: weights, and what of an adaptation is used
    counts: dict[str, float]
    settings: dict[str, Any]  # see Experiment.record
    precision: str | None  # of the encoding
    quantization_loss: dict[str, dict[str, float]]  # SPLADE index -> its loss
    versions: dict[str, str]
    published: list[dict[str, Any]]

    @property
    def scored(self) -> bool:
        """Whether there are scores."""
        return any(MEASURES[0] in row for row in self.systems.values())


def verify(results: Results, config: IndexConfig) -> str:
    """Compare results with the scores that the index config expects. Returns the lines to print.

    Raises CaiError with these lines if a score differs by more than the tolerance; also if no scores are expected.
    """
    expected = config.expected.get("any", {}) | config.expected.get(results.encoder, {})
    expected = {name: score for name, score in expected.items() if results.scored and name in results.systems}
    if not expected:
        raise CaiError(
            f"index config {config.name} expects no scores of these systems with {results.encoder}: nothing to verify"
        )
    lines, wrong = [], []
    for name, score in expected.items():
        measured = results.systems[name]["nDCG@10"]
        agrees = round(abs(measured - score), 9) <= config.tolerance
        wrong += [] if agrees else [name]
        verdict = "ok  " if agrees else "FAIL"
        lines.append(f"{verdict} {name}: nDCG@10 {measured:.4f}, expected {score:.4f} ± {config.tolerance}")
    if wrong:
        lines.append(
            f"{len(wrong)} of {len(expected)} scores differ by more than {config.tolerance}: {', '.join(wrong)}"
        )
        raise CaiError("\n".join(lines))
    return "\n".join(lines)
