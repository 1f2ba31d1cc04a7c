from cai_pyserini.core.flags import OR_URL, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse


class SmoothSettings(Settings):
    """Mix the raw SPLADE vector of each document with those of its nearest neighbours.

    The output replaces the raw vectors, for example in the impact stage. If interrupted, run the same command again: it
    continues with the first missing shard.
    """

    example = "cai-pyserini stage smooth --vectors vectors --near near --output smoothed"
    vectors: PathOrUrl = flag(help=f"folder of SPLADE vectors, written by the encode stage, {OR_URL}")
    near: AnyPath = flag(help="folder of the neighbours of the same documents, written by the near stage")
    output: AnyPath = OUTPUT_FOLDER
    weight: float = flag(0.4, "weight of the neighbours' mean, from 0 to 1", ge=0, le=1)


def main(argv: Argv = None) -> None:
    settings = parse(SmoothSettings, argv, "cai-pyserini stage smooth")

    from cai_pyserini.core import artifact
    from cai_pyserini.vectors.shards import Vectors
    from cai_pyserini.vectors.smooth import smooth

    smooth(Vectors(settings.vectors), Vectors(settings.near, "near"), settings.output, settings.weight)
    stats = artifact.require(settings.output, "smooth").stats
    nonzeros = stats["nonzeros"] / stats["vectors"]
    print(f"{settings.output}: {stats['vectors']:,} vectors, {nonzeros:.1f} non-zeros per vector")
