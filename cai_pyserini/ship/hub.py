"""Uploads to a hub: huggingface.co, or the one that $HF_ENDPOINT names."""

from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import HTTPError  # of the library that this version uses

from cai_pyserini.core.errors import CaiError

Kind = Literal["model", "dataset"]


def file_url(repository: str, filename: str, kind: Kind) -> str:
    """The URL of a file in the main branch of a repository. Raises CaiError for an id that no repository can have."""
    try:
        return hf_hub_url(repository, filename, repo_type=kind)
    except ValueError as error:
        raise CaiError(f"{repository!r} cannot be the id of a repository: {error}") from None


def push(folder: Path, repository: str, kind: Kind, public: bool) -> str:
    """Upload a folder to a repository, created if it does not exist, and return the URL of the commit.

    Raises CaiError where the hub cannot be reached or refuses.
    """
    api = HfApi()
    try:
        api.create_repo(repository, repo_type=kind, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            repo_type=kind,
            folder_path=folder,
            ignore_patterns=["manifest.json"],
            commit_message=f"Ship {folder.resolve().name}",
        )
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CaiError(
            f"{folder} could not be uploaded to {repository} at {api.endpoint}: {reason}; log in with `hf auth login` "
            "or set HF_TOKEN, and run the same command again"
        ) from None
    return str(commit.commit_url)
