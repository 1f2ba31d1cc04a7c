"""The whole line: from a collection and an encoder to a table of scores. The one file that knows all the stages.

Every stage skips what is there already and was made by the same recipe, so that a run that was interrupted goes on
where it stopped, and a run with another setting redoes just what depends on it.
"""

import fcntl
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Collection, open_collection
from cai_pyserini.config import EncoderConfig, IndexConfig, load_encoder, load_index_config
from cai_pyserini.encode import LazySplade, add_model_arguments, encode

if TYPE_CHECKING:
    from cai_pyserini.report import Results

FUSION_DEPTH = 100
NAME = re.compile(r"(?P<hybrid>hybrid-)?splade(?P<doc>-doc)?(?P<idf>-idf)?(?P<fusion>-minmax|-rrf|-product)?")


@dataclass(frozen=True)
class System:
    """What a name says: bm25, or splade with its queries and weights, alone or fused with bm25."""

    name: str
    bow: bool = False  # SPLADE-Doc: bag-of-words queries
    idf: bool = False
    fusion: str | None = None  # with bm25

    @classmethod
    def parse(cls, name: str) -> "System":
        """The system of a name such as hybrid-splade-doc-idf-minmax. Raises CaiError for any other name."""
        match = NAME.fullmatch(name)
        if name == "bm25":
            return cls(name)
        if not match or bool(match["fusion"]) > bool(match["hybrid"]):
            raise CaiError(
                f"no system {name!r}: systems are bm25, splade, splade-doc, splade-idf, splade-doc-idf, and "
                "hybrid-<one of the four> (the sum with bm25), to which -minmax, -rrf or -product can be appended"
            )
        fusion = (match["fusion"] or "-sum")[1:] if match["hybrid"] else None
        return cls(name, bool(match["doc"]), bool(match["idf"]), fusion)

    @property
    def parts(self) -> tuple[str, ...]:
        """The systems that a hybrid fuses."""
        return ("bm25", f"splade{'-doc' * self.bow}{'-idf' * self.idf}") if self.fusion else ()

    @property
    def index(self) -> str:
        """The index it searches."""
        return "bm25" if self.name == "bm25" else f"splade{'-idf' * self.idf}"


