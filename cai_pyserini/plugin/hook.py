"""Lets Pyserini know our encoders, by name or path, wherever it takes one; and gives it a Java.

`register()` changes two things in Pyserini, in this process: creating one of its encoders, or a LuceneImpactSearcher,
with the name of an encoder of ours gives ours. `python -m cai_pyserini -m pyserini.…` does that and runs the module;
`python -m cai_pyserini.plugin enable` lets every Python of this environment do it by itself, when it imports Pyserini.
Nothing of Pyserini is changed on disk.

Every start of Python imports this module where the plugin is enabled, so it imports nothing of any size by itself.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, without importing it
if TYPE_CHECKING:
    from typing import Any

ENCODE, SEARCHER = "pyserini.encode", "pyserini.search.lucene._impact_searcher"


class PyseriniFinder:
    """A finder on sys.meta_path that finds nothing new: it acts when Pyserini's modules are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Prepare Java before the modules that need it; register our encoders after those that have theirs."""
        if name == "pyserini":
            from cai_pyserini import jvm

            jvm.set_environment()
        elif name == "pyserini.pyclass":
            from cai_pyserini import jvm

            jvm.start()
        elif name in (ENCODE, SEARCHER):
            from importlib.machinery import PathFinder

            spec = PathFinder.find_spec(name, path, target)
            if spec and spec.loader:
                execute = spec.loader.exec_module

                def execute_and_register(module: Any) -> None:
                    execute(module)
                    _register_in(module)

                spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
            return spec
        return None


def register() -> None:
    """Make Pyserini know our encoders, whether it has been imported already or will be."""
    if any(isinstance(finder, PyseriniFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, PyseriniFinder())
    for name in (ENCODE, SEARCHER):
        if name in sys.modules:
            _register_in(sys.modules[name])


def _register_in(module: Any) -> None:
    if module.__name__ == SEARCHER:
        _register_searcher(module.LuceneImpactSearcher)
    else:
        _register_encoder(module.DocumentEncoder, "CaiDocumentEncoder")
        _register_encoder(module.QueryEncoder, "CaiQueryEncoder")


def _register_encoder(base: Any, ours: str) -> None:
    """Let the subclasses of Pyserini's `base` give `ours` where they are created with a name of ours."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        given = [*args[:1], *(kwargs.get(key) for key in ("model_name", "model_name_or_path", "encoder_dir"))]
        name = next((value for value in given if isinstance(value, str)), None)
        if name and cls.__module__.startswith("pyserini."):
            from cai_pyserini.config import is_encoder

            if is_encoder(name):
                from cai_pyserini import encoder

                return getattr(encoder, ours)(name, device=kwargs.get("device") or "auto")
        return object.__new__(cls)

    base.__new__ = new


def _register_searcher(searcher: Any) -> None:
    """Let LuceneImpactSearcher take encoders of ours by name, check that they fit the index, and keep every term."""
    init = searcher.__init__

    def __init__(self: Any, index_dir: str, query_encoder: Any, min_idf: int = 0, *args: Any, **kwargs: Any) -> None:
        from cai_pyserini.config import is_encoder

        if isinstance(query_encoder, str) and is_encoder(query_encoder):
            from cai_pyserini.encoder import CaiQueryEncoder

            query_encoder = CaiQueryEncoder(query_encoder)
        if type(query_encoder).__module__ == "cai_pyserini.encoder":
            query_encoder.require_fit(index_dir)
            min_idf = min_idf or -1  # 0, the default, would drop terms that are in every document
        init(self, index_dir, query_encoder, min_idf, *args, **kwargs)

    searcher.__init__ = __init__
