"""Unsupervised domain adaptation of SPLADE (CAI: AdaLM, IDF weighting, BM25) for Pyserini and Lucene.

    import cai_pyserini as cai

    index = cai.index("articles.jsonl", "runs/articles")
    for hit in index.search("short fingers", k=3):
        print(hit.rank, hit.id, hit.score, hit.title)

The names in `__all__` are imported when they are first used, so that `--help` and the Pyserini plugin start at once.
"""

import sys

from cai_pyserini.core.version import VERSION

if sys.platform == "win32":
    raise ImportError(
        "cai-pyserini does not run on Windows, which has neither the file locks nor the limits of processes that it "
        "relies on: install it in the Windows Subsystem for Linux (wsl --install)"
    )
__version__ = VERSION
TYPE_CHECKING = False  # as in typing, which takes time to import
if TYPE_CHECKING:
    from cai_pyserini.engine.api import (
        CaiError,
        Encoder,
        Engine,
        Hit,
        Run,
        adapt,
        compare,
        evaluate,
        fuse,
        index,
        open,
        open_index,
        run,
    )

__all__ = [
    "CaiError",
    "Encoder",
    "Engine",
    "Hit",
    "Run",
    "adapt",
    "compare",
    "evaluate",
    "fuse",
    "index",
    "open",
    "open_index",
    "run",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("cai_pyserini.engine.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
