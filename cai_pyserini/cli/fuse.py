"""`cai-pyserini fuse`."""

from cai_pyserini.core.flags import OUTPUT_RUN
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse
from cai_pyserini.runs.fusions import DEFAULT, DEPTH, FUSIONS


class FuseSettings(Settings):
    """Fuse TREC runs, from this package or any other tool."""

    example = "cai-pyserini fuse --trec bm25.trec splade-idf.trec --method minmax --output hybrid.trec"
    trec: list[AnyPath] = flag(help="two or more TREC runs", min_length=2)
    output: AnyPath = OUTPUT_RUN
    method: str = flag(DEFAULT, "; ".join(f"{n}: {f.description}" for n, f in FUSIONS.items()), choices=tuple(FUSIONS))
    depth: int = flag(DEPTH, "fuse this many best documents per query of each run", ge=1)
    hits: int = flag(1000, "documents per query in the output", ge=1)
    weights: list[float] | None = flag(
        None, "one positive weight per run, in the order of --trec (default: all 1); only for sums of scores"
    )


def main(argv: Argv = None) -> None:
    settings = parse(FuseSettings, argv, "cai-pyserini fuse")

    from cai_pyserini.core.artifact import require
    from cai_pyserini.runs.fuse import fuse, require_fusable

    require_fusable(settings.trec)
    fuse(
        settings.trec,
        settings.output,
        settings.method,
        depth=settings.depth,
        hits=settings.hits,
        weights=settings.weights,
    )
    print(f"{settings.output}: {require(settings.output, 'fusion fuse').stats['queries']:,} queries")
