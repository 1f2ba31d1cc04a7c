"""`python -m cai_pyserini -m MODULE …`: run a Pyserini module, unmodified, that can load our encoders by name."""

import runpy
import sys
from importlib.util import find_spec

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin import hook

USAGE = """usage: python -m cai_pyserini -m MODULE [ARGUMENT ...]

Run any Pyserini module, unmodified. It finds Java, and loads encoders of cai_pyserini by name or path:

  python -m cai_pyserini -m pyserini.search.lucene --index runs/hpo/splade-tiny/indexes/splade-idf \\
      --topics topics.json --encoder splade-tiny --impact --output run.trec

The stages of cai_pyserini are separate commands, see `python -m cai_pyserini.STAGE --help`:
  beir (all stages), idf, words, encode, expand, smooth, impact, index, search, fusion, evaluate
Other commands: convert, trainer, adapt, gpl, analysis, plugin, serve, ship, export, doctor"""


def main() -> None:
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return
    if sys.argv[1] != "-m" or len(sys.argv) < 3:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    hook.register()
    module = sys.argv[2]
    try:
        known = find_spec(module)
    except ModuleNotFoundError:
        known = None
    if known is None:
        raise CaiError(f"no module named {module}")
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    terminal.run(main)
