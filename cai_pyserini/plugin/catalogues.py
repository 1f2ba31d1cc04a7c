"""Pyserini's lists of prebuilt indexes, topics and qrels, which from 2.4 on it reads from GitHub.

It looks two indexes up when it is imported, so without a network the import would fail. Here, the catalogues of indexes
are read when they are first asked for a name, and are empty where no network is.
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
_unreachable: CaiError | None = None  # why the catalogues are empty; reading all others would take minutes as well


class Unreachable(CaiError):
    """No network, or none that leads to a list of Pyserini's."""


class _Names(dict[str, Any]):
    """What an alias is made of while the catalogues are not read yet: `names["x"]` is "x"."""

    def __missing__(self, name: str) -> str:
        return name


def read(url: str, timeout: float = 10) -> io.BytesIO:
    """The contents of a URL, in place of Pyserini's `urlopen`. Raises Unreachable, or HTTPError."""
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
        made = builtins.__build_class__(*args, **kwargs)
        if load := getattr(made, "_load", None):
            made._load = lambda self: _Names() if defining else _load(self, load)
        if resolve := getattr(made, "_resolve_alias", None):  # it would list aliases of what is not there
            made.__iter__ = lambda self, names=made.__iter__: (
                name for name in names(self) if any(resolve(self, name) in source for source in self._sources)
            )
        return made

    module.__builtins__ = {**vars(builtins), "__build_class__": build_class}
    execute(module)
    module.urlopen, defining = read, False
    for catalogue in vars(module).values():
        for source in getattr(catalogue, "_sources", ()):
            if isinstance(source, dict):  # of names that should have been entries: aliases, like the catalogue's own
                catalogue._aliases.update(source)


def _load(catalogue: Any, load: Callable[[Any], Any]) -> Any:
    """The entries of a catalogue; none, with a warning, if it cannot be reached."""
    global _unreachable
    try:
        return {} if _unreachable else load(catalogue)
    except Unreachable as error:
        _unreachable = error
        log.warning("Pyserini's catalogues of prebuilt indexes cannot be reached, and count as empty")
        return {}


def download(stock: Callable[..., str], name: str, *args: Any, **kwargs: Any) -> str:
    """The folder of a prebuilt index of Pyserini's. Raises Unreachable if its name cannot be looked up."""
    global _unreachable
    _unreachable = None
    try:
        return stock(name, *args, **kwargs)
    except (KeyError, ValueError):
        if _unreachable:
            raise Unreachable(f"your registry has no index {name}, and {_unreachable}") from None
        raise
