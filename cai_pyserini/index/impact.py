"""Index impacts with Lucene's own IndexWriter.

Anserini's JsonVectorCollection repeats each term as many times as its impact, so that indexing time grows with the sum
of the impacts. Here a document is `term␁impact term␁impact …`, split at white space and analyzed by
DelimitedTermFrequencyTokenFilter, so that it grows with the number of terms. The index is the same for Anserini and
Pyserini: a field `contents` with documents and frequencies and without norms, scored by ImpactSimilarity, a field
`id`, stored and in doc values, and the stored field `raw`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cai_pyserini.collection.contract import Collection
from cai_pyserini.collection.ids import Ids
from cai_pyserini.core import artifact, jvm
from cai_pyserini.core.config import encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.index.json_vectors import DELIMITER, parse_checked, read_vectors
from cai_pyserini.index.raw import raw_documents

RAM_BUFFER_MB = 64.0  # on the heap of the JVM


def index_impacts(impacts: Path, output: Path, collection: Collection | None = None) -> Path:
    """Index JSON vectors, from the impact stage or any other tool; with their collection, its documents are stored.

    Raises CaiError for a line that is not {"id": string, "vector": {term: positive integer, …}}, and for a document
    that the collection does not have, or has in another place.
    """
    files = sorted(impacts.glob("*.jsonl"))
    if not files:
        raise CaiError(f"{impacts}: no *.jsonl; make JSON vectors with `python -m cai_pyserini.impact`")
    ours = artifact.read_manifest(impacts)
    source = ours.digest if ours else [artifact.file_digest(file) for file in files]
    raw = raw_documents(collection) if collection else None
    recipe = {
        "stage": "index",
        "kind": "impact",
        "source": source,
        "raw": collection and collection.fingerprint("documents"),
    }

    def write(folder: Path) -> artifact.Stats:
        jvm.start()
        start = time.perf_counter()
        with jvm.java_errors(f"indexing {impacts}"):
            documents = _write_index(files, folder, ours.stats["vectors"] if ours else None, raw)
        stats: artifact.Stats = {"documents": documents, "seconds": round(time.perf_counter() - start, 3)}
        if ours:  # needed to encode queries for this index, and to scale its scores
            config = load_encoder(str(impacts / "encoder.yaml"))
            artifact.write_text(folder / "encoder.yaml", encoder_yaml(config, output))
            stats |= {"checkpoint": ours.recipe["checkpoint"], "query_scale": config.query_scale}
            stats |= {key: ours.stats[key] for key in ("document_scale", "nonzeros")}
        return stats | {"bytes": artifact.folder_bytes(folder)}

    return artifact.make(output, recipe, write)


def _write_index(files: list[Path], folder: Path, total: int | None, raw: Callable[[str], str] | None) -> int:
    """Write a Lucene index of JSON vectors and return the number of documents."""
    writer, add = _open_writer(folder, raw)
    seen = Ids()
    count = 0
    try:
        for where, line, id, contents in progress(read_vectors(files), total, "index impacts"):
            count += 1
            if seen.add(id):
                raise CaiError(f"{where}: document id {id!r} occurs twice")
            try:
                add(id, contents)
            except jvm.start().JavaException:
                parse_checked(line, where)  # raises an error that names the fault, if it is in the line
                raise
        if not count:
            raise CaiError(f"{files[0].parent}: the JSON vectors are empty")
        writer.forceMerge(1)
        writer.close()
    except BaseException:
        writer.rollback()  # closes its files
        raise
    return count


def delimited_analyzer(filter: str) -> Any:
    """A Lucene analyzer of `term␁number term␁number …`; `filter` says what the numbers are of terms."""
    # Tokens may be longer than Lucene's longest term, so that too long a term is refused, not split.
    builder = jvm.java_class("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
    builder = builder.withTokenizer("whitespace", jvm.java_map({"maxTokenLen": str(1 << 20)}))
    return builder.addTokenFilter(filter, jvm.java_map({"delimiter": DELIMITER})).build()


def _open_writer(folder: Path, raw: Callable[[str], str] | None) -> tuple[Any, Callable[[str, str], None]]:
    """A Lucene IndexWriter, and a function that adds a document to it, stored if there is a function `raw`."""
    java = jvm.java_class
    analyzer = delimited_analyzer("delimitedTermFrequency")
    config = java("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    config.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
    config.setRAMBufferSizeMB(RAM_BUFFER_MB)
    directory = java("org.apache.lucene.store.FSDirectory").open(java("java.nio.file.Paths").get(str(folder)))
    writer = java("org.apache.lucene.index.IndexWriter")(directory, config)

    kind = java("org.apache.lucene.document.FieldType")()
    kind.setIndexOptions(java("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
    kind.setOmitNorms(True)
    text = jvm.start().cast("java.lang.CharSequence", java("java.lang.String")(""))
    contents_field = java("org.apache.lucene.document.Field")("contents", text, kind)
    id_field = java("org.apache.lucene.document.StringField")(
        "id", "", java("org.apache.lucene.document.Field$Store").YES
    )
    no_bytes = java("org.apache.lucene.util.BytesRef")(b"")
    id_values = java("org.apache.lucene.document.BinaryDocValuesField")("id", no_bytes)
    raw_field = java("org.apache.lucene.document.StoredField")("raw", "")
    document = java("org.apache.lucene.document.Document")()
    for field in (id_field, id_values, contents_field, *[raw_field] * bool(raw)):
        document.add(field)

    def add(id: str, contents: str) -> None:
        # One Document is reused: creating Java objects from Python is slow.
        id_field.setStringValue(id)
        id_values.setBytesValue(id.encode())
        contents_field.setStringValue(contents)
        if raw:
            raw_field.setStringValue(raw(id))
        writer.addDocument(document)

    return writer, add
