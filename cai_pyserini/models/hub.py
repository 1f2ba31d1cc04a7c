"""The Hugging Face hub, or the server in $HF_ENDPOINT: downloads, and a remedy for each of its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from huggingface_hub import constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from cai_pyserini.core.errors import CaiError, without_secrets

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class NotOnHubError(CaiError):
    """The hub has no such repository, does not show it, or must not be asked."""


@cache  # so that a process stays with one commit, and asks the hub once
def download(repository: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    """The folder of a model in the hub's cache, with the files of the repository that match `patterns`.

    Missing files are downloaded. Without a connection, a cache that has all files is enough. Raises CaiError as
    `remedies` does.
    """
    with remedies(repository, revision):
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(patterns)))


@contextmanager
def remedies(repository: str, revision: str | None = None) -> Iterator[None]:
    """Raise CaiError in place of the hub's errors about a repository; NotOnHubError if it cannot be found."""
    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of this machine, such as a full disk
            raise
        raise _explained(error, repository, revision) from None


def _explained(error: Exception, repository: str, revision: str | None) -> CaiError:
    is_wrapped = isinstance(error, LocalEntryNotFoundError | RuntimeError)  # RuntimeError: an upload failed
    cause = error.__cause__ if is_wrapped and error.__cause__ else error
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
    page, token = f"{constants.ENDPOINT}/{repository}", get_token()
    reason = without_secrets(str(cause) or type(cause).__name__, token).strip().splitlines()[0]
    match cause:
        case GatedRepoError():
            again = "use a token of the account that has accepted them, with access to gated repositories"
            return CaiError(f"{repository} is gated: accept its terms at {page}, then {again if token else LOGIN}")
        case RepositoryNotFoundError():
            hidden = "your token does not show it" if token else f"it is private: {LOGIN}"
            return NotOnHubError(f"{_host()} has no {repository}: correct the name, or {hidden}")
        case HFValidationError():
            return NotOnHubError(f"{_host()} has no such names ({reason})")
        case RevisionNotFoundError():
            return CaiError(f"{repository} has no revision {revision!r}: {page} lists its branches, tags and commits")
        case OfflineModeIsEnabled():
            return NotOnHubError(
                f"{repository} is not, or not wholly, in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids "
                "downloads: unset it, or copy that folder from a machine that has the files"
            )
    if status == 401:
        return CaiError(f"{_host()} refuses the token in HF_TOKEN or {constants.HF_TOKEN_PATH}: {LOGIN}")
    if status == 403:
        return CaiError(f"{_host()} forbids this with your token ({reason}): use one that may write to {repository}")
    return CaiError(
        f"{repository}: no complete answer from {_host()} ({reason}): check the connection, HTTPS_PROXY and "
        "HF_ENDPOINT, and run the same command again; complete files are kept"
    )


def _host() -> str:
    return constants.ENDPOINT.split("://")[-1]
