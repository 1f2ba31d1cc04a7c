from typing import Self

from pydantic import model_validator

from cai_pyserini.core.flags import COLLECTION_TEXT, FORMAT, MEASURES_FLAG, SPLIT, STRICT
from cai_pyserini.core.settings import AnyPath, Command, InputFile, Main, flag
from cai_pyserini.core.tables import Format


class Evaluate(Command):
    """Evaluate TREC runs of a collection, or the systems of a finished run, and compare them with each other.

    Tables show the means with 95% confidence intervals, which systems are significantly better than which, and the
    differences from the first (of a finished run, from bm25): interval, effect size (Cohen's d_z), and p of the paired
    t-test and of the randomization test, Holm-corrected.
    """

    example = (
        "cai-pyserini evaluate --collection hpo --trec bm25.trec splade-idf.trec\n"
        "  cai-pyserini evaluate runs/hpo/splade-tiny --systems bm25 splade-idf joint --format latex"
    )
    run: AnyPath | None = flag(
        None,
        "run folder, written by `cai-pyserini run`, in place of a collection and TREC runs; with its measures, unless "
        "others are given",
        positional=True,
    )
    systems: list[str] = flag([], "systems of the run folder to compare, in this order (default: all)")
    collection: str | None = flag(None, COLLECTION_TEXT)
    trec: list[InputFile] = flag([], "TREC runs to evaluate; -: standard input")
    split: str | None = SPLIT
    strict: bool | None = STRICT
    measures: list[str] = MEASURES_FLAG
    format: Format = FORMAT
    changes: int = flag(
        0, "of two systems: show so many queries with the largest gain, and with the largest loss", ge=0
    )
    output: AnyPath | None = flag(
        None,
        "also write a file: .json with the means, the values of each query, and all comparisons; or .tsv with one"
        " line per query, system and measure",
    )

    @model_validator(mode="after")
    def _has_runs(self) -> Self:
        if self.run and (self.collection or self.trec or self.split or self.strict):
            raise ValueError("a run folder has its own collection and runs: give nothing else but --systems")
        if not self.run and not (self.collection and self.trec):
            raise ValueError("give a run folder, or --collection and --trec")
        if self.systems and not self.run:
            raise ValueError("--systems are those of a run folder: give one")
        if self.output and self.output.suffix not in (".json", ".tsv"):
            raise ValueError(f"--output: {self.output} ends neither in .json nor in .tsv")
        if self.changes and len(self.systems or self.trec) != 2:
            raise ValueError("--changes are those of two systems: name two with --systems, or give two --trec")
        return self

    def execute(self) -> None:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.config import load_index_config
        from cai_pyserini.core.files import json_text, write_text
        from cai_pyserini.core.tables import render
        from cai_pyserini.experiments.evaluations import compared
        from cai_pyserini.experiments.run_folder import RunFolder
        from cai_pyserini.runs.compared import Compared

        if self.run:
            run = RunFolder(self.run)
            found = compared(run, self.systems, self.measures if "measures" in self.model_fields_set else ())
            collection, name, split = run.collection, run.results.collection, run.results.split
        else:
            changes = self.model_dump(include={"split", "strict"}, exclude_none=True)
            config = load_index_config(self.collection or "").replace(**changes)
            collection, name, split = open_collection(config), config.name, config.split
            found = Compared.of_runs(collection, split, self.trec, self.measures)
        title = f"{name}, split {split}"
        if self.output:
            is_json = self.output.suffix == ".json"
            write_text(self.output, json_text({"title": title} | found.data()) if is_json else found.by_query())
        print(found.render(self.format, title))
        if self.changes:
            print(f"\n{render(found.changed_queries(collection.topics(split), self.changes), self.format)}")


main = Main(Evaluate, "evaluate")
