"""The whole line: from a collection and an encoder to a table of scores. The one file that knows all the stages.

Every stage skips what is there already and was made by the same recipe, so that a run that was interrupted goes on
where it stopped, and a run with another setting redoes just what depends on it.
"""

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Collection, open_collection
from cai_pyserini.config import (
    EncoderConfig,
    IndexConfig,
    checkpoint_digest,
    checkpoint_folder,
    load_encoder,
    load_index_config,
)
from cai_pyserini.encode import LazyEncoder, Part, add_model_arguments, encode
from cai_pyserini.systems import System, all_systems, default_systems
from cai_pyserini.trec import Run, read_run, write_run

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from cai_pyserini.complete import Scores, Wanted
    from cai_pyserini.report import Results

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

        (part,) = system.parts
        first = self.run_path(System.parse(part))
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
        from cai_pyserini.impact import Quantizer, idf_weights, weighted
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
            manifest = artifact.require_manifest(index, "index")
            scale = manifest["document_scale"] * manifest["query_scale"]
            queries.data = np.rint(queries.data * manifest["query_scale"])
            config = load_encoder(str(index))
            terms = Tokenizer(self.encoder(part.index).checkpoint).terms
            weights, quantizer = idf_weights(config, terms), Quantizer(manifest["document_scale"], config.bits)
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
            path.parent.mkdir(parents=True, exist_ok=True)
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
            path.parent.mkdir(parents=True, exist_ok=True)
            with artifact.building(path, recipe, folder=False) as (temporary, _):
                temporary.write_text(json.dumps(evaluate(self.collection.qrels(self.split), read_run(run))) + "\n")
        return path


def stages(line: Line, systems: list[System]) -> Iterator[tuple[str, Callable[[], Path]]]:
    """What is to be done for these systems, in order: a label and the stage."""
    needed: dict[str, System] = {}
    for system in systems:
        needed |= {part: System.parse(part) for part in system.parts} | {system.name: system}
    cross = System.parse("cross-encoder")
    if cross.name in needed:  # it may have come as a part
        needed = {part: System.parse(part) for part in cross.parts} | needed
    single = [system for system in needed.values() if not system.parts]
    vectors = [system for system in single if system.kind not in WORDS]
    yield "check", line.check
    for index in dict.fromkeys(system.index for system in vectors if system.idf):
        yield f"idf {index}", partial(line.idf, index)
    # splade and splade-idf have the same vectors
    for index in dict.fromkeys("splade" if system.kind == "splade" else system.index for system in vectors):
        yield f"encode {index} documents", partial(line.encode, index, "documents")
        if any(system.index.startswith(index) and not system.bow for system in vectors):
            yield f"encode {index} queries", partial(line.encode, index, "queries")
    for index in dict.fromkeys(system.index for system in vectors if system.kind == "splade"):
        yield f"impacts {index}", partial(line.impacts, index)
    for index in dict.fromkeys(system.index for system in single):
        yield f"index {index}", partial(line.index, index)
    for system in single:
        yield f"search {system.name}", partial(line.search, system)
    if cross.name in needed:
        yield cross.name, partial(line.rerank, cross)
    for system in systems:
        if system.exact:
            for part in map(System.parse, system.parts):
                path = line.completed_path(system, part)
                yield f"complete {path.stem}", partial(line.complete, system, part)
        if system.fusion:
            yield f"fuse {system.name}", partial(line.fuse, system)
    for system in systems:
        yield f"evaluate {system.name}", partial(line.evaluate, system)


def run_line(line: Line, names: list[str]) -> "Results":
    """Do what is not done yet, and return the results of these systems."""
    from cai_pyserini.report import Results

    systems = [System.parse(name) for name in dict.fromkeys(names)]
    line.require(systems)
    line.output.mkdir(parents=True, exist_ok=True)
    timings: dict[str, float] = {}
    started = artifact.now()
    with locked(line.output):
        for label, stage in stages(line, systems):
            manifest = artifact.read_manifest(stage()) or {}
            timings[label] = manifest["seconds"]
            if manifest["created"] >= started:
                print(f"{label:<36} {timings[label]:8.1f} s", file=sys.stderr)
        results = Results.gather(line, systems, timings)
        results.write(line.output)
    return results


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaiError(f"another run is at work in {folder}; wait for it, or choose another --output") from None
        yield


