"""`python -m cai_pyserini -m MODULE …`: run a module of Pyserini's, unmodified, with our encoders known to it."""

import runpy
import sys
from importlib.util import find_spec

from cai_pyserini import cli, registration

USAGE = """usage: python -m cai_pyserini -m MODULE [ARGUMENT ...]

Run any module of Pyserini's, unmodified, with a Java it can use and the encoders of cai_pyserini known to it by name
or path, as in:

  python -m cai_pyserini -m pyserini.search.lucene --index runs/hpo/splade-tiny/indexes/splade-idf \\
      --topics topics.json --encoder splade-tiny --impact --output run.trec

The stages of cai_pyserini are modules of their own; each has a --help:
  beir (all of them)   idf   encode   impact   index   search   fuse   evaluate   export   plugin   doctor"""


def main() -> None:
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return
    if sys.argv[1] != "-m" or len(sys.argv) < 3:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    registration.register()
    module = sys.argv[2]
    try:
        known = find_spec(module)
    except ModuleNotFoundError:
        known = None
    if known is None:
        raise cli.CaiError(f"no module named {module}")
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    cli.run(main)
