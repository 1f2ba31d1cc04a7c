"""Pyserini's catalogues of prebuilt indexes, topics and qrels, which it reads from GitHub since version 2.4.

Pyserini looks up two indexes when it is imported, which fails without a network. Here, the catalogues of indexes are
read when a name is first looked up, and are empty without a network.
"""

import builtins
import io
import logging
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from cai_pyserini.core.errors import CaiError

log = logging.getLogger(__name__)
_connection_error: CaiError | None = None  # once set, no other catalogue is tried: each could take minutes to fail


class Unreachable(CaiError):
    """A catalogue of Pyserini's cannot be reached."""


class _UnreadCatalogue(dict[str, Any]):
    """Stands for a catalogue that is not read yet, so that aliases can be defined: `catalogue["x"]` is "x"."""

    def __missing__(self, name: str) -> str:
        return name


def read(url: str, timeout: float = 10) -> io.BytesIO:
    """Replace Pyserini's `urlopen`: the contents of a URL. Raises Unreachable or HTTPError."""
    try:
        with urlopen(url, timeout=timeout) as response:  # noqa: S310
            return io.BytesIO(response.read())
    except HTTPError:
        raise
    except (URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"Pyserini looks names up at {url}, which cannot be reached: {reason}") from None


def define(module: Any, execute: Callable[[Any], None]) -> None:
    """Execute the module that defines the catalogues, without reading them."""
    defining = True

    def build_class(*args: Any, **kwargs: Any) -> type:
        cls = builtins.__build_class__(*args, **kwargs)
        if load := getattr(cls, "_load", None):
            cls._load = lambda self: _UnreadCatalogue() if defining else _load(self, load)
        if resolve := getattr(cls, "_resolve_alias", None):  # do not list aliases of missing entries
            cls.__iter__ = lambda self, names=cls.__iter__: (
                name for name in names(self) if any(resolve(self, name) in source for source in self._sources)
            )
        return cls

    module.__builtins__ = {**vars(builtins), "__build_class__": build_class}
    execute(module)
    module.urlopen, defining = read, False
    for catalogue in vars(module).values():
        for source in getattr(catalogue, "_sources", ()):
            if isinstance(source, dict):  # filled from _UnreadCatalogue: alias -> name, not entries
                catalogue._aliases.update(source)


def _load(catalogue: Any, load: Callable[[Any], Any]) -> Any:
    """The entries of a catalogue; if it cannot be reached, log a warning and return none."""
    global _connection_error
    try:
        return {} if _connection_error else load(catalogue)
    except Unreachable as error:
        _connection_error = error
        log.warning("Pyserini's catalogues of prebuilt indexes cannot be reached, and are treated as empty")
        return {}


def download(stock: Callable[..., str], name: str, *args: Any, **kwargs: Any) -> str:
    """The folder of one of Pyserini's prebuilt indexes. Raises Unreachable if its name cannot be looked up."""
    global _connection_error
    _connection_error = None
    try:
        return stock(name, *args, **kwargs)
    except (KeyError, ValueError):
        if _connection_error:
            raise Unreachable(f"your registry has no index {name}, and {_connection_error}") from None
        raise
