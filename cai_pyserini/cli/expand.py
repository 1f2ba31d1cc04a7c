"""`cai-pyserini stage expand`."""

from cai_pyserini.core.flags import DEVICE, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse


class ExpandSettings(Settings):
    """Expand documents with words that a dense encoder associates with them, such as synonyms, and neighbours' words.

    The impact stage adds both to the words of a joint index. If interrupted, run the same command again: it continues
    with the first missing shard.
    """

    example = "cai-pyserini stage expand --words words --vectors dense --near near --encoder minilm --output expansion"
    words: AnyPath = flag(help="folder written by the words stage")
    vectors: AnyPath = flag(help="folder of dense vectors of the same documents, written by the encode stage")
    near: AnyPath = flag(help="folder of the neighbours by these vectors, written by the near stage")
    encoder: str = flag(help="dense encoder that the vectors were made with")
    output: AnyPath = OUTPUT_FOLDER
    device: str = DEVICE


def main(argv: Argv = None) -> None:
    settings = parse(ExpandSettings, argv, "cai-pyserini stage expand")

    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.encoder import Encoder
    from cai_pyserini.vectors.expansion import expand
    from cai_pyserini.vectors.shards import Vectors

    encoder = Encoder(load_encoder(settings.encoder).replace(kind="dense"), settings.device)
    near = Vectors(settings.near, "near")
    expand(Vectors(settings.words, "words"), Vectors(settings.vectors), near, encoder, settings.output)
    stats = artifact.require(settings.output, "expand").stats
    count = stats["nonzeros"] / stats["vectors"]
    print(
        f"{settings.output}: {count:.1f} weights and rates per document, with a lexicon of {stats['lexicon']:,} words"
    )
