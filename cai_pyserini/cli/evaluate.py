from cai_pyserini.cli.command import Command, command
from cai_pyserini.core.flags import COLLECTION, SPLIT, STRICT
from cai_pyserini.core.settings import AnyPath, flag


class Evaluate(Command):
    """Evaluate TREC runs, and compare the first with each of the others (paired t-test, Holm-corrected)."""

    example = "cai-pyserini evaluate --collection hpo --trec bm25.trec splade-idf.trec"
    collection: str = COLLECTION
    trec: list[AnyPath] = flag(help="TREC runs to evaluate")
    split: str | None = SPLIT
    strict: bool | None = STRICT
    measures: list[str] = flag(
        ["nDCG@10", "R@100", "RR@10"], "measures, in ir_measures' syntax; runs are compared by the first one"
    )

    def execute(self) -> None:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core import tables
        from cai_pyserini.core.config import load_index_config
        from cai_pyserini.runs.measures import mean, measure_runs
        from cai_pyserini.runs.significance import NO_P_MEANS, compare, p_text

        changes = self.model_dump(include={"split", "strict"}, exclude_none=True)
        config = load_index_config(self.collection).replace(**changes)
        measured = measure_runs(open_collection(config), config.split, self.trec, self.measures)
        values = {str(run): by_measure for run, by_measure in measured.items()}
        rows = [["run", *self.measures]]
        for name, by_measure in values.items():
            rows.append([name, *(f"{mean(by_measure[measure]):.4f}" for measure in self.measures)])
        print(tables.aligned(rows))
        first, *others = values
        main_measure = self.measures[0]
        compared = compare(values[first][main_measure], {name: values[name][main_measure] for name in others})
        for name, comparison in compared.items():
            print(f"{name} - {first}: {comparison.difference:+.4f} {main_measure}, p: {p_text(comparison.p)}")
        if any(comparison.p is None for comparison in compared.values()):
            print(NO_P_MEANS)


main = command(Evaluate, "evaluate")
