from importlib import import_module
from typing import Any, Literal, NamedTuple

from cai_pyserini.core.flags import DEVICE, OUTPUT_FOLDER, QUERY
from cai_pyserini.core.packages import require_modules
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse

IMPACTS = "--impacts runs/hpo/splade-tiny/impacts/joint-splade-idf"
PREFIX = "cai-pyserini export"


class EncoderExport(Settings):
    encoder: str = flag(help="a name in encoders/, a YAML file, a checkpoint folder, or an index folder")
    output: AnyPath = OUTPUT_FOLDER


class QueryExport(EncoderExport):
    query: Literal["splade", "bow"] | None = QUERY


class SentenceTransformers(QueryExport):
    """Write an encoder as a folder for SparseEncoder of sentence-transformers.

    With --query bow, queries need no model: their tokens have static weights, the IDF of a collection if the encoder
    has it. A repeated query token counts once in sentence-transformers, but every time in this package.
    """

    example = (
        f"{PREFIX} sentence-transformers --encoder runs/hpo/splade-tiny/indexes/splade-idf --query bow --output cai"
    )


class Anserini(QueryExport):
    """Write a query encoder as ONNX and vocab.txt, for the encoder SpladePlusPlusEnsembleDistil of Anserini.

    With PYSERINI_CACHE=OUTPUT in the environment, Anserini loads it by that name, and queries have the same impacts as
    in this package, except for special tokens, and for Chinese and Japanese, which Anserini does not split.
    """

    example = f"{PREFIX} anserini --encoder runs/hpo/splade-tiny/indexes/splade-idf --output anserini"


class Idf(EncoderExport):
    """Write the IDF of a collection as idf.json, with tokenizer.json: the query weights of OpenSearch's tokenizers.

    OpenSearch's inference-free models (encoders/opensearch-doc-…) then search with the IDF of your documents.
    """

    example = f"{PREFIX} idf --encoder splade-tiny --idf runs/hpo/splade-tiny/idf --output tokenizer"
    idf: AnyPath = flag(
        help="folder written by the idf stage with this encoder's tokenizer, such as idf in a run folder"
    )


class DocumentExport(Settings):
    impacts: AnyPath = flag(help="folder written by the impact stage")
    output: AnyPath = OUTPUT_FOLDER
    collection: str | None = flag(
        None, "also export the queries of a collection: a name in index_configs/, a YAML file, or a BEIR folder"
    )
    split: str | None = flag(None, "with --collection: split of the queries (default: the collection's, usually test)")
    query: Literal["splade", "bow"] | None = QUERY
    device: str = DEVICE


class ServerExport(DocumentExport):
    uri: str = flag(help="address of the server, with its port, such as http://HOST:9200")
    name: str = flag("cai", "name in the server: an alias, which is moved when all documents are loaded")
    no_texts: bool = flag(False, "with --collection: only its queries, not the texts of documents")


class Milvus(ServerExport):
    """Write impacts to a collection in Milvus: on a server, or in a file of Milvus Lite.

    With --collection, its documents and their metadata are stored beside the impacts. `cai-pyserini serve OUTPUT` then
    searches them. The output folder gets the settings of the encoder, terms.txt, whose line numbers, from 0, are the
    keys of the sparse vectors, and queries.jsonl. For a server that needs a token, set the environment variable
    MILVUS_TOKEN.
    """

    example = f"{PREFIX} milvus {IMPACTS} --collection hpo --uri milvus.db --output milvus"
    uri: str = flag(help="address of a server, http://HOST:19530, or a file NAME.db")
    replicas: int = flag(1, "copies of the collection in memory, each on other query nodes of the server", ge=1)


class OpenSearch(ServerExport):
    """Write impacts to an index of OpenSearch, with the texts of a collection for BM25.

    The output folder gets bodies of searches: queries.jsonl has a line for each query, with its id, and
    queries-….jsonl the same for two-phase searches, and for hybrids with BM25. For a server that needs a password, set
    the environment variable OPENSEARCH_AUTH to USER:PASSWORD.
    """

    example = f"{PREFIX} opensearch {IMPACTS} --collection hpo --uri http://localhost:9200 --output opensearch"
    field: Literal["rank_features", "sparse_vector"] = flag(
        "rank_features", "field of impacts: searched exactly, or, in OpenSearch 3.3, approximately by SEISMIC"
    )


