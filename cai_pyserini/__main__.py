"""`cai-pyserini STAGE …`, `python -m cai_pyserini STAGE …`: one command for all stages, and for Pyserini's modules.

`-m MODULE` runs a module of Pyserini, unmodified, that can load our encoders by name.
"""

import runpy
import sys
from importlib.util import find_spec

from cai_pyserini import __version__
from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin import hook

# Described here, not in the stages, so that the list is there before anything is imported.
STAGES = {
    "beir": "from a collection to a table of scores: all stages",
    "idf": "document frequencies of word pieces",
    "encode": "vectors of documents or queries",
    "words": "counts of the words that BM25 sees",
    "near": "the nearest neighbours of every document",
    "smooth": "vectors mixed with those of the neighbours",
    "expand": "associated words and neighbours' words of documents",
    "impact": "integers from vectors, IDF and words",
    "index": "an index of impacts, of text for BM25, or of dense vectors",
    "search": "search by hand, or write a run",
    "fusion": "fuse or rerank runs",
    "evaluate": "measures and significance of runs",
}
OTHERS = {
    "convert": "PubMed, S2ORC and BioASQ in BEIR's format, and pickles in safetensors",
    "adapt": "adapt a retriever to a collection",
    "trainer": "train retrievers, and make the files to train with",
    "gpl": "generative pseudo labelling",
    "analysis": "why a system ranks as it does, and what it costs",
    "serve": "search over HTTP or MCP: a page, a REST API, tools",
    "update": "a run to its collection as it is now",
    "judge": "judge results on a page, and compare systems by the judgments",
    "plugin": "our encoders inside Pyserini, and exports for it",
    "ship": "indexes and encoders for others",
    "export": "impacts and encoders for other systems",
    "vectors": "list the vector cache, delete old vectors",
    "doctor": "check this machine, or an encoder",
}
COMMANDS = STAGES | OTHERS


def _list(commands: dict[str, str]) -> str:
    return "\n".join(f"  {name:<9} {description}" for name, description in commands.items())


USAGE = f"""usage: cai-pyserini STAGE [ARGUMENT ...]
       cai-pyserini -m MODULE [ARGUMENT ...]

The first runs a stage, as `python -m cai_pyserini.STAGE` does; `cai-pyserini STAGE --help` lists its settings.

stages:
{_list(STAGES)}

other commands:
{_list(OTHERS)}

The second runs any Pyserini module, unmodified. It finds Java, and loads encoders of cai_pyserini by name or path:

  cai-pyserini -m pyserini.search.lucene --index runs/hpo/splade-tiny/indexes/splade-idf \\
      --topics topics.json --encoder splade-tiny --impact --output run.trec"""


def main() -> None:
    match sys.argv[1:]:
        case [] | ["-h" | "--help"]:
            print(USAGE)
        case ["--version"]:
            print(f"cai-pyserini {__version__}")
        case ["-m", module, *arguments]:
            hook.register()
            _run(module, arguments)
        case _:
            print(USAGE, file=sys.stderr)
            sys.exit(2)


def _run(module: str, arguments: list[str]) -> None:
    try:
        known = find_spec(module)
    except ModuleNotFoundError:
        known = None
    if known is None:
        raise CaiError(f"no module named {module}")
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def cli() -> None:
    """Run a command. A stage handles its own errors, and its processes if torchrun has started several."""
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        _run(f"cai_pyserini.{sys.argv[1]}", sys.argv[2:])
    else:
        terminal.run(main)


if __name__ == "__main__":
    cli()
