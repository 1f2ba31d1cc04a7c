"""Errors that a user can fix."""

import difflib
import os
from base64 import b64encode
from collections.abc import Iterable

# Environment variables with keys, tokens and USER:PASSWORD.
SECRETS = (
    *("CAI_PYSERINI_API_KEY", "CAI_PYSERINI_MODEL_KEY", "ELASTICSEARCH_API_KEY", "HF_TOKEN", "MILVUS_TOKEN"),
    "OPENSEARCH_AUTH",
)
SHORTEST_SECRET = 4  # characters


class CaiError(Exception):
    """An error that the user can fix. The message names the file, the line and the remedy, and no secrets."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class Unavailable(CaiError):
    """A server that this program needs does not answer, or refuses to; the same request can succeed later."""


def without_secrets(text: str, *others: str | None) -> str:
    """A text, such as the answer of a server that repeats what it was sent, without SECRETS and `others`."""
    for secret in (*others, *map(os.environ.get, SECRETS)):
        parts = [secret, secret.partition(":")[2], b64encode(secret.encode()).decode()] if secret else []
        for part in map(str.strip, parts):
            text = text.replace(part, "***") if len(part) >= SHORTEST_SECRET else text
    return text


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
