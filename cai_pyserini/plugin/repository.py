"""Repositories on the hub: a model's for an encoder, a dataset's for an index.

A repository holds one encoder or one index; its history has the earlier ones.
"""

from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, DatasetCardData, HfApi, get_token

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import SUFFIXES
from cai_pyserini.models.hub import LOGIN, NotOnHubError, download, remedies
from cai_pyserini.plugin import registry

CARD = "README.md"  # the page of a repository
TAGS = ["information-retrieval", "lucene", "pyserini", "cai-pyserini"]
REPLACED = (*SUFFIXES, ".yaml", ".npz", registry.SUFFIX)  # deleted by a push that does not write them
ENCODER = ("encoder.yaml", *(f"*{suffix}" for suffix in (*SUFFIXES, ".npz", ".py")))  # code runs only if trusted


def push(folder: Path, repository: str, private: bool = False) -> str:
    """Upload a folder that `ship_encoder` or `ship_index` has written, in one commit, and return the commit's URL.

    The repository is created if it is missing. Files of an earlier push that this one lacks are deleted. Raises
    CaiError for other folders, without a token, if `private` and the repository is public, and as `hub.remedies` does.
    """
    manifest = artifact.require(folder, "ship")
    if get_token() is None:
        raise CaiError(f"pushing to {repository} needs a token that may write there: {LOGIN}")
    files: dict[str, Path | bytes] = {name: folder / name for name in manifest.files}
    is_encoder = "encoder.yaml" in files
    kind, page = ("model", repository) if is_encoder else ("dataset", f"datasets/{repository}")
    if not is_encoder:
        (readme,) = (name for name in files if name.endswith(CARD))
        files[CARD] = _index_card(folder / readme, repository)
        del files[readme]
    api = HfApi()
    with remedies(page):
        api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        if private and not api.repo_info(repository, repo_type=kind).private:
            raise CaiError(f"{page} exists and is public: make it private in its settings, or push without --private")
        there = api.list_repo_files(repository, repo_type=kind)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationDelete(name) for name in there if name.endswith(REPLACED) and name not in files),
            *(CommitOperationAdd(name, content) for name, content in files.items()),
        ]
        message = f"{folder.resolve().name}, by cai_pyserini"
        return str(api.create_commit(repository, operations, commit_message=message, repo_type=kind).commit_url)


def _index_card(readme: Path, repository: str) -> bytes:
    metadata = DatasetCardData(tags=TAGS, viewer=False).to_yaml()  # no viewer: an archive has no rows
    use = f"`cai-pyserini ship pull {repository}` downloads it and adds it to the registry."
    return f"---\n{metadata}\n---\n\n{use}\n\n{readme.read_text(encoding='utf-8')}".encode()


def pull(repository: str, revision: str | None = None) -> Path:
    """Download what was pushed to a repository, and return its folder.

    An index goes where `registry.fetch` puts it, checked in the same way, and its entry, with the commit, to the
    registry. An encoder goes to the hub's cache. Raises CaiError for other repositories, and as `hub.remedies` does.
    """
    page = f"datasets/{repository}"
    try:
        with remedies(page, revision):
            info = HfApi().dataset_info(repository, revision=revision)
    except NotOnHubError:
        return _pull_encoder(repository, revision)
    entries = [file.rfilename for file in info.siblings or () if file.rfilename.endswith(".json")]
    base = f"hf://{page}@{info.sha}"
    if len(entries) != 1:
        raise CaiError(f"{page} has {len(entries)} JSON files, not one with the entry of an index, as `ship push` does")
    with remedies(page, revision), registry.open_url(f"{base}/{entries[0]}") as file:
        parsed = registry.parse_entries(file.read(registry.MAX_BYTES), f"{base}/{entries[0]}")
    if len(parsed) != 1:
        raise CaiError(f"{base}/{entries[0]} has {len(parsed)} entries, not one: add them with `ship add`")
    entry = parsed[0].replace(urls=[f"{base}/{parsed[0].filename}"])
    folder = registry.fetch(entry)
    registry.save([entry])
    return folder


def _pull_encoder(repository: str, revision: str | None) -> Path:
    folder = download(repository, revision, ENCODER)
    if not (folder / "encoder.yaml").is_file():
        raise CaiError(f"{repository} has no encoder.yaml, so nothing to pull: use it as `--encoder {repository}`")
    return folder
