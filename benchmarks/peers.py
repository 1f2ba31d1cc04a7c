"""Packages that search a collection from text to hits, side by side: ours, Pyserini, bm25s, txtai, Milvus Lite, and
sentence-transformers with the same checkpoint.

Each makes its index in a process of its own and searches it in another, with one thread, one query at a time, 10 hits,
encoding of the query included; the collection's queries are searched for WARM_UP times before. Times are processor
time, user and system, of the process and those that it starts. Settings are those of each package's introduction, with
an English stemmer where it has one. Indexes are without the documents' texts, except Milvus's, which has to have them.
"""

import json
import os
import resource
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

HITS = 10
WARM_UP = 3
TOKENS = 256  # of a document, for sentence-transformers; as encoders/splade-tiny.yaml
Found = dict[str, float]
Search = Callable[[str], Found]
Texts = dict[str, str]


def ours(texts: Texts, folder: Path, collection: str, system: str) -> None:
    near = {"dense": "minilm"} if "near" in system else {}
    harness.stage("run", collection, "--no-raw", systems=system, output=folder / "run", **near)


def open_ours(folder: Path, system: str) -> Search:
    import cai_pyserini as cai

    engine = cai.open(folder / "run")[system]
    return lambda query: {hit.id: hit.score for hit in engine.search(query, k=HITS)}


def pyserini(texts: Texts, folder: Path) -> None:
    from cai_pyserini.indexes import jvm

    (folder / "documents").mkdir()
    lines = (json.dumps({"id": id, "contents": text}) + "\n" for id, text in texts.items())
    (folder / "documents" / "corpus.jsonl").write_text("".join(lines))
    command = ["-collection", "JsonCollection", "-generator", "DefaultLuceneDocumentGenerator", "-threads", "1"]
    command += ["-input", str(folder / "documents"), "-index", str(folder / "index")]
    java = jvm.find_java()
    start = [str(java.home / "bin" / "java"), *jvm.options(java), "-cp", str(jvm.anserini_jar())]
    harness.run([*start, "io.anserini.index.IndexCollection", *command])


def open_pyserini(folder: Path) -> Search:
    harness.import_stock()
    from pyserini.search.lucene import LuceneSearcher

    searcher = LuceneSearcher(str(folder / "index"))
    return lambda query: {hit.docid: hit.score for hit in searcher.search(query, HITS)}


def bm25s(texts: Texts, folder: Path) -> None:
    import bm25s as package
    import Stemmer

    tokens = package.tokenize(list(texts.values()), stopwords="en", stemmer=Stemmer.Stemmer("english"))
    index = package.BM25()
    index.index(tokens)
    index.save(str(folder / "index"))
    (folder / "index" / "ids.json").write_text(json.dumps(list(texts)))


def open_bm25s(folder: Path) -> Search:
    import bm25s as package
    import Stemmer

    index, ids = package.BM25.load(str(folder / "index")), json.loads((folder / "index" / "ids.json").read_text())
    stemmer = Stemmer.Stemmer("english")

    def search(query: str) -> Found:
        tokens = package.tokenize(query, stopwords="en", stemmer=stemmer, show_progress=False)
        found, scores = index.retrieve(tokens, k=HITS, show_progress=False)
        return {ids[i]: float(score) for i, score in zip(found[0], scores[0], strict=True) if score > 0}

    return search


def txtai(texts: Texts, folder: Path) -> None:
    from txtai import Embeddings

    embeddings = Embeddings(keyword=True)
    embeddings.index(texts.items())
    embeddings.save(str(folder / "index"))


def open_txtai(folder: Path) -> Search:
    from txtai import Embeddings

    embeddings = Embeddings()
    embeddings.load(str(folder / "index"))
    return lambda query: dict(embeddings.search(query, HITS))


def milvus(texts: Texts, folder: Path) -> None:
    from bm25s.stopwords import STOPWORDS_EN
    from pymilvus import DataType, Function, FunctionType, MilvusClient

    client = MilvusClient(str(folder / "index.db"))
    schema = client.create_schema()
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
    analyzer = {"tokenizer": "standard", "filter": [{"type": "stop", "stop_words": STOPWORDS_EN}]}
    schema.add_field("text", DataType.VARCHAR, max_length=65535, enable_analyzer=True, analyzer_params=analyzer)
    schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_function(Function("bm25", FunctionType.BM25, input_field_names=["text"], output_field_names=["words"]))
    index = client.prepare_index_params()
    index.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
    client.create_collection("peers", schema=schema, index_params=index)
    rows = [{"id": id, "text": text} for id, text in texts.items()]
    client.insert("peers", rows)
    client.flush("peers")
    client.close()


