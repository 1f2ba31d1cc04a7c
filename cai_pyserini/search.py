"""Search Lucene indexes with Anserini's searchers, and Faiss indexes with Pyserini's, many queries at a time, into TREC
runs.

Queries go into Java and results come out as one JSON text a batch: a crossing for each term and each hit would cost
more than the search. Scores of impacts are divided by the scales of documents and queries, so that a run has the
scores of the paper's equations, up to quantization.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from itertools import batched
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cai_pyserini import artifact, cli, jvm
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder, load_index_config
from cai_pyserini.encode import LazyEncoder
from cai_pyserini.trec import Hits, Run, write_run

BATCH = 512  # queries a crossing


class Searcher:
    """An index of the index stage, opened for many searches. `k1` and `b` only matter for BM25."""

    def __init__(self, index: Path, k1: float = 0.9, b: float = 0.4):
        self.manifest = artifact.require_manifest(index, "index")
        self.kind: Literal["bm25", "impact", "dense"] = self.manifest["recipe"]["kind"]
        if self.kind == "dense":
            jvm.start()  # before Pyserini is imported
            from pyserini.search.faiss import FaissSearcher

            self._faiss = FaissSearcher(str(index), None)
            return
        self._json = _json_mapper()
        with jvm.java_errors(f"opening {index}"):
            if self.kind == "bm25":
                self.java = jvm.java_class("io.anserini.search.SimpleSearcher")(str(index))
                self.java.set_bm25(k1, b)
            else:
                # A long document as a SPLADE query can have more terms than Lucene's limit of 1024.
                jvm.java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 20)
                self.java = jvm.java_class("io.anserini.search.SimpleImpactSearcher")(str(index))
        scales = self.manifest.get("document_scale", 1), self.manifest.get("query_scale", 1)
        self._scale: float = scales[0] * scales[1]

    def search(self, query: str | dict[str, int], hits: int = 1000) -> Hits:
        """The best documents for one query: text for BM25, term -> impact for impacts."""
        with jvm.java_errors("searching"):
            argument = query if isinstance(query, str) else self._java(query, "java.util.Map")
            return self._hits(json.loads(self._json.writeValueAsString(self.java.search(argument, hits))))

    def search_many(self, queries: dict[str, Any], hits: int = 1000, threads: int = 0, label: str = "search") -> Run:
        """The best documents for many queries, by id: text for BM25, term -> impact for impacts, vectors (width,) for
        dense indexes."""
        run: Run = {}
        threads = threads or os.cpu_count() or 1
        if self.kind == "dense":
            for batch in cli.progress(list(batched(queries.items(), BATCH)), None, label, f"{BATCH} queries"):
                ids, vectors = [id for id, _ in batch], np.stack([vector for _, vector in batch])
                results = self._faiss.batch_search(vectors, ids, hits, threads)
                run |= {id: [(hit.docid, float(hit.score)) for hit in results[id]] for id in ids}
            return run
        bar = cli.progress(range(0, len(queries), BATCH), None, label, f"{BATCH} queries")
        for _, batch in zip(bar, batched(queries.items(), BATCH), strict=True):
            ids = [id for id, _ in batch]
            with jvm.java_errors("searching"):
                arguments = (self._java(list(part), "java.util.List") for part in ([q for _, q in batch], ids))
                results = json.loads(self._json.writeValueAsString(self.java.batch_search(*arguments, hits, threads)))
            if missing := [id for id in ids if id not in results]:
                raise CaiError(f"Anserini gave no result for query {missing[0]!r}; its log above may say why")
            run |= {id: self._hits(results[id]) for id in ids}
        return run

    def scores(self, query: str, ids: Sequence[str]) -> dict[str, float]:
        """BM25 scores of these documents for a query; 0 where no word matches."""
        java = jvm.java_class
        with jvm.java_errors("scoring"):
            words = java("io.anserini.search.query.BagOfWordsQueryGenerator")().buildQuery(
                "contents", self.java.get_analyzer(), query
            )
            terms = java("java.util.ArrayList")()
            for id in ids:
                terms.add(java("org.apache.lucene.util.BytesRef")(id.encode()))
            occur = java("org.apache.lucene.search.BooleanClause$Occur")
            both = java("org.apache.lucene.search.BooleanQuery$Builder")()
            both.add(words, occur.MUST)
            both.add(java("org.apache.lucene.search.TermInSetQuery")("id", terms), occur.FILTER)
            found = json.loads(self._json.writeValueAsString(self.java.search(both.build(), len(ids))))
        return dict.fromkeys(ids, 0.0) | dict(self._hits(found))

    def close(self) -> None:
        """Close the index."""
        if self.kind != "dense":
            self.java.close()

    def _java(self, value: object, kind: str) -> Any:
        return self._json.readValue(json.dumps(value), _class(kind))

    def _hits(self, documents: list[dict[str, Any]]) -> Hits:
        return [(document["docid"], document["score"] / self._scale) for document in documents]


def _class(name: str) -> Any:
    return jvm.java_class("java.lang.Class").forName(name)


def _json_mapper() -> Any:
    """Java's JSON, without the Lucene document that a hit carries."""
    mapper = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")()
    true = jvm.java_class("java.lang.Boolean")(True)
    mapper.configOverride(_class("org.apache.lucene.document.Document")).setIsIgnoredType(true)
    return mapper


