"""Pyserini's catalogues of prebuilt indexes, topics and qrels, which it reads from GitHub since version 2.4.

Pyserini looks up two indexes when it is imported, which fails without a network. Here, catalogues are read when a name
is first looked up.
"""

import io
import json
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError, URLError

from cai_pyserini.core.errors import CaiError

PREBUILT_INDEXES = "castorini/prebuilt-indexes"  # the repository of the catalogues
FIELDS = ("description", "filename", "urls", "md5", "size")  # every entry has these


def read(url: str, timeout: float = 10) -> io.BytesIO:
    """Replace Pyserini's `urlopen`: the contents of a URL. Raises CaiError if it cannot be reached, or HTTPError."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # noqa: S310
            return io.BytesIO(response.read())
    except HTTPError:
        raise
    except (URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise CaiError(f"Pyserini looks names up at {url}, which cannot be reached: {reason}") from None


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

    urllib.request.urlopen = urlopen
    try:
        while True:
            try:
                execute(module)
                break
            except KeyError as missing:
                if missing.args[0] in names:
                    raise
                names.append(missing.args[0])
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
