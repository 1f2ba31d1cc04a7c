from cai_pyserini.core.flags import COLLECTION, DEVICE, ENCODER, OUTPUT_FOLDER, SPLIT
from cai_pyserini.core.settings import AnyPath, Command, Group, Main
from cai_pyserini.plugin import hook


class Enable(Command):
    """Let plain `python -m pyserini.…` in this environment use our encoders and find Java.

    This adds a file cai_pyserini.pth to the environment's site-packages. Pyserini's own files do not change.
    """

    example = "cai-pyserini plugin enable"

    def execute(self) -> None:
        from cai_pyserini.core.files import write_text

        write_text(path := hook.pth_path(), hook.LINE)  # atomically, because every Python reads it when it starts
        print(f"enabled: {path}")


class Disable(Command):
    """Undo `enable`."""

    example = "cai-pyserini plugin disable"

    def execute(self) -> None:
        (path := hook.pth_path()).unlink(missing_ok=True)
        print(f"disabled: {path}")


class ExportEncoder(Command):
    """Write a folder that stock Pyserini's SpladeQueryEncoder loads, without this package."""

    example = "cai-pyserini plugin export-encoder --encoder splade-tiny --output splade-tiny"
    encoder: str = ENCODER
    output: AnyPath = OUTPUT_FOLDER

    def execute(self) -> None:
        from cai_pyserini.core.config import load_encoder
        from cai_pyserini.plugin.export import export_encoder

        print(export_encoder(load_encoder(self.encoder), self.output))


class ExportTopics(Command):
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

    def execute(self) -> None:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.config import load_encoder, load_index_config
        from cai_pyserini.plugin.export import export_topics

        config = load_index_config(self.collection)
        topics = open_collection(config).topics(self.split or config.split)
        print(export_topics(topics, load_encoder(self.encoder), self.output, self.device))


main = Main(
    Group(
        "Use our encoders in Pyserini, or export them for Pyserini without this package.",
        {"enable": Enable, "disable": Disable, "export-encoder": ExportEncoder, "export-topics": ExportTopics},
    ),
    "plugin",
)