def default_systems(config: EncoderConfig) -> list[str]:
    """bm25, the four that the encoder is made for, and hybrids of those with IDF, as sum and minmax."""
    sparse = ["splade-doc", "splade-doc-idf"]
    if config.query == "splade":
        sparse = ["splade", "splade-doc", "splade-idf", "splade-doc-idf"]
    if config.idf_power == 0:
        sparse = [name for name in sparse if not name.endswith("-idf")]
    hybrids = [name for name in sparse if name.endswith("-idf")] or sparse
    return ["bm25", *sparse, *[f"hybrid-{name}{fusion}" for name in hybrids for fusion in ("", "-minmax")]]


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

    @cached_property
    def collection(self) -> Collection:
        return open_collection(self.config)

    @cached_property
    def encoder(self) -> LazySplade:
        return LazySplade(self.encoder_config, self.device, self.precision)

    @cached_property
    def topics(self) -> dict[str, str]:
        return self.collection.topics(self.split)

    def check(self) -> Path:
        """Read the collection once, all of it, and refuse what is broken before anything is spent on it."""
        path = self.output / "collection.json"
        parts = ("documents", "queries", self.split)
        recipe = {"stage": "check", "format": 1, "inputs": [self.collection.fingerprint(part) for part in parts]}
        if not artifact.is_fresh(path, recipe):
            with artifact.building(path, recipe, folder=False) as (partial, facts):
                counts = self.collection.check(self.split)
                partial.write_text(json.dumps(counts) + "\n")
                facts |= counts
        return path

    def idf(self) -> Path:
        """Document frequencies."""
        from cai_pyserini.idf import compute

        return compute(self.collection, self.encoder.checkpoint, self.output / "idf")

    def documents(self) -> Path:
        """Raw vectors of the documents."""
        folder = self.output / "vectors" / "documents"
        return encode(self.collection, self.encoder, folder, "documents", batch_size=self.batch_size)

    def queries(self) -> Path:
        """Raw vectors of the queries."""
        folder = self.output / "vectors" / f"queries-{self.split}"
        return encode(self.collection, self.encoder, folder, "queries", self.split, self.batch_size)

    def impacts(self, name: str) -> Path:
        """JSON vectors, `splade` or `splade-idf`."""
        from cai_pyserini.impact import write_impacts
        from cai_pyserini.vectors import Vectors

        config = replace(self.encoder_config, idf=str(self.output / "idf") if name == "splade-idf" else None)
        return write_impacts(Vectors(self.output / "vectors" / "documents"), config, self.output / "impacts" / name)

    def index(self, name: str) -> Path:
        """A Lucene index: `bm25`, `splade` or `splade-idf`."""
        from cai_pyserini.index import index_bm25, index_impacts

        folder = self.output / "indexes" / name
        if name == "bm25":
            return index_bm25(self.collection, folder, self.threads)
        return index_impacts(self.output / "impacts" / name, folder)

    def run_path(self, system: System) -> Path:
        return self.output / "runs" / f"{system.name}.trec"

    def search(self, system: System) -> Path:
        """The run of a system that searches one index."""
        from cai_pyserini.search import Searcher, without_query
        from cai_pyserini.trec import write_run

        path = self.run_path(system)
        index = self.output / "indexes" / system.index
        manifest = artifact.require_manifest(index, "index")
        bm25 = system.name == "bm25"
        recipe = {
            "stage": "search",
            "format": 1,
            "index": manifest["digest"],
            "topics": [self.collection.fingerprint("queries"), self.collection.fingerprint(self.split)],
            "settings": [self.config.k1, self.config.b]
            if bm25
            else ["bow" if system.bow else self._query_vectors["digest"]],
            "max_query_length": None if bm25 else self.encoder_config.max_query_length,
            "hits": self.config.hits,
            "remove_query": self.config.remove_query,
        }
        if artifact.is_fresh(path, recipe):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with artifact.building(path, recipe, folder=False) as (partial, facts):
            start = time.perf_counter()
            queries, seconds = (self.topics, 0.0) if bm25 else self._query_impacts(system, manifest["query_scale"])
            searcher = Searcher(index, self.config.k1, self.config.b)
            opened = time.perf_counter()
            hits = self.config.hits + self.config.remove_query
            run = searcher.search_many(queries, hits, self.threads, f"search {system.name}")
            seconds += time.perf_counter() - opened
            searcher.close()
            write_run(without_query(run, self.config.hits) if self.config.remove_query else run, partial, system.name)
            facts |= {"ms_per_query": 1000 * seconds / len(queries), "seconds": round(time.perf_counter() - start, 3)}
        return path

    @cached_property
    def _query_vectors(self) -> dict[str, Any]:
        return artifact.require_manifest(self.output / "vectors" / f"queries-{self.split}", "encode")

    def _query_impacts(self, system: System, scale: int) -> tuple[dict[str, dict[str, int]], float]:
        """Impacts of the queries, and the seconds it takes to get them from text."""
        from cai_pyserini.search import query_impacts
        from cai_pyserini.splade import Tokenizer
        from cai_pyserini.vectors import Vectors

        tokenizer = Tokenizer(self.encoder.checkpoint)
        if system.bow:
            start = time.perf_counter()
            counts = tokenizer.bag_of_words(list(self.topics.values()), self.encoder_config.max_query_length)
            impacts = query_impacts(counts, tokenizer.terms, scale)
            return dict(zip(self.topics, impacts, strict=True)), time.perf_counter() - start
        vectors = Vectors(self.output / "vectors" / f"queries-{self.split}")
        queries: dict[str, dict[str, int]] = {}
        for shard in vectors:
            queries |= dict(zip(shard.ids, query_impacts(shard.matrix, tokenizer.terms, scale), strict=True))
        return queries, vectors.manifest["seconds"]

    def fuse(self, system: System) -> Path:
        """The run of a hybrid, of the runs of its parts."""
        from cai_pyserini.fuse import as_run, fuse
        from cai_pyserini.trec import read_run, write_run

        path = self.run_path(system)
        parts = [self.run_path(System.parse(name)) for name in system.parts]
        manifests = [artifact.require_manifest(part, "search") for part in parts]
        recipe = {
            "stage": "fuse",
            "format": 1,
            "runs": [manifest["digest"] for manifest in manifests],
            "method": system.fusion,
            "depth": FUSION_DEPTH,
            "hits": self.config.hits,
        }
        if not artifact.is_fresh(path, recipe):
            with artifact.building(path, recipe, folder=False) as (partial, facts):
                runs = [read_run(part) for part in parts]
                start = time.perf_counter()
                fused = fuse(runs, system.fusion or "sum", FUSION_DEPTH, self.config.hits)
                seconds = time.perf_counter() - start
                write_run(as_run(fused), partial, system.name)
                own = 1000 * seconds / len(self.topics)
                facts |= {"ms_per_query": own + sum(manifest["ms_per_query"] for manifest in manifests)}
        return path

    def evaluate(self, system: System) -> Path:
        """Every query's measures."""
        from cai_pyserini.evaluate import MEASURES, evaluate
        from cai_pyserini.trec import read_run

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
            with artifact.building(path, recipe, folder=False) as (partial, _):
                partial.write_text(json.dumps(evaluate(self.collection.qrels(self.split), read_run(run))) + "\n")
        return path


