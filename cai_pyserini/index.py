"""Indexes: of impacts, written with Lucene's own IndexWriter, of text for BM25, written by Anserini, and of dense
vectors, written by Faiss.

Anserini's JsonVectorCollection repeats a term as often as its impact says, so that indexing costs the sum of the
impacts. Here a document is `term␁impact term␁impact …`, analyzed by white space and DelimitedTermFrequencyTokenFilter,
which costs the number of terms. What comes out is the same index to Anserini and Pyserini: a field `contents` with
documents and frequencies and no norms, scored by ImpactSimilarity, and an `id` that is stored and in doc values.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini import artifact, cli, jvm
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Collection, Ids, open_collection
from cai_pyserini.config import load_encoder, load_index_config
from cai_pyserini.vectors import Vectors

DELIMITER = "\x01"  # between term and impact: no vocabulary has it, and to Java it is no white space
LONGEST_TERM = 32766  # bytes of UTF-8, Lucene's IndexWriter.MAX_TERM_LENGTH
FRONT, MIDDLE, BACK = '{"id": "', '", "contents": "", "vector": {"', "}}"  # of a line as the impact stage writes it
RAM_BUFFER_MB = 512.0
FILE_DOCUMENTS = 20_000  # a file Anserini is given; each is a unit of work for its threads


def index_impacts(impacts: Path, output: Path) -> Path:
    """Index JSON vectors, of the impact stage or any other origin, unless the index is there already.

    Raises CaiError for a line that is not {"id": string, "vector": {term: integer from 1 on, …}}.
    """
    from cai_pyserini.impact import encoder_yaml

    files = sorted(impacts.glob("*.jsonl"))
    if not files:
        raise CaiError(f"{impacts}: no *.jsonl; make JSON vectors with `python -m cai_pyserini.impact`")
    manifest = artifact.read_manifest(impacts)
    source = manifest["digest"] if manifest else [artifact.file_digest(file) for file in files]
    recipe = {"stage": "index", "format": 1, "kind": "impact", "source": source}
    if artifact.is_fresh(output, recipe):
        return output
    jvm.start()
    with artifact.building(output, recipe) as (partial, facts):
        start = time.perf_counter()
        with jvm.java_errors(f"indexing {impacts}"):
            documents = _write_index(files, partial, manifest["vectors"] if manifest else None)
        facts |= {"documents": documents, "seconds": round(time.perf_counter() - start, 3)}
        if manifest:  # whose queries fit, and how its scores are to be read
            config = load_encoder(str(impacts / "encoder.yaml"))
            artifact.write_text(partial / "encoder.yaml", encoder_yaml(config, output))
            facts |= {key: manifest["recipe"][key] for key in ("checkpoint", "idf_power", "query_scale")}
            facts["document_scale"] = manifest["document_scale"]
            facts["nonzeros"] = manifest["nonzeros"]
        facts["bytes"] = artifact.folder_bytes(partial)
    return output


def _write_index(files: list[Path], folder: Path, total: int | None) -> int:
    """Write a Lucene index of JSON vectors and return the number of documents."""
    from jnius import JavaException

    writer, add = _open_writer(folder)
    seen = Ids()
    count = 0
    try:
        for where, line in cli.progress(_lines(files), total, "index impacts"):
            count += 1
            id, contents = _parse(line, where)
            if seen.add(id):
                raise CaiError(f"{where}: document id {id!r} is there twice")
            try:
                add(id, contents)
            except JavaException:
                _parse_checked(
                    line, where
                )  # names what is wrong with the line; where nothing is, the fault is elsewhere
                raise
        if not count:
            raise CaiError(f"{files[0].parent}: the JSON vectors are empty")
        writer.forceMerge(1)
        writer.close()
    except BaseException:
        writer.rollback()  # closes its files
        raise
    return count


def _lines(files: list[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield f"{file}:{number}", line.decode()
                except UnicodeDecodeError as error:
                    raise CaiError(f"{file}:{number}: not UTF-8 ({error.reason})") from None


def _parse(line: str, where: str) -> tuple[str, str]:
    """Id and delimited contents of a JSON vector. A line just as the impact stage writes it is cut, not parsed."""
    middle = line.find(MIDDLE)
    if middle > 0 and line.startswith(FRONT) and line.endswith(BACK + "\n") and line.isascii() and "\\" not in line:
        id = line[len(FRONT) : middle]
        # As many spaces as characters: replacing in place costs half of what moving the rest does.
        body = line[middle + len(MIDDLE) : -len(BACK) - 1].replace(', "', "   ").replace('": ', DELIMITER)
        one_term_each = '"' not in body and body.count(" ") == 3 * (body.count(DELIMITER) - 1)
        no_empty_term = body[:1] != DELIMITER and f" {DELIMITER}" not in body
        if one_term_each and no_empty_term and '"' not in id and id.split() == [id]:
            return id, body  # impacts that are no positive integers are left for Lucene to refuse
    return _parse_checked(line, where)


def _parse_checked(line: str, where: str) -> tuple[str, str]:
    """Id and delimited contents of a JSON vector, every part of which is checked."""
    try:
        data = json.loads(line)
        id, vector = data["id"], data["vector"]
        items = list(vector.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CaiError(f'{where}: expected {{"id": …, "contents": …, "vector": {{term: impact, …}}}}') from None
    if not isinstance(id, str) or id.split() != [id]:
        raise CaiError(f"{where}: the id {id!r} is no string, is empty or has white space")
    for term, impact in items:
        if term.split() != [term] or DELIMITER in term:
            raise CaiError(f"{where}: the term {term!r} is empty or has white space, which an index cannot hold")
        if len(term.encode()) > LONGEST_TERM:
            raise CaiError(
                f"{where}: the term {term[:20]}… has {len(term.encode()):,} bytes; Lucene takes {LONGEST_TERM:,}"
            )
        if not isinstance(impact, int) or isinstance(impact, bool) or not 1 <= impact < 2**31:
            raise CaiError(f"{where}: the impact of {term!r} is {impact!r}; it must be an integer from 1 to 2147483647")
    return id, " ".join([f"{term}{DELIMITER}{impact}" for term, impact in items])


def _open_writer(folder: Path) -> tuple[Any, Callable[[str, str], None]]:
    """A Lucene IndexWriter, and a function that adds a document to it."""
    from jnius import cast

    java = jvm.java_class
    # Analysis: the longest token is longer than the longest term, so that a term is refused and never split.
    analyzer = (
        java("org.apache.lucene.analysis.custom.CustomAnalyzer")
        .builder()
        .withTokenizer("whitespace", _java_map({"maxTokenLen": str(1 << 20)}))
        .addTokenFilter("delimitedTermFrequency", _java_map({"delimiter": DELIMITER}))
        .build()
    )
    config = java("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    config.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
    config.setRAMBufferSizeMB(RAM_BUFFER_MB)
    directory = java("org.apache.lucene.store.FSDirectory").open(java("java.nio.file.Paths").get(str(folder)))
    writer = java("org.apache.lucene.index.IndexWriter")(directory, config)

    kind = java("org.apache.lucene.document.FieldType")()
    kind.setIndexOptions(java("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
    kind.setOmitNorms(True)
    text = cast("java.lang.CharSequence", java("java.lang.String")(""))
    contents_field = java("org.apache.lucene.document.Field")("contents", text, kind)
    id_field = java("org.apache.lucene.document.StringField")(
        "id", "", java("org.apache.lucene.document.Field$Store").YES
    )
    no_bytes = java("org.apache.lucene.util.BytesRef")(b"")
    id_values = java("org.apache.lucene.document.BinaryDocValuesField")("id", no_bytes)
    document = java("org.apache.lucene.document.Document")()
    for field in (id_field, id_values, contents_field):
        document.add(field)

    def add(id: str, contents: str) -> None:
        # One Document whose fields are set again: every new Java object costs a crossing into Java.
        id_field.setStringValue(id)
        id_values.setBytesValue(id.encode())
        contents_field.setStringValue(contents)
        writer.addDocument(document)

    return writer, add


def _java_map(items: dict[str, str]) -> Any:
    """A java.util.HashMap that its receiver may change."""
    result = jvm.java_class("java.util.HashMap")()
    for key, value in items.items():
        result.put(key, value)
    return result


def index_dense(vectors: Vectors, output: Path) -> Path:
    """Index dense vectors for exact search by dot product, in the form of Pyserini's FaissSearcher: a file `index` and
    a file `docid`, unless it is there already."""
    import faiss

    recipe = {"stage": "index", "format": 1, "kind": "dense", "source": vectors.manifest["digest"]}
    if vectors.manifest["recipe"]["kind"] != "dense":
        raise CaiError(f"{vectors.folder} has sparse vectors: make impacts of them, and index those")
    if artifact.is_fresh(output, recipe):
        return output
    with artifact.building(output, recipe) as (partial, facts):
        index = faiss.IndexFlatIP(vectors.width)
        with (partial / "docid").open("w", encoding="utf-8") as ids:
            for shard in cli.progress(vectors, vectors.shards, f"index {output.name}", "shard"):
                index.add(shard.matrix.toarray())
                ids.writelines(f"{id}\n" for id in shard.ids)
        faiss.write_index(index, str(partial / "index"))
        facts |= {
            "documents": len(vectors),
            "bytes": artifact.folder_bytes(partial),
            "checkpoint": vectors.manifest["recipe"]["checkpoint"],
        }
    return output


def index_bm25(collection: Collection, output: Path, threads: int = 0, generated: Path | None = None) -> Path:
    """Index the text of a collection with Anserini's IndexCollection and its default English analyzer, with positions
    and document vectors (for RM3; raw documents would have to be read for every hit), unless it is there already.

    With `generated`, a BEIR folder of generated queries, each document has those appended that its qrels give it
    (docT5query, Nogueira & Lin 2019).
    """
    recipe = {"stage": "index", "format": 1, "kind": "bm25", "documents": collection.fingerprint("documents")}
    queries: dict[str, list[str]] = {}
    if generated:
        source = open_collection(load_index_config(str(generated)))
        recipe["generated"] = [source.fingerprint(part) for part in ("queries", "train")]
        topics = source.topics("train")
        for query, judged in source.qrels("train").items():
            for document in judged:
                queries.setdefault(document, []).append(topics[query])
    if artifact.is_fresh(output, recipe):
        return output
    java = jvm.find_java()
    with artifact.building(output, recipe) as (partial, facts):
        staging = partial / "staging"
        index = partial / "index"
        count = _stage_json(collection, staging, queries)
        command = [
            java.command,
            *jvm.options(java),
            "-cp",
            str(jvm.anserini_jar()),
            "io.anserini.index.IndexCollection",
        ]
        command += ["-collection", "JsonCollection", "-generator", "DefaultLuceneDocumentGenerator", "-optimize"]
        command += ["-input", str(staging), "-index", str(index), "-threads", str(threads or os.cpu_count() or 1)]
        command += ["-storePositions", "-storeDocvectors"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        counts = {
            key: int(value.replace(",", "")) for key, value in re.findall(r"(indexed|empty): +([\d,]+)\n", done.stdout)
        }
        lines = done.stdout.strip().splitlines()
        errors = [line for line in lines if " ERROR " in line]
        if done.returncode or errors or counts.get("indexed", 0) + counts.get("empty", 0) != count:
            tail = "\n  ".join(errors[:3] + lines[-5:])
            raise CaiError(f"Anserini indexed {counts.get('indexed', 0):,} of {count:,} documents:\n  {tail}")
        artifact.remove(staging)
        for path in list(index.iterdir()):
            path.rename(partial / path.name)
        index.rmdir()
        facts |= {"documents": counts["indexed"], "bytes": artifact.folder_bytes(partial)}
    return output


def _stage_json(collection: Collection, folder: Path, more: dict[str, list[str]]) -> int:
    """Write a collection as Anserini's JsonCollection reads it: {"id": …, "contents": …}, in several files. `more` is
    appended to the contents of its documents."""
    folder.mkdir()
    count = 0
    documents = cli.progress(collection.documents(), collection.size, "index bm25")
    for number, part in enumerate(batched(documents, FILE_DOCUMENTS)):
        count += len(part)
        with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
            for id, contents in part:
                text = " ".join([contents, *more.get(id, ())])
                file.write(json.dumps({"id": id, "contents": text}) + "\n")
    return count


def main() -> None:
    parser = cli.parser(
        "Write an index that Pyserini opens: `impact` of JSON vectors, `bm25` of text, `dense` of dense vectors.",
        "python -m cai_pyserini.index impact --input impacts --output index",
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    impact = kinds.add_parser("impact", help="of JSON vectors, as the impact stage or pyserini.encode writes them")
    impact.add_argument("--input", type=Path, required=True, help="folder with *.jsonl")
    bm25 = kinds.add_parser("bm25", help="of the text of a collection, by Anserini")
    bm25.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    bm25.add_argument("--threads", type=int, default=0, help="0: as many as there are processors")
    bm25.add_argument("--generated", type=Path, help="BEIR folder of generated queries to append (docT5query)")
    dense = kinds.add_parser("dense", help="of dense vectors, by Faiss")
    dense.add_argument("--vectors", type=Path, required=True, help="folder written by the encode stage")
    for kind in (impact, bm25, dense):
        kind.add_argument("--output", type=Path, required=True, help="folder of the index")
    args = parser.parse_args()
    if args.kind == "impact":
        index_impacts(args.input, args.output)
    elif args.kind == "dense":
        index_dense(Vectors(args.vectors), args.output)
    else:
        index_bm25(open_collection(load_index_config(args.collection)), args.output, args.threads, args.generated)
    manifest = artifact.require_manifest(args.output, "index")
    rate = manifest["documents"] / max(manifest["seconds"], 1e-3)
    print(f"{args.output}: {manifest['documents']:,} documents, {manifest['bytes'] / 1e6:.1f} MB, {rate:,.0f} a second")


if __name__ == "__main__":
    cli.run(main)
