"""The commands of the analyses."""

from collections.abc import Sequence

from cai_pyserini.analysis.settings import (
    CompareSettings,
    CostSettings,
    CoverageSettings,
    EfficiencySettings,
    ExplainSettings,
    OverlapSettings,
    RsjSettings,
)
from cai_pyserini.core import terminal
from cai_pyserini.core.settings import Settings, parse

COMMANDS: dict[str, type[Settings]] = {
    "coverage": CoverageSettings,
    "overlap": OverlapSettings,
    "rsj": RsjSettings,
    "cost": CostSettings,
    "efficiency": EfficiencySettings,
    "explain": ExplainSettings,
    "compare": CompareSettings,
}


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(
        COMMANDS, argv, "python -m cai_pyserini.analysis", "Analyze collections, vocabularies and finished runs."
    )
    match settings:
        case CoverageSettings():
            from cai_pyserini.analysis.coverage import coverage

            report = coverage(settings)
        case OverlapSettings():
            from cai_pyserini.analysis.overlap import overlap

            report = overlap(settings)
        case RsjSettings():
            from cai_pyserini.analysis.rsj import rsj

            report = rsj(settings)
        case CostSettings():
            from cai_pyserini.analysis.cost import cost

            report = cost(settings)
        case EfficiencySettings():
            from cai_pyserini.analysis.efficiency import efficiency

            report = efficiency(settings)
        case ExplainSettings():
            from cai_pyserini.analysis.explain import explain

            report = explain(settings)
        case CompareSettings():
            from cai_pyserini.analysis.compare import compare

            report = compare(settings)
        case _:
            raise TypeError(type(settings))
    files = report.write(settings.output)
    print(f"{report.text}\n\n{settings.output}: {', '.join(files)}")


if __name__ == "__main__":
    terminal.run(main)
