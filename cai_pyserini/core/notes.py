"""Lines on standard error that say what goes on, which `--quiet` leaves out."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_quiet = False


@contextmanager
def quiet() -> Iterator[None]:
    """Show only errors: no bars, lines of steps, notes and warnings."""
    global _quiet
    logging.disable(logging.WARNING)
    _quiet = True
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        _quiet = False


def is_quiet() -> bool:
    return _quiet


def note(text: str) -> None:
    """Print a line on standard error, unless it is quiet."""
    if not _quiet:
        print(text, file=sys.stderr)
