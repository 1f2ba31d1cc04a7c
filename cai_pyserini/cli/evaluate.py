from cai_pyserini.core.flags import COLLECTION, SPLIT, STRICT
from cai_pyserini.core.settings import Command, InputFile, Main, flag


class Evaluate(Command):
    """Evaluate TREC runs, and compare the first with each of the others (paired t-test, Holm-corrected).

    Of three runs or more, the table says which are significantly better than which.
    """

    example = "cai-pyserini evaluate --collection hpo --trec bm25.trec splade-idf.trec"
    collection: str = COLLECTION
    trec: list[InputFile] = flag(help="TREC runs to evaluate; -: standard input")
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
        from cai_pyserini.runs.significance import ALPHA, NO_P_MEANS, all_pairs, better_than, compare, p_text

        changes = self.model_dump(include={"split", "strict"}, exclude_none=True)
        config = load_index_config(self.collection).replace(**changes)
        measured = measure_runs(open_collection(config), config.split, self.trec, self.measures)
        values = {str(run): by_measure for run, by_measure in measured.items()}
        first, *others = values
        main_measure = self.measures[0]
        rows = [["run", *self.measures]]
        rows += [[name, *(f"{mean(found[each]):.4f}" for each in self.measures)] for name, found in values.items()]
        note = ""
        if len(values) > 2:  # number the runs, and say which are better than which
            numbers = {name: str(number) for number, name in enumerate(values, 1)}
            better = better_than(values, all_pairs({name: found[main_measure] for name, found in values.items()}))
            for row, name in zip(rows[1:], values, strict=True):
                row[0] = f"{numbers[name]} {name}"
                row.append(" ".join(numbers[worse] for worse in better[name]))
            rows[0].append("better than")
            note = f"\nbetter than: in {main_measure}, p < {ALPHA} (paired t-test, Holm-corrected for all pairs)"
        print(tables.aligned(rows) + note)
        compared = compare(values[first][main_measure], {name: values[name][main_measure] for name in others})
        for name, comparison in compared.items():
            print(f"{name} - {first}: {comparison.difference:+.4f} {main_measure}, p: {p_text(comparison.p)}")
        if any(comparison.p is None for comparison in compared.values()):
            print(NO_P_MEANS)


main = Main(Evaluate, "evaluate")
