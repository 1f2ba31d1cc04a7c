from cai_pyserini.core.flags import COLLECTION, SPLIT, STRICT
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse


class EvaluateSettings(Settings):
    """Evaluate TREC runs, and compare the first with each of the others (paired t-test, Holm-corrected)."""

    example = "cai-pyserini evaluate --collection hpo --trec bm25.trec splade-idf.trec"
    collection: str = COLLECTION
    trec: list[AnyPath] = flag(help="TREC runs to evaluate")
    split: str | None = SPLIT
    strict: bool | None = STRICT
    measures: list[str] = flag(["nDCG@10", "R@100", "RR@10"], "measures of ir_measures; the first compares runs")


def main(argv: Argv = None) -> None:
    settings = parse(EvaluateSettings, argv, "cai-pyserini evaluate")

    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core import tables
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.runs.measures import mean, measure_runs
    from cai_pyserini.runs.significance import NO_P_MEANS, compare, p_text

    changes = settings.model_dump(include={"split", "strict"}, exclude_none=True)
    config = load_index_config(settings.collection).replace(**changes)
    measured = measure_runs(open_collection(config), config.split, settings.trec, settings.measures)
    values = {str(run): by_measure for run, by_measure in measured.items()}
    rows = [["run", *settings.measures]]
    for name, by_measure in values.items():
        rows.append([name, *(f"{mean(by_measure[measure]):.4f}" for measure in settings.measures)])
    print(tables.aligned(rows))
    first, *others = values
    main_measure = settings.measures[0]
    compared = compare(values[first][main_measure], {name: values[name][main_measure] for name in others})
    for name, comparison in compared.items():
        print(f"{name} - {first}: {comparison.difference:+.4f} {main_measure}, p: {p_text(comparison.p)}")
    if any(comparison.p is None for comparison in compared.values()):
        print(NO_P_MEANS)
