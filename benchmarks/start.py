"""Processor seconds of cold starts, user and system, of a process and its children.

Two texts are indexed for BM25 and searched in Python; a finished run, --run, is searched in Python and by the command;
and the help is printed. Every repetition is a process of its own. "No archive" leaves out the archive of classes, which
must have been made before (see indexes/class_archive.py).
"""

import os
import resource
import subprocess
import sys
from functools import partial

import harness

TWO = 'import cai_pyserini as cai; assert cai.index(["short fingers", "text"], system="bm25").search("fingers")'
RUN = "import cai_pyserini as cai; assert cai.open({run!r})[{system!r}].search('short fingers')"
WITHOUT = {"JAVA_TOOL_OPTIONS": "-Xshare:off"}


def seconds(command: list[str], environment: dict[str, str]) -> harness.Result:
    """Processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], env=os.environ | environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=5)
    parser.add_argument("--run", required=True, help="folder of a finished run")
    parser.add_argument("--systems", nargs="+", default=["bm25", "joint-doc"], help="systems of it that are searched")
    args = parser.parse_args()
    commands = {"index two texts and search, Python": ["-c", TWO]}
    for system in args.systems:
        commands[f"search {system} of a run, Python"] = ["-c", RUN.format(run=args.run, system=system)]
        shell = ["-m", "cai_pyserini", "search", args.run, "short fingers", "--system", system]
        commands[f"search {system} of a run, command"] = shell
    commands["--help"] = ["-m", "cai_pyserini", "--help"]
    peers = {}
    for name, command in commands.items():
        peers[name] = partial(seconds, command, {})
        peers[f"{name}, no archive"] = partial(seconds, command, WITHOUT)
    results = harness.rounds(args.repeats, peers)
    values = {name: f"{harness.middle(results[name]):.2f}" for name in results}
    rows = [(name, values[f"{name}, no archive"], values[name]) for name in commands]
    harness.show("Cold starts, processor seconds", ["", "no archive", "archive"], rows)


if __name__ == "__main__":
    main()