def open_milvus(folder: Path) -> Search:
    from pymilvus import MilvusClient

    client = MilvusClient(str(folder / "index.db"))
    client.load_collection("peers")

    def search(query: str) -> Found:
        hits = client.search("peers", [query], anns_field="words", limit=HITS)[0]
        return {hit["id"]: -hit["distance"] for hit in hits}  # Milvus Lite's are negative

    return search


def sentence_transformers(texts: Texts, folder: Path, checkpoint: str) -> None:
    import torch
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(checkpoint, device="cpu")
    model.max_seq_length = TOKENS
    vectors = model.encode_document(list(texts.values()), save_to_cpu=True)
    (folder / "index").mkdir()
    torch.save({"ids": list(texts), "vectors": vectors.coalesce()}, folder / "index" / "vectors.pt")


def open_sentence_transformers(folder: Path, checkpoint: str) -> Search:
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.util import semantic_search

    model = SparseEncoder(checkpoint, device="cpu")
    stored = torch.load(folder / "index" / "vectors.pt")
    ids, vectors = stored["ids"], stored["vectors"]

    def search(query: str) -> Found:
        encoded = model.encode_query([query], save_to_cpu=True)
        hits = semantic_search(encoded, vectors, top_k=HITS, score_function=model.similarity)[0]
        return {ids[hit["corpus_id"]]: hit["score"] for hit in hits}

    return search


PEERS = {
    "ours": (ours, open_ours),
    "Pyserini, BM25": (pyserini, open_pyserini),
    "bm25s": (bm25s, open_bm25s),
    "txtai, BM25": (txtai, open_txtai),
    "Milvus Lite, BM25": (milvus, open_milvus),
    "sentence-transformers": (sentence_transformers, open_sentence_transformers),
}


def processor_time() -> float:
    """Seconds of this process and of those that it has started and that have ended."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def build(peer: str, collection: str, folder: str, **settings: str) -> harness.Result:
    from cai_pyserini.core.files import folder_bytes

    texts = {document.id: document.contents for document in harness.opened(collection)[0].documents()}
    start, path = processor_time(), Path(folder)
    extra = {"collection": collection} if peer == "ours" else {}
    PEERS[peer][0](texts, path, **extra, **settings)
    spent = processor_time() - start
    index = path / "run" / "indexes" if peer == "ours" else next(path.glob("index*"))
    return {"seconds": spent, "documents": len(texts), "bytes": folder_bytes(index)}


def search(peer: str, collection: str, folder: str, **settings: str) -> harness.Result:
    import cai_pyserini as cai

    _, topics, qrels = harness.opened(collection)
    found: dict[str, Found] = {}
    one = PEERS[peer][1](Path(folder), **settings)
    for round in range(WARM_UP + 1):
        if round == WARM_UP:
            start = processor_time()
        for id, query in topics.items():
            found[id] = one(query)
    spent = processor_time() - start
    return {"seconds": spent / len(topics), "ndcg": cai.evaluate(found, qrels, ["nDCG@10"])["nDCG@10"]}


def checkpoint_of(encoder: str) -> harness.Result:
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    return {"checkpoint": str(checkpoint_folder(load_encoder(encoder)))}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--systems", nargs="+", default=["bm25", "joint-doc", "joint-doc-near"], help="of ours")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    checkpoint = harness.fresh(checkpoint_of, encoder=args.encoder)["checkpoint"]
    variants: list[tuple[str, str, dict[str, str]]] = []
    for peer in args.peers:
        systems: Iterable[dict[str, str]] = [{}]
        if peer == "ours":
            systems = [{"system": system} for system in args.systems]
        if peer == "sentence-transformers":
            systems = [{"checkpoint": checkpoint}]
        variants += [(f"{peer}, {part['system']}" if "system" in part else peer, peer, part) for part in systems]
    rows = []
    with TemporaryDirectory() as folder:
        searches = {}
        built = {}
        for number, (name, peer, settings) in enumerate(variants):
            place = {"peer": peer, "collection": args.collection, "folder": f"{folder}/{number}", **settings}
            Path(folder, str(number)).mkdir()
            built[name] = harness.rounds(1, {name: partial(harness.fresh, build, **place)})[name][0]
            searches[name] = partial(harness.fresh, search, **place)
        for name, results in harness.rounds(args.repeats, searches).items():
            rows.append(
                (
                    name,
                    f"{results[0]['ndcg']:.4f}",
                    f"{1000 * harness.middle(results):.1f}",
                    f"{built[name]['bytes'] / 1e6:.1f}",
                    f"{built[name]['seconds']:.0f}",
                    f"{harness.gigabytes(results)}",
                )
            )
    header = ("", "nDCG@10", "per query, ms", "index, MB", "index made in, s", "memory of search, GB")
    harness.show(f"{args.collection}: processor time, one thread", header, rows)


if __name__ == "__main__":
    main()
