"""Pyserini's catalogues of prebuilt indexes, topics and qrels, which it reads from GitHub since version 2.4.

Pyserini looks up two indexes when it is imported, which fails without a network. Here, the catalogues of indexes are
read when a name is first looked up, and are empty without a network.
"""

import io
import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any
from urllib.error import HTTPError, URLError

from cai_pyserini.core.errors import CaiError

log = logging.getLogger(__name__)
PREBUILT_INDEXES = "castorini/prebuilt-indexes"  # the repository of the catalogues
FIELDS = ("description", "filename", "urls", "md5", "size")  # every entry has these
_connection_error: CaiError | None = None  # once set, no other catalogue is tried: each could take minutes to fail


class Unreachable(CaiError):
    """A catalogue of Pyserini's cannot be reached."""


def read(url: str, timeout: float = 10) -> io.BytesIO:
    """Replace Pyserini's `urlopen`: the contents of a URL. Raises Unreachable or HTTPError."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # noqa: S310
            return io.BytesIO(response.read())
    except HTTPError:
        raise
    except (URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"Pyserini looks names up at {url}, which cannot be reached: {reason}") from None


def define(module: Any, execute: Callable[[Any], None]) -> None:
    """Execute the module that defines the catalogues, without reading them.

    It looks up the entries of some aliases; each gets an entry made of its own name, and the module runs again until it
    misses none.
    """
    names, stock = list[str](), urllib.request.urlopen

    def urlopen(url: Any, *args: Any, **kwargs: Any) -> Any:
        if PREBUILT_INDEXES not in str(url):
            return stock(url, *args, **kwargs)  # of another thread
        return io.StringIO(json.dumps([dict.fromkeys(("name", *FIELDS), name) for name in names]))

    def is_complete() -> bool:
        try:
            execute(module)
        except KeyError as missing:
            if missing.args[0] in names:
                raise
            names.append(missing.args[0])
            return False
        return True

    urllib.request.urlopen = urlopen
    try:
        while not is_complete():
            pass
    finally:
        urllib.request.urlopen = stock
    module.urlopen = read
    for catalogue in vars(module).values():
        if hasattr(catalogue, "_info"):
            catalogue._info = None  # not the entries that were made up
        for source in getattr(catalogue, "_sources", ()):
            if isinstance(source, dict):  # aliases with their entries, instead of names
                catalogue._aliases.update((alias, entry["description"]) for alias, entry in source.items())
                source.clear()
    for kind in {type(catalogue) for catalogue in vars(module).values()}:
        if load := getattr(kind, "_load", None):
            kind._load = partialmethod(_load, load)
        if hasattr(kind, "_resolve_alias"):
            kind.__iter__ = partialmethod(_names, kind.__iter__)


def _names(catalogue: Any, names: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    """The names of a catalogue, without aliases whose entry is missing."""
    for name in names(catalogue):
        resolved = catalogue._resolve_alias(name)
        if any(resolved in source for source in catalogue._sources):
            yield name


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
