from collections.abc import Sequence
from typing import ClassVar

from cai_pyserini.core import terminal
from cai_pyserini.core.flags import COLLECTION, ENCODER, OUTPUT_OR_URL
from cai_pyserini.core.settings import PathOrUrl, Settings, parse


class IdfSettings(Settings):
    """Compute the IDF of an encoder's tokens in a collection."""

    example: ClassVar[str] = "python -m cai_pyserini.idf --collection hpo --encoder splade-tiny --output idf"
    collection: str = COLLECTION
    encoder: str = ENCODER
    output: PathOrUrl = OUTPUT_OR_URL


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(IdfSettings, argv, "python -m cai_pyserini.idf")

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.idf.idf import compute
    from cai_pyserini.models.checkpoint import checkpoint_folder

    collection = open_collection(load_index_config(settings.collection))
    compute(collection, checkpoint_folder(load_encoder(settings.encoder)), settings.output)
    stats = artifact.require(settings.output, "idf").stats
    print(f"{settings.output}: {stats['tokens']:,} tokens in {stats['documents']:,} documents")


if __name__ == "__main__":
    terminal.run(main)
