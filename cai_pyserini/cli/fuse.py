"""`cai-pyserini fuse`."""

from cai_pyserini.core.flags import OUTPUT_RUN
from cai_pyserini.core.settings import AnyPath, Command, InputFile, Main, flag
from cai_pyserini.runs.fusions import DEFAULT, DEPTH, FUSIONS


class Fuse(Command):
    """Fuse TREC runs, from this package or any other tool."""

    example = "cai-pyserini fuse --trec bm25.trec splade-idf.trec --method minmax --output hybrid.trec"
    trec: list[InputFile] = flag(help="two or more TREC runs; -: standard input", min_length=2)
    output: AnyPath = OUTPUT_RUN
    method: str = flag(DEFAULT, "; ".join(f"{n}: {f.description}" for n, f in FUSIONS.items()), choices=tuple(FUSIONS))
    depth: int = flag(DEPTH, "fuse this many best documents per query of each run", ge=1)
    hits: int = flag(1000, "documents per query in the output", ge=1)
    weights: list[float] | None = flag(
        None, "one positive weight per run, in the order of --trec (default: all 1); only for sums of scores"
    )

    def execute(self) -> None:
        from cai_pyserini.core.artifact import require
        from cai_pyserini.runs.fuse import fuse, require_fusable

        require_fusable(self.trec)
        fuse(self.trec, self.output, self.method, depth=self.depth, hits=self.hits, weights=self.weights)
        print(f"{self.output}: {require(self.output, 'fusion fuse').stats['queries']:,} queries")


main = Main(Fuse, "fuse")
