"""`python -m cai_pyserini -m MODULE …`: run a module of Pyserini's, unmodified, with our encoders known to it."""

import runpy
import sys
from importlib.util import find_spec

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin import hook

USAGE = """usage: python -m cai_pyserini -m MODULE [ARGUMENT ...]

Run any module of Pyserini's, unmodified, with Java and with the encoders of cai_pyserini known to it by name or path:

  python -m cai_pyserini -m pyserini.search.lucene --index runs/hpo/splade-tiny/indexes/splade-idf \\
      --topics topics.json --encoder splade-tiny --impact --output run.trec

The stages of cai_pyserini are commands of their own, `python -m cai_pyserini.STAGE --help`:
  beir (all of them), idf, encode, impact, index, search, fusion, evaluate
Around them: convert, trainer, recipes, analysis, plugin, doctor"""


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
