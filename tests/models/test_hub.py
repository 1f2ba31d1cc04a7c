"""Downloads from a hub, its failures, and what is said about them."""

import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.hub import NotOnHubError, remedies
from cai_pyserini.models.hub import download as downloaded_once
from tests.hub import OTHER, OWNER, Hub

download = downloaded_once.__wrapped__  # as another process does

PATTERNS = ("*.json", "*.safetensors")
WEIGHTS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]  # in several files, as of large models
FILES = {"config.json": b"{}", WEIGHTS[0]: b"1" * 300_000, WEIGHTS[1]: b"2" * 200_000, "pytorch_model.bin": b"pickle"}


@pytest.fixture
def model(hub: Hub) -> Hub:
    """A hub with the repository org/model."""
    hub.add("org/model", FILES)
    hub.add("org/model", {**FILES, "config.json": b'{"a": 1}'}, revision="refs/pr/1")
    return hub


def test_only_missing_files_are_downloaded(model: Hub) -> None:
    folder = download("org/model", None, PATTERNS)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: data for name, data in FILES.items() if name != "pytorch_model.bin"
    }
    assert (download("org/model", "refs/pr/1", PATTERNS) / "config.json").read_text() == '{"a": 1}'
    del model.requests[:]
    assert download("org/model", None, PATTERNS) == folder
    assert [request for request in model.requests if "/resolve/" in request or "/large/" in request] == []


@pytest.mark.parametrize("fault", ["empty", "stall"])
def test_a_download_that_fails_is_not_taken_for_whole(fault: str, model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither then nor offline; the next try gets the rest."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between tries
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    model.faults[:] = [fault] * 100
    with pytest.raises(
        CaiError, match=r"^org/model: no complete answer from localhost:\d+ \(.+\): check the connection"
    ):
        download("org/model", None, PATTERNS)
    model.faults.clear()
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(
            CaiError, match=r"is not, or not wholly, in .*hub, and HF_HUB_OFFLINE forbids downloads: unset"
        ):
            download("org/model", None, PATTERNS)
    assert (download("org/model", None, PATTERNS) / WEIGHTS[1]).read_bytes() == FILES[WEIGHTS[1]]


def test_what_is_in_the_cache_needs_no_hub(model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download("org/model", None, PATTERNS)
    del model.requests[:]
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert download("org/model", None, PATTERNS) == folder and model.requests == []
        with pytest.raises(CaiError, match="org/other is not, or not wholly, in"):
            download("org/other", None, PATTERNS)
    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost:1")
    assert download("org/model", None, PATTERNS) == folder
    with pytest.raises(CaiError, match=r"^org/other: no complete answer from localhost:1 \(.*refused"):
        download("org/other", None, PATTERNS)


def test_a_token_that_has_expired(model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(CaiError, match=r"refuses the token in HF_TOKEN or .*token: log in with `hf auth login`"):
        download("org/model", None, PATTERNS)


@pytest.mark.parametrize("place", ["HF_TOKEN", "the file"])
def test_a_token_that_an_error_repeats(hub: Hub, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    if place == "HF_TOKEN":
        monkeypatch.setenv(place, OWNER)
    else:
        Path(constants.HF_TOKEN_PATH).write_text(OWNER)
    with pytest.raises(CaiError, match=r"no complete answer .* \(Bearer \*\*\* is wrong\)"), remedies("org/model"):
        raise OSError(f"Bearer {OWNER} is wrong")


def test_a_gated_repository(model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list of files is public, its files are not."""
    model.gated.add("org/model")
    terms = rf"^org/model is gated: accept its terms at {model.endpoint}/org/model, then "
    with pytest.raises(CaiError, match=terms + "log in with `hf auth login`, or set HF_TOKEN$"):
        download("org/model", None, PATTERNS)
    monkeypatch.setenv("HF_TOKEN", OTHER)
    with pytest.raises(CaiError, match=terms + "use a token of the account that has accepted them"):
        download("org/model", None, PATTERNS)
    monkeypatch.delenv("HF_TOKEN")
    Path(constants.HF_TOKEN_PATH).write_text(OWNER)  # as `hf auth login` does
    assert (download("org/model", None, PATTERNS) / WEIGHTS[0]).exists()


@pytest.mark.parametrize(
    "repository, revision, error, message",
    [
        ("org/none", None, NotOnHubError, r"has no org/none: correct the name, or it is private: log in with `hf auth"),
        ("a/b/c", None, NotOnHubError, r"has no such names \(.*a/b/c"),
        ("org/model", "v9", CaiError, r"^org/model has no revision 'v9': http.*/org/model lists its branches"),
    ],
)
def test_what_is_not_there(
    repository: str, revision: str | None, error: type[CaiError], message: str, model: Hub
) -> None:
    with pytest.raises(error, match=message):
        download(repository, revision, PATTERNS)
