"""The whole line: from a collection and an encoder to a table of scores. The one file that knows the order of stages.

A run that was interrupted goes on where it stopped, and a run with another setting redoes just what depends on it.
"""

import fcntl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.config import IndexConfig, load_encoder, load_index_config
from cai_pyserini.encode import add_model_arguments
from cai_pyserini.line import OPTIONS, WORDS, Line
from cai_pyserini.systems import System, all_systems, default_systems, with_parts

if TYPE_CHECKING:
    from cai_pyserini.report import Results


def stages(line: Line, systems: list[System]) -> Iterator[tuple[str, Callable[[], Path]]]:
    """What is to be done for these systems, in order: a label and the stage."""
    needed = with_parts(systems)
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
    if cross := needed.get("cross-encoder"):
        yield cross.name, partial(line.rerank, cross)
    exact = [(system, System.parse(part)) for system in systems if system.exact for part in system.parts]
    for path, (system, part) in {line.completed_path(*pair): pair for pair in exact}.items():
        yield f"complete {path.stem}", partial(line.complete, system, part)
    for system in systems:
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
        replace(load_encoder(args.dense), kind="dense") if args.dense else None,
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
