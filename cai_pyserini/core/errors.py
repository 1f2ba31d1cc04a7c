"""Errors that a user can fix."""

import difflib
from collections.abc import Iterable


class CaiError(Exception):
    """An error that the user can fix. The message names the file, the line and the remedy."""


class Unavailable(CaiError):
    """A server that this program needs does not answer, or refuses to; the same request can succeed later."""


def require_utf8(text: str, what: str) -> None:
    """Raise CaiError for a text with unpaired surrogates, as Python makes of arguments and input in other encodings."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CaiError(f"{what} {text[:100]!a} is not UTF-8; convert it, as by `iconv -f latin1 -t utf-8`") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X or Y?`, of the most similar known names; empty if none is similar."""
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""
