from cai_pyserini.core import terminal
from cai_pyserini.core.flags import OR_URL, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse


class SmoothSettings(Settings):
    """Mix the raw SPLADE vector of each document with those of the documents nearest to it.

    The output replaces the raw vectors, for example in the impact stage. If interrupted, run the same command again: it
    continues with the first missing shard.
    """

    example = "python -m cai_pyserini.smooth --vectors vectors --idf idf --output smoothed"
    vectors: PathOrUrl = flag(help=f"folder of SPLADE vectors, written by the encode stage, {OR_URL}")
    output: AnyPath = OUTPUT_FOLDER
    dense: PathOrUrl | None = flag(
        None, "folder of dense vectors of the same documents, to find near documents by (default: the SPLADE vectors)"
    )
    idf: PathOrUrl | None = flag(
        None, "folder written by the idf stage, to weight SPLADE vectors where near documents are found by them"
    )
    neighbours: int = flag(40, "number of nearest documents", ge=1)
    weight: float | None = flag(
        None, "weight of the neighbours' mean, from 0 to 1 (default: 0.4 with dense vectors, else 0.1)", ge=0, le=1
    )


def main(argv: Argv = None) -> None:
    settings = parse(SmoothSettings, argv, "python -m cai_pyserini.smooth")

    from cai_pyserini.core import artifact
    from cai_pyserini.smooth.smooth import smooth
    from cai_pyserini.vectors.shards import Vectors

    dense = Vectors(settings.dense) if settings.dense else None
    smooth(Vectors(settings.vectors), settings.output, dense, settings.idf, settings.neighbours, settings.weight)
    stats = artifact.require(settings.output, "smooth").stats
    print(
        f"{settings.output}: {stats['vectors']:,} vectors, {stats['nonzeros'] / stats['vectors']:.1f} non-zeros per "
        f"vector; neighbours by {stats['near_by']} vectors, {stats['search']} search, recall {stats['recall']:.2f}"
    )


if __name__ == "__main__":
    terminal.run(main)