def stages(line: Line, systems: list[System]) -> Iterator[tuple[str, Callable[[], Path]]]:
    """What is to be done for these systems, in order: a label and the stage."""
    single = {system.name: system for system in systems if not system.fusion}
    single |= {part: System.parse(part) for system in systems for part in system.parts}
    sparse = [system for system in single.values() if system.name != "bm25"]
    weightings = sorted({system.index for system in sparse})
    yield "check", line.check
    if "splade-idf" in weightings:
        yield "idf", line.idf
    if sparse:
        yield "encode documents", line.documents
    if any(not system.bow for system in sparse):
        yield "encode queries", line.queries
    for name in weightings:
        yield f"impacts {name}", lambda name=name: line.impacts(name)  # type: ignore[misc]
    for name in ["bm25"] * ("bm25" in single) + weightings:
        yield f"index {name}", lambda name=name: line.index(name)  # type: ignore[misc]
    for system in single.values():
        yield f"search {system.name}", lambda system=system: line.search(system)  # type: ignore[misc]
    for system in systems:
        if system.fusion:
            yield f"fuse {system.name}", lambda system=system: line.fuse(system)  # type: ignore[misc]
    for system in systems:
        yield f"evaluate {system.name}", lambda system=system: line.evaluate(system)  # type: ignore[misc]


def run_line(line: Line, names: list[str]) -> "Results":
    """Do what is not done yet, and return the results of these systems."""
    from cai_pyserini.report import Results

    systems = [System.parse(name) for name in dict.fromkeys(names)]
    if line.encoder_config.idf_power == 0 and any(system.idf for system in systems):
        raise CaiError(f"encoder {line.encoder_config.name} has idf_power 0: it makes no system with idf in its name")
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
        help="bm25, splade, splade-doc, splade-idf, splade-doc-idf, hybrid-<one of the four>[-minmax|-rrf|-product]; "
        "default: bm25, the four, and both idf rows as sum and minmax hybrids",
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
    )
    names = [name for given in args.systems or default_systems(encoder) for name in given.split(",") if name]
    results = run_line(line, names)
    print(results.table())
    print(f"\n{line.output}/report.md")
    if args.verify:
        verify(results, config)


if __name__ == "__main__":
    cli.run(main)
