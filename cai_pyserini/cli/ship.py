from cai_pyserini.core.flags import ENCODER_TEXT, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Command, Group, Main, flag

REPOSITORY = "repository on the hub, ORG/NAME"


class ShipIndex(Command):
    """Pack an index like Pyserini's prebuilt ones: an archive, a README with its scores, and its registry entry.

    The archive also has the encoder's settings and IDF, and the encoder itself if it is a local folder, such as an
    adapted one: this one file is enough to search. The same index gives the same archive.
    """

    example = "cai-pyserini ship index runs/hpo/splade-tiny/indexes/joint-splade-idf --output shipped"
    index: AnyPath = flag(help="folder of the index stage", positional=True)
    output: AnyPath = OUTPUT_FOLDER
    name: str | None = flag(
        None,
        "name of the index in Pyserini (default: collection.encoder.index in a run folder, or else the folder's name)",
        pattern=r"^\w[\w.+-]*$",
    )
    with_encoder: bool = flag(False, "include the encoder in the archive even if it is in a package or on a hub")

    def execute(self) -> None:
        from cai_pyserini.plugin.index import ship_index, size_of

        entry = ship_index(self.index, self.output, self.name, self.with_encoder)
        print(f"{entry.name}: {size_of(self.index)}, {entry.size / 1e6:.2f} MB, SHA-256 {entry.sha256}")
        print(self.output / entry.filename)


class ShipEncoder(Command):
    """Write an encoder as a folder for a model hub, with a model card."""

    example = "cai-pyserini ship encoder runs/hpo/splade-tiny/adapted --license apache-2.0 --output hpo-splade"
    encoder: str = flag(help=ENCODER_TEXT, positional=True)
    output: AnyPath = OUTPUT_FOLDER
    license: str = flag(help="its licence, as the hub's identifier, such as apache-2.0 or cc-by-nc-sa-4.0")
    language: str = flag("en", "its language, as an ISO code")
    base_model: str | None = flag(None, "hub id of the model it was adapted from")

    def execute(self) -> None:
        from cai_pyserini.plugin.encoder import ship_encoder

        print(ship_encoder(self.encoder, self.output, self.license, self.language, self.base_model))


class Add(Command):
    """Add an index to your registry: Pyserini with our plugin finds it by name, and downloads it when needed.

    The registry is $CAI_PYSERINI_REGISTRY, or cai-registry.json in Pyserini's cache (~/.cache/pyserini).
    """

    example = "cai-pyserini ship add shipped/lucene-inverted.hpo.splade-tiny.splade-idf.20261122.0a1b2c.json"
    entry: str = flag(help="a file or https URL with entries, as `ship index` writes it", positional=True)

    def execute(self) -> None:
        from cai_pyserini.plugin import registry

        for entry in registry.add(self.entry):
            print(f"{entry.name}: {entry.size / 1e6:.2f} MB, {entry.urls[0]}")
        print(registry.registry_path())


class Get(Command):
    """Print the folder of an index in your registry; download it if it is missing."""

    example = "cai-pyserini ship get hpo.splade-tiny.splade-idf"
    name: str = flag(help="name of an index in the registry", positional=True)

    def execute(self) -> None:
        from cai_pyserini.plugin import registry

        print(registry.fetch(registry.find(self.name)))


class Push(Command):
    """Upload a folder of `ship encoder` or `ship index` to a hub: an encoder as a model, an index as a dataset.

    The token is that of HF_TOKEN or of `hf auth login`. A missing repository is created. It holds one encoder or index:
    files of an earlier push that are not in the folder are deleted in the same commit.
    """

    example = "cai-pyserini ship push shipped ORG/NAME --private"
    folder: AnyPath = flag(help="folder that `ship encoder` or `ship index` wrote", positional=True)
    repository: str = flag(help=REPOSITORY, positional=True, pattern=r"^[\w.-]+/[\w.-]+$")
    private: bool = flag(False, "create a private repository; a public one is refused")

    def execute(self) -> None:
        from cai_pyserini.plugin.repository import push

        print(push(self.folder, self.repository, self.private))


class Pull(Command):
    """Download what `ship push` uploaded, and print its folder.

    An index is added to your registry, and unpacked where `ship get` puts it. An encoder goes to the hub's cache; give
    its folder as --encoder.
    """

    example = "cai-pyserini ship pull ORG/NAME"
    repository: str = flag(help=REPOSITORY, positional=True)
    revision: str | None = flag(None, "branch, tag or commit (default: the main branch)")

    def execute(self) -> None:
        from cai_pyserini.plugin.repository import pull

        print(pull(self.repository, self.revision))


main = Main(
    Group(
        "Ship indexes and encoders to others, and use what they ship.",
        {"index": ShipIndex, "encoder": ShipEncoder, "add": Add, "get": Get, "push": Push, "pull": Pull},
    ),
    "ship",
)
