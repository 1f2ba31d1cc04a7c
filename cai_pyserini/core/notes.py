"""Lines of progress on standard error, which `--quiet` leaves out, as it does notes and warnings, which are logged."""

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


def progress_line(text: str) -> None:
    """Print a line on standard error, unless it is quiet."""
    if not _quiet:
        print(text, file=sys.stderr)
