"""Makes our encoders known to Pyserini, by name or path, and provides Java.

`register()` changes two things in Pyserini, in this process: creating one of its encoders, or a LuceneImpactSearcher,
with the name of an encoder of ours gives ours. `python -m cai_pyserini -m pyserini.…` does that and runs the module;
`python -m cai_pyserini.plugin enable` does it in every Python of this environment when Pyserini is imported. Nothing of
Pyserini is changed on disk.

Where the plugin is enabled, every start of Python imports this module, so that its own imports wait until Pyserini is
imported. It knows our encoders by the name of their module, as any plugin system does: they import it, not it them.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, without importing it
if TYPE_CHECKING:
    from typing import Any

ENCODE, SEARCHER = "pyserini.encode", "pyserini.search.lucene._impact_searcher"
OURS = "cai_pyserini.plugin.encoders"


class PyseriniFinder:
    """A finder on sys.meta_path that finds nothing itself: it acts when Pyserini's modules are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Prepare Java before the modules that need it; register our encoders after those that have theirs."""
        if name == "pyserini":
            from cai_pyserini.core import jvm

            jvm.set_environment()
        elif name == "pyserini.pyclass":
            from cai_pyserini.core import jvm

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
    """Make our encoders known to Pyserini, whether it has been imported already or will be."""
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
    """Create `ours` wherever a subclass of Pyserini's `base` is created with the name of an encoder of ours."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        given = [*args[:1], *(kwargs.get(key) for key in ("model_name", "model_name_or_path", "encoder_dir"))]
        name = next((value for value in given if isinstance(value, str)), None)
        if name and cls.__module__.startswith("pyserini."):
            from cai_pyserini.core.config import is_checkpoint, is_encoder

            # Pyserini's own SPLADE encoders refuse safetensors, so such a folder is meant for ours.
            if is_encoder(name) or ("Splade" in cls.__name__ and is_checkpoint(name)):
                return _encoder(ours, name, kwargs.get("device"))
        return object.__new__(cls)

    base.__new__ = new


def _encoder(kind: str, name: str, device: str | None = None) -> Any:
    from importlib import import_module

    return getattr(import_module(OURS), kind)(name, device=device or "auto")


def _register_searcher(searcher: Any) -> None:
    """Let LuceneImpactSearcher take encoders of ours by name, check that the index is theirs, and keep every term."""
    init = searcher.__init__

    def __init__(self: Any, index_dir: str, query_encoder: Any, min_idf: int = 0, *args: Any, **kwargs: Any) -> None:
        from cai_pyserini.core.config import is_checkpoint, is_encoder

        if isinstance(query_encoder, str) and (is_encoder(query_encoder) or is_checkpoint(query_encoder)):
            query_encoder = _encoder("CaiQueryEncoder", query_encoder)
        if type(query_encoder).__module__ == OURS:
            query_encoder.require_same_checkpoint(index_dir)
            min_idf = min_idf or -1  # 0, the default, would drop terms that are in every document
        init(self, index_dir, query_encoder, min_idf, *args, **kwargs)

    searcher.__init__ = __init__