def require_fit(index: Path, checkpoint: Path) -> None:
    """Raise CaiError where an index of ours was built with another checkpoint than the queries will be encoded with."""
    manifest = artifact.require_manifest(index, "index")
    if "checkpoint" not in manifest:
        raise CaiError(
            f"{index} is no index of an encoder of ours; build one with `python -m cai_pyserini.index impact`"
        )
    if manifest["checkpoint"] != checkpoint_digest(checkpoint):
        raise CaiError(
            f"{index} was built with another checkpoint than {checkpoint}: search it with --encoder {index}, "
            "or encode and index the documents with this one"
        )


def query_impacts(vectors: Any, terms: Sequence[str], query_scale: int) -> list[dict[str, int]]:
    """Rows of a (queries, vocabulary) CSR matrix of weights as term -> round(weight * query_scale), without zeros."""
    impacts = []
    for start, end in zip(vectors.indptr, vectors.indptr[1:], strict=False):
        entries = zip(
            vectors.indices[start:end].tolist(), (vectors.data[start:end] * query_scale).tolist(), strict=True
        )
        impacts.append({terms[column]: round(value) for column, value in entries if round(value)})
    return impacts


def without_query(run: Run, hits: int) -> Run:
    """A run without the hits that are the query itself, by id (Anserini's -removeQuery), cut to `hits`."""
    return {query: [hit for hit in found if hit[0] != query][:hits] for query, found in run.items()}


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """--hits and --threads."""
    parser.add_argument("--hits", type=int, help="hits a query; default: the collection's, 1000")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are processors")


def main() -> None:
    parser = cli.parser(
        "Search an index with the queries of a collection and write a TREC run.",
        "python -m cai_pyserini.search --index index --collection hpo --encoder index --output run.trec",
    )
    parser.add_argument("--index", type=Path, required=True, help="folder written by the index stage")
    parser.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--split", help="whose queries; default: the collection's, test")
    parser.add_argument("--encoder", help="for an impact index: the encoder of the queries; default: the index's own")
    parser.add_argument(
        "--query", choices=["splade", "bow"], help="SPLADE or bag-of-words queries; default: the encoder's"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto: cuda where there is one")
    parser.add_argument("--k1", type=float, help="of BM25; default: the collection's, 0.9")
    parser.add_argument("--b", type=float, help="of BM25; default: the collection's, 0.4")
    add_search_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="run to write")
    args = parser.parse_args()
    config = load_index_config(args.collection)
    topics = open_collection(config).topics(args.split or config.split)
    manifest = artifact.require_manifest(args.index, "index")
    hits = args.hits or config.hits
    start = time.perf_counter()
    queries: dict[str, Any] = topics
    if manifest["recipe"]["kind"] == "dense":
        if not args.encoder:
            parser.error("--encoder: a dense index does not say which encoder its queries need")
        dense = LazyEncoder(load_encoder(args.encoder), args.device)
        require_fit(args.index, dense.checkpoint)
        vectors = dense.load("queries").encode(list(topics.values()), dense.config.max_query_length)
        queries = dict(zip(topics, vectors.toarray(), strict=True))
    elif manifest["recipe"]["kind"] == "impact":
        from cai_pyserini.splade import Splade, Tokenizer

        encoder = load_encoder(args.encoder or str(args.index))
        checkpoint = checkpoint_folder(encoder)
        require_fit(args.index, checkpoint)
        texts = list(topics.values())
        if (args.query or encoder.query) == "bow":
            vectors = Tokenizer(checkpoint).bag_of_words(texts, encoder.max_query_length)
        else:
            vectors = Splade(checkpoint, args.device, "float32").encode(texts, encoder.max_query_length)
        impacts = query_impacts(vectors, Tokenizer(checkpoint).terms, manifest["query_scale"])
        queries = dict(zip(topics, impacts, strict=True))
    k1, b = (config.k1 if args.k1 is None else args.k1), (config.b if args.b is None else args.b)
    searcher = Searcher(args.index, k1, b)
    run = searcher.search_many(queries, hits + config.remove_query, args.threads)
    write_run(without_query(run, hits) if config.remove_query else run, args.output, manifest["recipe"]["kind"])
    print(f"{args.output}: {len(run):,} queries, {1000 * (time.perf_counter() - start) / len(run):.2f} ms each")


if __name__ == "__main__":
    cli.run(main)
