from importlib import import_module
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from cai_pyserini.core.flags import DEVICE, OUTPUT_FOLDER, QUERY
from cai_pyserini.core.packages import require_modules
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse

IMPACTS = "--impacts runs/hpo/splade-tiny/impacts/joint-splade-idf"
PREFIX = "cai-pyserini export"


class EncoderExport(Settings):
    encoder: str = flag(help="a name in encoders/, a YAML file, a checkpoint folder, or an index folder")
    output: AnyPath = OUTPUT_FOLDER
    query: Literal["splade", "bow"] | None = QUERY


class SentenceTransformers(EncoderExport):
    """Write an encoder as a folder for SparseEncoder of sentence-transformers.

    With --query bow, queries need no model: their tokens have static weights, the IDF of a collection if the encoder
    has it. A repeated query token counts once in sentence-transformers, but every time in this package.
    """

    example = (
        f"{PREFIX} sentence-transformers --encoder runs/hpo/splade-tiny/indexes/splade-idf --query bow --output cai"
    )


class Anserini(EncoderExport):
    """Write a query encoder as ONNX and vocab.txt, for the encoder SpladePlusPlusEnsembleDistil of Anserini.

    With PYSERINI_CACHE=OUTPUT in the environment, Anserini loads it by that name, and queries have the same impacts as
    in this package, except for special tokens, and for Chinese and Japanese, which Anserini does not split.
    """

    example = f"{PREFIX} anserini --encoder runs/hpo/splade-tiny/indexes/splade-idf --output anserini"


class DocumentExport(Settings):
    impacts: AnyPath = flag(help="folder written by the impact stage")
    output: AnyPath = OUTPUT_FOLDER
    collection: str | None = flag(
        None, "also export the queries of a collection: a name in index_configs/, a YAML file, or a BEIR folder"
    )
    split: str | None = flag(None, "with --collection: split of the queries (default: the collection's, usually test)")
    query: Literal["splade", "bow"] | None = QUERY
    device: str = DEVICE


class Milvus(DocumentExport):
    """Write impacts to a collection in Milvus: on a server, or in a file of Milvus Lite.

    With --collection, its documents and their metadata are stored beside the impacts, and its queries, if it has any,
    in queries.jsonl. `cai-pyserini serve OUTPUT` searches the collection; in the output folder are the settings of the
    encoder, and terms.txt, whose line numbers, from 0, are the keys of the sparse vectors. For a server that needs a
    token, set the environment variable MILVUS_TOKEN.
    """

    example = f"{PREFIX} milvus {IMPACTS} --collection hpo --uri milvus.db --output milvus"
    uri: str = flag(help="address of a server, http://HOST:19530, or a file NAME.db")
    name: str = flag("cai", "name of the collection in Milvus")
    no_raw: bool = flag(False, "store neither the documents nor their metadata, only impacts")
    replicas: int = flag(1, "copies of the collection in memory, each on other query nodes of the server", ge=1)
    collection: str | None = flag(
        None, "a collection whose documents to store: a name in index_configs/, a YAML file, or a BEIR folder"
    )


class OpenSearch(DocumentExport):
    """Write impacts as bulk requests for OpenSearch, with a mapping and the bodies of searches.

    To load them (a server answers 200 even if it refuses documents):
      BULK="$URL/cai/_bulk?filter_path=errors,items.*.error"
      curl -sS --fail-with-body -X PUT $URL/cai -H 'Content-Type: application/json' \\
          --data-binary @opensearch/mapping.json &&
      for file in opensearch/bulk-*.ndjson; do
          curl -sS "$BULK" -H 'Content-Type: application/x-ndjson' --data-binary @$file | tee /dev/stderr |
              grep -q '"errors":false' || { echo "$file is not loaded"; break; }; done
    Each line of queries.jsonl has the id of a query and the `body` of its search.
    """

    example = f"{PREFIX} opensearch {IMPACTS} --collection hpo --output opensearch"


class Elasticsearch(OpenSearch):
    __doc__ = (OpenSearch.__doc__ or "").replace("OpenSearch", "Elasticsearch").replace("opensearch", "elasticsearch")
    example = f"{PREFIX} elasticsearch {IMPACTS} --collection hpo --output elasticsearch"


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


FORMATS = {
    "sentence-transformers": Format(SentenceTransformers, "sentence_transformers", "write_sparse_encoder"),
    "anserini": Format(Anserini, "onnx", "write_onnx", ("onnx", "onnxscript")),
    "milvus": Format(Milvus, "milvus", "export_milvus", ("pymilvus",)),
    "opensearch": Format(OpenSearch, "json_lines", "OPENSEARCH.write"),
    "elasticsearch": Format(Elasticsearch, "json_lines", "ELASTICSEARCH.write"),
    "ciff": Format(Ciff, "ciff", "write_ciff"),
    "seismic": Format(Seismic, "json_lines", "write_seismic"),
}


def main(argv: Argv = None) -> None:
    commands = {name: format.settings for name, format in FORMATS.items()}
    settings = parse(commands, argv, PREFIX, "Write an encoder, or the impacts of documents, for other systems.")
    name, format = next(item for item in FORMATS.items() if type(settings) is item[1].settings)
    require_modules(format.needs, "export")
    write = attrgetter(format.function)(import_module(f"cai_pyserini.share.{format.module}"))
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

    return export_encoder(load_encoder(settings.encoder), settings.output, format, write, settings.query).stats


def _export_documents(settings: DocumentExport, format: str, write: Any) -> dict[str, Any]:
    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.share.source import Source

    topics = collection = None
    if settings.collection:
        config = load_index_config(settings.collection)
        collection = open_collection(config)
        split = settings.split or config.split
        if not isinstance(settings, Milvus) or collection.has_queries(split):
            topics = collection.topics(split)
    source = Source(settings.impacts, topics, settings.query, settings.device)
    if isinstance(settings, Milvus):
        how = {"raw": not settings.no_raw, "replicas": settings.replicas}
        return write(source, settings.output, settings.uri, settings.name, collection, **how).stats
    return source.export(settings.output, write, format).stats
