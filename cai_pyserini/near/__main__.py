from cai_pyserini.core import terminal
from cai_pyserini.core.flags import OR_URL, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse


class NearSettings(Settings):
    """Find the documents near each document, by dense vectors or by SPLADE vectors.

    The smooth and expand stages mix what they have. If interrupted, run the same command again: it continues with the
    first missing shard.
    """

    example = "python -m cai_pyserini.near --vectors dense-vectors --output near"
    vectors: PathOrUrl = flag(help=f"folder of dense or SPLADE vectors, written by the encode stage, {OR_URL}")
    output: AnyPath = OUTPUT_FOLDER
    idf: PathOrUrl | None = flag(None, f"folder written by the idf stage, to weight SPLADE vectors with, {OR_URL}")
    neighbours: int = flag(40, "number of nearest documents", ge=1)


def main(argv: Argv = None) -> None:
    settings = parse(NearSettings, argv, "python -m cai_pyserini.near")

    from cai_pyserini.core import artifact
    from cai_pyserini.near.near import find_neighbours
    from cai_pyserini.vectors.shards import Vectors

    find_neighbours(Vectors(settings.vectors), settings.output, settings.idf, settings.neighbours)
    stats = artifact.require(settings.output, "near").stats
    print(
        f"{settings.output}: {stats['vectors']:,} documents, {stats['nonzeros'] / stats['vectors']:.1f} near each, by "
        f"{stats['near_by']} vectors, {stats['search']} search, recall {stats['recall']:.2f}"
    )


if __name__ == "__main__":
    terminal.run(main)
