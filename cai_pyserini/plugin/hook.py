"""Let Pyserini load our encoders by name or path, and indexes by their names in our registry, and provide Java.

`register()` patches Pyserini in this process: given the name of one of our encoders, its encoder classes and
LuceneImpactSearcher use ours; prebuilt indexes are looked up in the user's registry first (plugin.registry); and it can
be imported without a network (plugin.catalogues).
`cai-pyserini -m pyserini.…` registers and then runs the module; after `cai-pyserini plugin enable`,
every Python in this environment registers when it starts. Pyserini's files on disk do not change.

If the plugin is enabled, every Python imports this module when it starts, so other imports are deferred until Pyserini
is imported. The module with our encoders is referred to by name, because it imports this one.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the import
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

ENCODERS_MODULE = "cai_pyserini.plugin.encoders"
CATALOGUES = "pyserini.prebuilt_index_info"
# The .pth file, which Python runs when it starts; it must do nothing after the package is uninstalled.
LINE = (
    """import sys; exec("try:\\n import cai_pyserini.plugin.hook as h\\n h.register()\\nexcept ImportError: pass")\n"""
)


def pth_path() -> Path:
    """The file in site-packages that enables the plugin in this environment."""
    import sysconfig
    from pathlib import Path

    return Path(sysconfig.get_path("purelib")) / "cai_pyserini.pth"


class PyseriniFinder:
    """A finder on sys.meta_path that prepares Java and registers our encoders and indexes when Pyserini is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module to patch after its import; None for any other, which other finders find."""
        if name in ("pyserini", "pyserini.pyclass"):
            from cai_pyserini.indexes import jvm

            jvm.set_environment() if name == "pyserini" else jvm.start()
        if name != CATALOGUES and name not in REGISTRATIONS:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_register(module: Any) -> None:
                if name == CATALOGUES:
                    from cai_pyserini.plugin import catalogues

                    catalogues.define(module, execute)
                else:
                    execute(module)
                    REGISTRATIONS[name](module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Let Pyserini load our encoders and indexes, whether or not it is already imported."""
    if any(isinstance(finder, PyseriniFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, PyseriniFinder())
    for name, registration in REGISTRATIONS.items():
        if name in sys.modules:
            registration(sys.modules[name])


def _register_encoders(module: Any) -> None:
    _register_encoder(module.DocumentEncoder, "CaiDocumentEncoder")
    _register_encoder(module.QueryEncoder, "CaiQueryEncoder")


def _register_encoder(base: Any, class_name: str) -> None:
    """Make subclasses of Pyserini's `base` create our class when called with the name of one of our encoders."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        values = [*args[:1], *(kwargs.get(key) for key in ("model_name", "model_name_or_path", "encoder_dir"))]
        name = next((value for value in values if isinstance(value, str)), None)
        if name and cls.__module__.startswith("pyserini."):
            from cai_pyserini.core.config import is_checkpoint, is_encoder

            # Pyserini's own SPLADE encoders cannot load safetensors, so such a folder is for ours.
            if is_encoder(name) or ("Splade" in cls.__name__ and is_checkpoint(name)):
                return _create_encoder(class_name, name, kwargs.get("device"))
        return object.__new__(cls)

    base.__new__ = new


def _create_encoder(class_name: str, name: str, device: str | None = None) -> Any:
    from importlib import import_module

    return getattr(import_module(ENCODERS_MODULE), class_name)(name, device=device or "auto")


def _register_searcher(module: Any) -> None:
    """Let LuceneImpactSearcher take our encoders by name, check that they match the index, and keep all terms."""
    init = module.LuceneImpactSearcher.__init__

    def __init__(self: Any, index_dir: str, query_encoder: Any, min_idf: int = 0, *args: Any, **kwargs: Any) -> None:
        from cai_pyserini.core.config import is_checkpoint, is_encoder

        if isinstance(query_encoder, str) and query_encoder == kwargs.get("prebuilt_index_name"):
            query_encoder = index_dir  # its encoder.yaml names the encoder
        if isinstance(query_encoder, str) and (is_encoder(query_encoder) or is_checkpoint(query_encoder)):
            query_encoder = _create_encoder("CaiQueryEncoder", query_encoder)
        if type(query_encoder).__module__ == ENCODERS_MODULE:
            query_encoder.require_same_encoder(index_dir)
            min_idf = min_idf or -1  # the default, 0, would drop terms that are in every document
        init(self, index_dir, query_encoder, min_idf, *args, **kwargs)

    module.LuceneImpactSearcher.__init__ = __init__


def _register_dense_searcher(module: Any) -> None:
    """Let FaissSearcher check that an encoder of ours matches the index."""
    init = module.FaissSearcher.__init__

    def __init__(self: Any, index_dir: str, *args: Any, **kwargs: Any) -> None:
        init(self, index_dir, *args, **kwargs)
        if type(self.query_encoder).__module__ == ENCODERS_MODULE:
            self.query_encoder.require_same_encoder(index_dir)

    module.FaissSearcher.__init__ = __init__


def _register_indexes(util: Any) -> None:
    stock = util.download_prebuilt_index

    def download_prebuilt_index(index_name: str, *args: Any, **kwargs: Any) -> str:
        from cai_pyserini.core.errors import CaiError
        from cai_pyserini.plugin import registry

        if entry := registry.entries().get(index_name):
            return str(registry.fetch(entry))
        try:
            return str(stock(index_name, *args, **kwargs))
        except CaiError as error:
            raise CaiError(f"your registry has no index {index_name}, and {error}") from None

    for name, module in list(sys.modules.items()):  # all that have already imported it, and its own
        if name.startswith("pyserini.") and getattr(module, "download_prebuilt_index", None) is stock:
            module.download_prebuilt_index = download_prebuilt_index  # type: ignore[attr-defined]


def _register_validation(module: Any) -> None:
    """Let Pyserini validate prebuilt indexes, except those in our registry, whose SHA-256 was checked."""
    stock = module.LuceneIndexReader.validate

    def validate(self: Any, prebuilt_index_name: str, verbose: bool = False) -> bool:
        from cai_pyserini.plugin import registry

        return prebuilt_index_name in registry.entries() or stock(self, prebuilt_index_name, verbose)

    module.LuceneIndexReader.validate = validate


def _register_topics(module: Any) -> None:
    """Look up names of topics and qrels with a timeout, and with an error that says what cannot be reached."""
    from cai_pyserini.plugin import catalogues

    module.urlopen = catalogues.read


REGISTRATIONS = {  # Pyserini's modules -> functions that patch them after their import
    "pyserini.encode": _register_encoders,
    "pyserini.index.lucene._base": _register_validation,
    "pyserini.search._base": _register_topics,
    "pyserini.search.faiss._searcher": _register_dense_searcher,
    "pyserini.search.lucene._impact_searcher": _register_searcher,
    "pyserini.util": _register_indexes,
}
