from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cai_pyserini.core.flags import DEVICE, OUTPUT_FOLDER, QUERY
from cai_pyserini.core.packages import require_modules
from cai_pyserini.core.settings import AnyPath, Command, Group, Main, flag

if TYPE_CHECKING:
    from cai_pyserini.core.artifact import Manifest
    from cai_pyserini.plugin.source import Source

IMPACTS = "--impacts runs/hpo/splade-tiny/impacts/joint-splade-idf"
PREFIX = "cai-pyserini export"


class Export(Command):
    """A format of exports, whose function `writer` in `share` is imported when it is needed."""

    writer: ClassVar[str]  # module.function
    needs: ClassVar[tuple[str, ...]] = ()  # packages of the extra `export`
    output: AnyPath = OUTPUT_FOLDER

    def execute(self) -> None:
        require_modules(self.needs, "export")
        module, _, function = self.writer.partition(".")
        stats = self.export(getattr(import_module(f"cai_pyserini.plugin.{module}"), function)).stats
        names = {"documents": "passages" if stats.get("passages") else "documents"}
        keys = ("documents", "impacts", "queries")
        counts = ", ".join(f"{stats[key]:,} {names.get(key, key)}" for key in keys if stats.get(key))
        print(f"{self.output}: {counts}{', ' if counts else ''}{stats['bytes'] / 1e6:.2f} MB")
        print("not in this format:")
        for loss in stats["loses"]:
            print(f"  {loss}")

    def export(self, write: Any) -> "Manifest":
        """Export with the function of the format."""
        raise NotImplementedError


class SentenceTransformers(Export):
    """Write an encoder as a folder for SparseEncoder of sentence-transformers.

    With --query bow, queries need no model: their tokens have static weights, the IDF of a collection if the encoder
    has it. A repeated query token counts once in sentence-transformers, but every time in this package.
    """

    example = (
        f"{PREFIX} sentence-transformers --encoder runs/hpo/splade-tiny/indexes/splade-idf --query bow --output cai"
    )
    writer = "sentence_transformers.export_encoder"
    encoder: str = flag(help="a name in encoders/, a YAML file, a checkpoint folder, or an index folder")
    query: Literal["splade", "bow"] | None = QUERY

    def export(self, write: Any) -> "Manifest":
        from cai_pyserini.core.config import load_encoder

        return write(load_encoder(self.encoder), self.output, self.query)


class DocumentExport(Export):
    impacts: AnyPath = flag(help="folder written by the impact stage")
    collection: str | None = flag(
        None, "also export the queries of a collection: a name in index_configs/, a YAML file, or a BEIR folder"
    )
    split: str | None = flag(None, "with --collection: split of the queries (default: the collection's, usually test)")
    query: Literal["splade", "bow"] | None = QUERY
    device: str = DEVICE

    def export(self, write: Any) -> "Manifest":
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.config import load_index_config
        from cai_pyserini.plugin.source import Source

        topics = texts = None
        if self.collection:
            config = load_index_config(self.collection)
            collection = open_collection(config)
            split = self.split or config.split
            if self.stores_texts():
                texts = collection
            if not texts or collection.has_queries(split):
                topics = collection.topics(split)
        return self.send(Source(self.impacts, topics, self.query, self.device, texts), write)

    def stores_texts(self) -> bool:
        return False

    def send(self, source: "Source", write: Any) -> "Manifest":
        return source.export(self.output, write, self.writer.partition(".")[0])


class ServerExport(DocumentExport):
    uri: str = flag(help="address of the server, with its port, such as http://HOST:9200")
    name: str = flag("cai", "name in the server: an alias, which is moved when all documents are loaded")
    no_texts: bool = flag(False, "with --collection: only its queries, not the texts of documents")

    def stores_texts(self) -> bool:
        return not self.no_texts

    def send(self, source: "Source", write: Any) -> "Manifest":
        return write(source, self.output, self.uri, self.name)


class Milvus(ServerExport):
    """Write impacts to a collection in Milvus: on a server, or in a file of Milvus Lite.

    With --collection, its documents and their metadata are stored beside the impacts. `cai-pyserini serve OUTPUT` then
    searches them. The output folder gets the settings of the encoder, terms.txt, whose line numbers, from 0, are the
    keys of the sparse vectors, and queries.jsonl. For a server that needs a token, set the environment variable
    MILVUS_TOKEN.
    """

    example = f"{PREFIX} milvus {IMPACTS} --collection hpo --uri milvus.db --output milvus"
    writer, needs = "milvus.export_milvus", ("pymilvus",)
    uri: str = flag(help="address of a server, http://HOST:19530, or a file NAME.db")


class OpenSearch(ServerExport):
    """Write impacts to an index of OpenSearch, with the texts of a collection.

    The output folder gets queries.jsonl, with the id of each query and the body of its search. For a server that needs
    a password, set the environment variable OPENSEARCH_AUTH to USER:PASSWORD.
    """

    example = f"{PREFIX} opensearch {IMPACTS} --collection hpo --uri http://localhost:9200 --output opensearch"
    writer, needs = "search_server.export_opensearch", ("opensearchpy",)


class Elasticsearch(ServerExport):
    """Write impacts to an index of Elasticsearch, with the texts of a collection.

    The output folder gets queries.jsonl, with the id of each query and the body of its search. For a server that needs
    a key, set the environment variable ELASTICSEARCH_API_KEY.
    """

    example = f"{PREFIX} elasticsearch {IMPACTS} --collection hpo --uri http://localhost:9200 --output elasticsearch"
    writer, needs = "search_server.export_elasticsearch", ("opensearchpy",)


class Ciff(DocumentExport):
    """Write impacts in the Common Index File Format, which PISA and BMP import."""

    example = f"{PREFIX} ciff {IMPACTS} --output ciff"
    writer = "ciff.write_ciff"


class Seismic(DocumentExport):
    """Write impacts and queries as the JSONL that Seismic reads."""

    example = f"{PREFIX} seismic {IMPACTS} --collection hpo --output seismic"
    writer = "seismic.write_seismic"


FORMATS: dict[str, type[Export]] = {
    "sentence-transformers": SentenceTransformers,
    "milvus": Milvus,
    "opensearch": OpenSearch,
    "elasticsearch": Elasticsearch,
    "ciff": Ciff,
    "seismic": Seismic,
}

main = Main(Group("Write an encoder, or the impacts of documents, for other systems.", FORMATS), "export")
