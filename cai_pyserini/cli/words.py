from cai_pyserini.core.flags import COLLECTION, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, Settings, parse


class WordsSettings(Settings):
    """Count the words of a collection as BM25 does, for a joint index of SPLADE and BM25."""

    example = "cai-pyserini stage words --collection hpo --output words"
    collection: str = COLLECTION
    output: AnyPath = OUTPUT_FOLDER


def main(argv: Argv = None) -> None:
    settings = parse(WordsSettings, argv, "cai-pyserini stage words")

    from cai_pyserini.collections.readers import load_collection
    from cai_pyserini.core import artifact
    from cai_pyserini.indexes.words import count_words

    stats = artifact.require(count_words(load_collection(settings.collection), settings.output), "words").stats
    print(f"{settings.output}: {stats['words']:,} words in {stats['vectors']:,} documents")