def verify(results: "Results", config: IndexConfig) -> list[str]:
    """Compare with the scores that the index config expects; the lines to print. Raises CaiError on a difference."""
    wanted = config.expected.get("any", {}) | config.expected.get(results.encoder, {})
    wanted = {name: score for name, score in wanted.items() if name in results.systems}
    if not wanted:
        raise CaiError(
            f"index config {config.name} expects no scores of these systems with {results.encoder}: nothing to verify"
        )
    lines, wrong = [], []
    for name, score in wanted.items():
        got = results.systems[name]["nDCG@10"]
        fits = abs(got - score) <= config.tolerance
        lines.append(
            f"{'ok  ' if fits else 'FAIL'} {name}: nDCG@10 {got:.4f}, expected {score:.4f} ± {config.tolerance}"
        )
        wrong += [] if fits else [name]
    print("\n".join(lines))
    if wrong:
        raise CaiError(
            f"{len(wrong)} of {len(wanted)} scores differ by more than {config.tolerance}: {', '.join(wrong)}"
        )
    return lines


def main() -> None:
    parser = cli.parser(
        "From a collection to a table of scores: encode, weight with IDF, quantize, index, search, fuse, evaluate.\n"
        "Run again, it goes on where it stopped and redoes only what depends on what has changed.",
        "./run_beir.sh scifact --encoder splade-v3 --verify",
    )
    parser.prog = "run_beir.sh"
    parser.add_argument(
        "collection", nargs="?", default="hpo", help="a name in index_configs/, a YAML file, or a BEIR folder"
    )
    parser.add_argument(
        "--encoder", default="splade-tiny", help="a name in encoders/, a YAML file, a checkpoint folder or a hub id"
    )
    parser.add_argument("--output", type=Path, help="folder for everything; default: runs/<collection>/<encoder>")
    parser.add_argument("--split", help="of the queries and qrels; default: the collection's, test")
    parser.add_argument(
        "--systems",
        nargs="+",
        metavar="SYSTEM",
        help="bm25, splade[-doc][-idf], dense[-idf], cross-encoder, doct5query, hybrid-<one of them>[-minmax|-rrf|"
        "-product][-exact]; or all; default: bm25, the four of SPLADE, and its idf rows as sum and minmax hybrids",
    )
    parser.add_argument("--dense", help="the encoder of the dense systems, such as minilm")
    parser.add_argument("--cross-encoder", help="of that system: a checkpoint folder or a hub id")
    parser.add_argument(
        "--generated", type=Path, help="for doct5query: BEIR folder of generated queries (trainer.generate)"
    )
    add_model_arguments(parser)
    parser.add_argument("--threads", type=int, default=0, help="of BM25 indexing and of search; 0: one a processor")
    parser.add_argument("--verify", action="store_true", help="fail where scores differ from those in the index config")
    args = parser.parse_args()
    config = load_index_config(args.collection)
    encoder = load_encoder(args.encoder)
    line = Line(
        config,
        encoder,
        args.output or Path("runs") / config.name / encoder.name,
        args.split or config.split,
        args.device,
        args.precision,
        args.batch_size,
        args.threads,
        load_encoder(args.dense) if args.dense else None,
        args.cross_encoder,
        args.generated,
    )
    names = [name for given in args.systems or default_systems(encoder) for name in given.split(",") if name]
    if "all" in names:
        given = {kind for kind, option in OPTIONS.items() if getattr(args, option.replace("-", "_"))}
        names = all_systems(encoder, given)
        for kind in OPTIONS.keys() - given:
            print(f"without {kind}: it needs --{OPTIONS[kind]}", file=sys.stderr)
    results = run_line(line, names)
    print(results.table())
    print(f"\n{line.output}/report.md")
    if args.verify:
        verify(results, config)


if __name__ == "__main__":
    cli.run(main)
