from cai_pyserini.core.flags import COLLECTION, DEVICE, ENCODER, OUTPUT_FOLDER, SPLIT
from cai_pyserini.core.settings import AnyPath, Argv, Settings, parse
from cai_pyserini.plugin import hook


class Enable(Settings):
    """Let plain `python -m pyserini.…` in this environment use our encoders and find Java.

    This adds a file cai_pyserini.pth to the environment's site-packages. Pyserini's own files do not change.
    """

    example = "cai-pyserini plugin enable"


class Disable(Settings):
    """Undo `enable`."""

    example = "cai-pyserini plugin disable"


class ExportEncoder(Settings):
    """Write a folder that stock Pyserini's SpladeQueryEncoder loads, without this package."""

    example = "cai-pyserini plugin export-encoder --encoder splade-tiny --output splade-tiny"
    encoder: str = ENCODER
    output: AnyPath = OUTPUT_FOLDER


class ExportTopics(Settings):
    """Write pre-encoded topics for stock Pyserini without this package.

    The files are topics.json, splade.jsonl and splade-doc.jsonl. To search with them:
      python -m pyserini.search.lucene --index INDEX --topics topics/topics.json --impact --min-idf -1 \\
          --encoder topics/splade.jsonl --output run.trec
    """

    example = "cai-pyserini plugin export-topics --collection hpo --encoder splade-tiny --output topics"
    collection: str = COLLECTION
    encoder: str = ENCODER
    output: AnyPath = OUTPUT_FOLDER
    split: str | None = SPLIT
    device: str = DEVICE


COMMANDS: dict[str, type[Settings]] = {
    "enable": Enable,
    "disable": Disable,
    "export-encoder": ExportEncoder,
    "export-topics": ExportTopics,
}
DESCRIPTION = "Use our encoders in Pyserini, or export them for Pyserini without this package."


def main(argv: Argv = None) -> None:
    settings = parse(COMMANDS, argv, "cai-pyserini plugin", DESCRIPTION)
    if isinstance(settings, Enable):
        from cai_pyserini.core.files import write_text

        write_text(path := hook.pth_path(), hook.LINE)  # atomically, because every Python reads it when it starts
        print(f"enabled: {path}")
    elif isinstance(settings, Disable):
        (path := hook.pth_path()).unlink(missing_ok=True)
        print(f"disabled: {path}")
    else:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.config import load_encoder, load_index_config
        from cai_pyserini.plugin.export import export_encoder, export_topics

        config = load_encoder(settings.encoder)
        if isinstance(settings, ExportEncoder):
            print(export_encoder(config, settings.output))
        else:
            collection = load_index_config(settings.collection)
            topics = open_collection(collection).topics(settings.split or collection.split)
            print(export_topics(topics, config, settings.output, settings.device))
