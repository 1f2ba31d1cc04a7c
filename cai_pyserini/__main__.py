"""`cai-pyserini COMMAND …`, `python -m cai_pyserini COMMAND …`: all commands, and Pyserini's modules.

`-m MODULE` runs a module of Pyserini, unmodified, that can load our encoders by name.
"""

import atexit
import gc
import runpy
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.version import VERSION

# Described here, not in the modules of cli/, so that the list is there before anything is imported.
COMMANDS = {
    "run": "from a collection to a table of scores: all stages",
    "stage": "one stage of `run`, such as encode, impact or index",
    "search": "search a run or an index",
    "serve": "serve search over HTTP or MCP: a page, a REST API, tools",
    "update": "bring a run up to date with its collection",
    "adapt": "adapt a retriever to a collection, without labels",
    "train": "train retrievers, and make training files",
    "evaluate": "measures and significance of TREC runs",
    "fuse": "fuse TREC runs",
    "rerank": "rerank a TREC run with a cross-encoder",
    "judge": "judge results on a page, and compare systems by the judgments",
    "analyse": "why a system ranks as it does, and what it costs",
    "ship": "package indexes and encoders for others",
    "export": "write impacts and encoders for other engines",
    "convert": "PubMed, S2ORC and BioASQ to BEIR's format",
    "plugin": "our encoders inside Pyserini, and exports for it",
    "doctor": "check this machine, or an encoder",
}
USAGE = f"""usage: cai-pyserini COMMAND [ARGUMENT ...]
       cai-pyserini -m MODULE [ARGUMENT ...]

commands (`cai-pyserini COMMAND --help` says more):
{"\n".join(f"  {name:<9} {description}" for name, description in COMMANDS.items())}

`-m` runs any Pyserini module, unmodified. It finds Java, and loads our encoders
by name or path:

  cai-pyserini -m pyserini.search.lucene --topics topics.json --impact \\
      --index runs/hpo/splade-tiny/indexes/splade-idf --encoder splade-tiny \\
      --output run.trec"""


def main(argv: list[str]) -> int | None:
    """Run a command line; the result is the exit code."""
    match argv:
        case [command, *arguments] if command in COMMANDS:
            return import_module(f"cai_pyserini.cli.{command}").main(arguments)
        case [] | ["-h" | "--help"]:
            print(USAGE)
        case ["--version"]:
            print(f"cai-pyserini {VERSION}")
        case ["-m", name, *arguments]:
            _run_pyserini(name, arguments)
        case [wrong, *_]:
            print(f"error: no command {wrong!r}{_hint(wrong) or ';'} `cai-pyserini --help` lists them", file=sys.stderr)
            return 2
    return None


def _hint(wrong: str) -> str:
    from cai_pyserini.cli.stage import STAGES

    return f"; did you mean `stage {wrong}`?" if wrong in STAGES else did_you_mean(wrong, COMMANDS)


def _run_pyserini(module: str, arguments: list[str]) -> None:
    from cai_pyserini.plugin import hook

    hook.register()
    try:
        known = find_spec(module)
    except ModuleNotFoundError:
        known = None
    if known is None:
        raise CaiError(f"no module named {module}")
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def cli() -> None:
    """Run the command line of this process."""
    atexit.register(gc.freeze)  # Python would search all that PyTorch has loaded for garbage, for half a second
    terminal.run(partial(main, sys.argv[1:]))


if __name__ == "__main__":
    cli()
