"""The stages of a run in its folder: where each finds what it needs, and leaves what it makes.

A stage skips what is there already and was made by the same recipe.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cai_pyserini import artifact
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Collection, open_collection
from cai_pyserini.config import EncoderConfig, IndexConfig, checkpoint_digest, checkpoint_folder, load_encoder
from cai_pyserini.encode import LazyEncoder, Part, encode
from cai_pyserini.systems import System
from cai_pyserini.trec import Run, read_run, write_run

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from cai_pyserini.complete import Scores, Wanted

WORDS = ("bm25", "doct5query")  # kinds of systems that search words
OPTIONS = {"dense": "dense", "cross-encoder": "cross-encoder", "doct5query": "generated"}  # what kinds need
DEPTH = 100  # documents a query of each run that count in a fusion, and that a cross-encoder scores


@dataclass(frozen=True)
class Line:
    """One run of the line: inputs, settings, and the folder that gets everything."""

    config: IndexConfig
    encoder_config: EncoderConfig
    output: Path
    split: str
    device: str = "auto"
    precision: Any = "auto"
    batch_size: int | None = None
    threads: int = 0
    dense_config: EncoderConfig | None = None  # of the dense systems
    cross_encoder: str | None = None  # a checkpoint
    generated: Path | None = None  # folder of generated queries, for doct5query

    @cached_property
    def collection(self) -> Collection:
        return open_collection(self.config)

    @cached_property
    def topics(self) -> dict[str, str]:
        return self.collection.topics(self.split)

    @cached_property
    def _encoders(self) -> dict[str, LazyEncoder]:
        return {}

    def encoder(self, index: str) -> LazyEncoder:
        """The encoder of an index: SPLADE's vectors are the same for both of its indexes, dense ones are not."""
        name = index if index.startswith("dense") else "splade"
        if name not in self._encoders:
            config = self.encoder_config
            if name != "splade":
                assert self.dense_config is not None  # see `require`
                config = replace(self.dense_config, idf=str(self.idf_folder(name)) if name == "dense-idf" else None)
            self._encoders[name] = LazyEncoder(config, self.device, self.precision)
        return self._encoders[name]

    def idf_folder(self, index: str) -> Path:
        return self.output / ("idf-dense" if index.startswith("dense") else "idf")

    def vectors_folder(self, index: str, part: Part) -> Path:
        name = part if part == "documents" else f"queries-{self.split}"
        return self.output / "vectors" / (f"{index}-{name}" if index.startswith("dense") else name)

    def run_path(self, system: System) -> Path:
        return self.output / "runs" / f"{system.name}.trec"

    def require(self, systems: Sequence[System]) -> None:
        """Raise CaiError where a system needs what this line has not been given."""
        for system in systems:
            if system.kind == "splade" and self.encoder_config.kind == "dense":
                raise CaiError(f"encoder {self.encoder_config.name} is dense: give it as --dense")
            if system.idf and system.kind == "splade" and self.encoder_config.idf_power == 0:
                name = self.encoder_config.name
                raise CaiError(f"encoder {name} has idf_power 0: it makes no system with idf in its name")
            needs = {"dense": self.dense_config, "cross-encoder": self.cross_encoder, "doct5query": self.generated}
            if system.kind in needs and needs[system.kind] is None:
                raise CaiError(f"{system.name} needs --{OPTIONS[system.kind]}; --help says more")

    def check(self) -> Path:
        """Read the collection once, all of it, and refuse what is broken before anything is spent on it."""
        path = self.output / "collection.json"
        parts = ("documents", "queries", self.split)
        recipe = {"stage": "check", "format": 1, "inputs": [self.collection.fingerprint(part) for part in parts]}
        if not artifact.is_fresh(path, recipe):
            with artifact.building(path, recipe, folder=False) as (temporary, facts):
                counts = self.collection.check(self.split)
                temporary.write_text(json.dumps(counts) + "\n")
                facts |= counts
        return path

    def idf(self, index: str) -> Path:
        """Document frequencies under the tokenizer of an index's encoder."""
        from cai_pyserini.idf import compute

        config = self.dense_config if index.startswith("dense") else self.encoder_config
        assert config is not None
        return compute(self.collection, checkpoint_folder(config), self.idf_folder(index))

    def encode(self, index: str, part: Part) -> Path:
        """Raw vectors of the documents or the queries."""
        folder = self.vectors_folder(index, part)
        return encode(self.collection, self.encoder(index), folder, part, self.split, self.batch_size)

    def impacts(self, index: str) -> Path:
        """JSON vectors, `splade` or `splade-idf`."""
        from cai_pyserini.impact import write_impacts
        from cai_pyserini.vectors import Vectors

        config = replace(self.encoder_config, idf=str(self.idf_folder(index)) if index == "splade-idf" else None)
        return write_impacts(Vectors(self.vectors_folder(index, "documents")), config, self.output / "impacts" / index)

    def index(self, index: str) -> Path:
        """An index, by the name of the system that searches it."""
        from cai_pyserini.index import index_bm25, index_dense, index_impacts
        from cai_pyserini.vectors import Vectors

        folder = self.output / "indexes" / index
        if index == "bm25":
            return index_bm25(self.collection, folder, self.threads)
        if index == "doct5query":
            return index_bm25(self.collection, folder, self.threads, self.generated)
        if index.startswith("dense"):
            return index_dense(Vectors(self.vectors_folder(index, "documents")), folder)
        return index_impacts(self.output / "impacts" / index, folder)

    def search(self, system: System) -> Path:
        """The run of a system that searches one index."""
        from cai_pyserini.search import Searcher, without_query

        index = self.output / "indexes" / system.index
        manifest = artifact.require_manifest(index, "index")
        words = system.kind in WORDS
        recipe = {
            "stage": "search",
            "format": 1,
            "index": manifest["digest"],
            "topics": [self.collection.fingerprint("queries"), self.collection.fingerprint(self.split)],
            "settings": [self.config.k1, self.config.b] if words else [self._query_source(system)],
            "max_query_length": None if words else self.encoder(system.index).config.max_query_length,
            "hits": self.config.hits,
            "remove_query": self.config.remove_query,
        }

        def search() -> tuple[Run, float]:
            queries, seconds = self._queries(system)
            searcher = Searcher(index, self.config.k1, self.config.b)
            opened = time.perf_counter()
            hits = self.config.hits + self.config.remove_query
            run = searcher.search_many(queries, hits, self.threads, f"search {system.name}")
            seconds += time.perf_counter() - opened
            searcher.close()
            run = without_query(run, self.config.hits) if self.config.remove_query else run
            return run, 1000 * seconds / len(run)

        return self._write(system, self.run_path(system), recipe, search)

    def _query_source(self, system: System) -> str:
        if system.bow:
            return "bow"
        return artifact.require_manifest(self.vectors_folder(system.index, "queries"), "encode")["digest"]

    def _queries(self, system: System) -> tuple[dict[str, Any], float]:
        """The queries in the form that the system's index is searched with, and the seconds it takes to get them from
        text."""
        if system.kind in WORDS:
            return dict(self.topics), 0.0
        ids, matrix, seconds = self._query_matrix(system)
        if system.kind == "dense":
            return dict(zip(ids, matrix.toarray(), strict=True)), seconds
        from cai_pyserini.search import query_impacts
        from cai_pyserini.splade import Tokenizer

        scale = self.encoder_config.query_scale
        terms = Tokenizer(self.encoder(system.index).checkpoint).terms
        return dict(zip(ids, query_impacts(matrix, terms, scale), strict=True)), seconds

    def _query_matrix(self, system: System) -> tuple[list[str], "csr_matrix", float]:
        """Ids and vectors (queries, width) of the queries, and the seconds it took to make them."""
        from scipy.sparse import vstack

        from cai_pyserini.splade import Tokenizer
        from cai_pyserini.vectors import Vectors

        if system.bow:
            tokenizer = Tokenizer(self.encoder(system.index).checkpoint)
            start = time.perf_counter()
            counts = tokenizer.bag_of_words(list(self.topics.values()), self.encoder_config.max_query_length)
            return list(self.topics), counts, time.perf_counter() - start
        vectors = Vectors(self.vectors_folder(system.index, "queries"))
        shards = list(vectors)
        ids = [id for shard in shards for id in shard.ids]
        return ids, vstack([shard.matrix for shard in shards], format="csr"), vectors.manifest["seconds"]

    def rerank(self, system: System) -> Path:
        """The first documents of a run, scored by a cross-encoder."""
        from cai_pyserini.rerank import CrossEncoder, rerank

        (part,) = self._parts(system)
        first = self.run_path(part)
        manifest = artifact.read_manifest(first) or {}
        checkpoint = checkpoint_folder(load_encoder(self.cross_encoder or ""))
        recipe = {
            "stage": "rerank",
            "format": 1,
            "run": manifest["digest"],
            "checkpoint": checkpoint_digest(checkpoint),
            "depth": DEPTH,
        }

        def score() -> tuple[Run, float]:
            model = CrossEncoder(checkpoint, self.device, self.precision)
            run, seconds = rerank(read_run(first), self.topics, self.collection, model, DEPTH)
            return run, manifest["ms_per_query"] + 1000 * seconds / len(self.topics)

        return self._write(system, self.run_path(system), recipe, score)

    def complete(self, system: System, part: System) -> Path:
        """The scores of one part of an exact hybrid for all documents that either part has found."""
        from cai_pyserini.complete import complete

        own, other = self.run_path(part), *(self.run_path(p) for p in self._parts(system) if p != part)
        manifests = [artifact.read_manifest(path) or {} for path in (own, other)]
        recipe = {
            "stage": "complete",
            "format": 1,
            "runs": [manifest["digest"] for manifest in manifests],
            "depth": DEPTH,
        }

        def score() -> tuple[Run, float]:
            runs = read_run(own), read_run(other)
            start = time.perf_counter()
            run = complete(*runs, DEPTH, self._scorer(part))
            seconds = time.perf_counter() - start
            return run, manifests[0]["ms_per_query"] + 1000 * seconds / len(self.topics)

        return self._write(part, self.completed_path(system, part), recipe, score)

    def completed_path(self, system: System, part: System) -> Path:
        (other,) = (p for p in self._parts(system) if p != part)
        return self.output / "runs" / "exact" / f"{part.name}-with-{other.name}.trec"

    def _parts(self, system: System) -> list[System]:
        return [System.parse(name) for name in system.parts]

    def _scorer(self, part: System) -> "Callable[[Wanted], Scores]":
        """A function that scores documents for queries as a system does."""
        import numpy as np

        from cai_pyserini.complete import vector_scores
        from cai_pyserini.impact import quantization, weighted
        from cai_pyserini.search import Searcher
        from cai_pyserini.splade import Tokenizer
        from cai_pyserini.vectors import Shard, Vectors

        index = self.output / "indexes" / part.index
        if part.kind in WORDS:
            searcher = Searcher(index, self.config.k1, self.config.b)
            return lambda wanted: {query: searcher.scores(self.topics[query], ids) for query, ids in wanted.items()}
        ids, queries, _ = self._query_matrix(part)
        shards: Iterable[Shard] = Vectors(self.vectors_folder(part.index, "documents"))
        scale = 1.0
        if part.kind == "splade":  # the integers of the index
            quantizer, weights = quantization(index, Tokenizer(self.encoder(part.index).checkpoint).terms)
            query_scale = artifact.require_manifest(index, "index")["query_scale"]
            scale = quantizer.scale * query_scale
            queries.data = np.rint(queries.data * query_scale)
            shards = (Shard(s.ids, quantizer.impacts(weighted(s.matrix, weights))) for s in shards)
        return lambda wanted: vector_scores(wanted, ids, queries / scale, shards)

    def fuse(self, system: System) -> Path:
        """The run of a hybrid, of the runs of its parts."""
        from cai_pyserini.fuse import as_run, fuse

        path = self.run_path(system)
        parts = self._parts(system)
        paths = [self.completed_path(system, part) if system.exact else self.run_path(part) for part in parts]
        manifests = [artifact.read_manifest(part) or {} for part in paths]
        recipe = {
            "stage": "fuse",
            "format": 1,
            "runs": [manifest["digest"] for manifest in manifests],
            "method": system.fusion,
            "depth": DEPTH,
            "hits": self.config.hits,
        }

        def fused() -> tuple[Run, float]:
            runs = [read_run(part) for part in paths]
            start = time.perf_counter()
            depth = len(parts) * DEPTH if system.exact else DEPTH
            fused = as_run(fuse(runs, system.fusion or "sum", depth, self.config.hits))
            own = 1000 * (time.perf_counter() - start) / len(self.topics)
            return fused, own + sum(manifest["ms_per_query"] for manifest in manifests)

        return self._write(system, path, recipe, fused)

    def _write(
        self, system: System, path: Path, recipe: artifact.Recipe, make: Callable[[], tuple[Run, float]]
    ) -> Path:
        """Write a run, unless it is there already, with the milliseconds that a query took, all in all."""
        if not artifact.is_fresh(path, recipe):
            with artifact.building(path, recipe, folder=False) as (temporary, facts):
                run, facts["ms_per_query"] = make()
                write_run(run, temporary, system.name)
        return path

    def evaluate(self, system: System) -> Path:
        """Every query's measures."""
        from cai_pyserini.evaluate import MEASURES, evaluate

        path = self.output / "evaluations" / f"{system.name}.json"
        run = self.run_path(system)
        manifest = artifact.read_manifest(run)
        recipe = {
            "stage": "evaluate",
            "format": 1,
            "run": manifest and manifest["digest"],
            "qrels": self.collection.fingerprint(self.split),
            "measures": list(MEASURES),
        }
        if not artifact.is_fresh(path, recipe):
            with artifact.building(path, recipe, folder=False) as (temporary, _):
                temporary.write_text(json.dumps(evaluate(self.collection.qrels(self.split), read_run(run))) + "\n")
        return path
