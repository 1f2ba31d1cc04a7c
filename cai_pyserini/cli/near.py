from cai_pyserini.core.flags import OR_URL, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse


class NearSettings(Settings):
    """Find the nearest neighbours of every document, by dense vectors.

    The smooth and expand stages mix documents with their neighbours. If interrupted, run the same command again: it
    continues with the first missing shard.
    """

    example = "cai-pyserini stage near --vectors dense-vectors --output near"
    vectors: PathOrUrl = flag(help=f"folder of dense vectors, written by the encode stage, {OR_URL}")
    output: AnyPath = OUTPUT_FOLDER
    neighbours: int = flag(40, "number of neighbours per document", ge=1)


def main(argv: Argv = None) -> None:
    settings = parse(NearSettings, argv, "cai-pyserini stage near")

    from cai_pyserini.core import artifact
    from cai_pyserini.vectors.near import find_neighbours
    from cai_pyserini.vectors.shards import Vectors

    find_neighbours(Vectors(settings.vectors), settings.output, settings.neighbours)
    stats = artifact.require(settings.output, "near").stats
    print(
        f"{settings.output}: {stats['vectors']:,} documents, {stats['nonzeros'] / stats['vectors']:.1f} neighbours "
        f"each, {stats['search']} search, recall {stats['recall']:.2f}"
    )
