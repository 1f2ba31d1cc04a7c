from cai_pyserini.core.flags import COLLECTION, ENCODER, OUTPUT_OR_URL
from cai_pyserini.core.settings import Argv, PathOrUrl, Settings, parse


class IdfSettings(Settings):
    """Compute the IDF of an encoder's tokens in a collection."""

    example = "cai-pyserini stage idf --collection hpo --encoder splade-tiny --output idf"
    collection: str = COLLECTION
    encoder: str = ENCODER
    output: PathOrUrl = OUTPUT_OR_URL


def main(argv: Argv = None) -> None:
    settings = parse(IdfSettings, argv, "cai-pyserini stage idf")

    from cai_pyserini.collections.readers import load_collection
    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.idf import compute

    collection, encoder = load_collection(settings.collection), load_encoder(settings.encoder)
    stats = artifact.require(compute(collection, encoder, settings.output), "idf").stats
    print(f"{settings.output}: {stats['tokens']:,} tokens in {stats['documents']:,} documents")