class Elasticsearch(ServerExport):
    """Write impacts to an index of Elasticsearch, with the texts of a collection for BM25.

    The output folder gets bodies of searches: queries.jsonl has a line for each query, with its id, and
    queries-….jsonl the same for hybrids with BM25. For a server that needs a key, set the environment variable
    ELASTICSEARCH_API_KEY.
    """

    example = f"{PREFIX} elasticsearch {IMPACTS} --collection hpo --uri http://localhost:9200 --output elasticsearch"


class Ciff(DocumentExport):
    """Write impacts in the Common Index File Format, which PISA and BMP import."""

    example = f"{PREFIX} ciff {IMPACTS} --output ciff"


class Seismic(DocumentExport):
    """Write impacts and queries as the JSONL that Seismic reads."""

    example = f"{PREFIX} seismic {IMPACTS} --collection hpo --output seismic"


class Format(NamedTuple):
    """An export format: its settings, and the function that writes it."""

    settings: type[Settings]
    module: str  # in this folder
    function: str
    needs: tuple[str, ...] = ()  # packages of the extra `export`


CLIENTS = ("opensearchpy", "elasticsearch")
FORMATS = {
    "sentence-transformers": Format(SentenceTransformers, "sentence_transformers", "write_sparse_encoder"),
    "anserini": Format(Anserini, "onnx", "write_onnx", ("onnx", "onnxscript")),
    "idf": Format(Idf, "idf", "write_idf"),
    "milvus": Format(Milvus, "milvus", "export_milvus", ("pymilvus",)),
    "opensearch": Format(OpenSearch, "search_server", "export_opensearch", CLIENTS),
    "elasticsearch": Format(Elasticsearch, "search_server", "export_elasticsearch", CLIENTS),
    "ciff": Format(Ciff, "ciff", "write_ciff"),
    "seismic": Format(Seismic, "seismic", "write_seismic"),
}


def main(argv: Argv = None) -> None:
    commands = {name: format.settings for name, format in FORMATS.items()}
    settings = parse(commands, argv, PREFIX, "Write an encoder, or the impacts of documents, for other systems.")
    name, format = next(item for item in FORMATS.items() if type(settings) is item[1].settings)
    require_modules(format.needs, "export")
    write = getattr(import_module(f"cai_pyserini.share.{format.module}"), format.function)
    export = _export_encoder if isinstance(settings, EncoderExport) else _export_documents
    stats = export(settings, name, write)
    counts = ", ".join(f"{stats[key]:,} {key}" for key in ("documents", "impacts", "queries") if stats.get(key))
    print(f"{settings.output}: {counts}{', ' if counts else ''}{stats['bytes'] / 1e6:.2f} MB")
    print("not in this format:")
    for loss in stats["loses"]:
        print(f"  {loss}")


def _export_encoder(settings: EncoderExport, format: str, write: Any) -> dict[str, Any]:
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.share.source import export_encoder

    config = load_encoder(settings.encoder)
    if isinstance(settings, Idf):
        config = config.replace(idf=str(settings.idf.resolve()))
    query = settings.query if isinstance(settings, QueryExport) else "bow"
    return export_encoder(config, settings.output, format, write, query).stats


def _export_documents(settings: DocumentExport, format: str, write: Any) -> dict[str, Any]:
    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.share.source import Source, Texts

    topics = texts = None
    if settings.collection:
        config = load_index_config(settings.collection)
        collection = open_collection(config)
        split = settings.split or config.split
        if isinstance(settings, ServerExport) and not settings.no_texts:
            texts = Texts(collection, config.bm25)
        if not texts or collection.has_queries(split):
            topics = collection.topics(split)
    source = Source(settings.impacts, topics, settings.query, settings.device, texts)
    if isinstance(settings, ServerExport):
        more = {key: getattr(settings, key) for key in ("field", "replicas") if hasattr(settings, key)}
        return write(source, settings.output, settings.uri, settings.name, **more).stats
    return source.export(settings.output, write, format).stats
