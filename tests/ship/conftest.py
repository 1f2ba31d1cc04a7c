"""A run with adaptation, an empty cache of Pyserini's, and a stand-in for a model hub."""

import hashlib
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.beir import plan
from tests.conftest import adapted_experiment
from tests.plugin.conftest import topics

__all__ = ["topics"]
TOKEN = "hf_of_the_tests"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Pyserini's."""
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CAI_PYSERINI_REGISTRY", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def adapted_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with encoders that were adapted in a few steps; not to be changed."""
    experiment = adapted_experiment(tiny, tmp_path_factory.mktemp("adapted"))
    plan.run(experiment, ["bm25", "adapted-splade-idf", "adapted-joint-splade-idf", "adapted-dense"])
    return experiment.output


class Hub(BaseHTTPRequestHandler):
    """The routes of a hub that uploads use. `server.files` maps repository and path to contents."""

    server: Any

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.path.endswith("/commit/main"):
            return self.commit([json.loads(line) for line in body.splitlines()])
        asked = json.loads(body)
        if self.path == "/api/repos/create":
            self.server.repositories.append(asked)
            prefix = "datasets/" if asked.get("type") == "dataset" else ""
            return self.answer({"url": f"{self.server.url}/{prefix}{asked['organization']}/{asked['name']}"})
        if self.path == "/api/validate-yaml":
            self.server.cards.append(asked["content"])
            return self.answer({"errors": [], "warnings": []})
        if self.path.endswith("/preupload/main"):
            modes = {file["path"]: self.mode(file["path"]) for file in asked["files"]}
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            return self.answer({"files": files})
        if self.path.endswith(".git/info/lfs/objects/batch"):
            for item in asked["objects"]:
                item["actions"] = {"upload": {"href": f"{self.server.url}/storage/{item['oid']}"}}
            return self.answer({"transfer": "basic", "objects": asked["objects"]})
        return self.answer({"error": f"no route {self.path}"}, 404)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == f"/storage/{hashlib.sha256(data).hexdigest()}"
        self.server.stored[self.path.rpartition("/")[2]] = data
        self.answer({})

    def mode(self, path: str) -> str:
        return "lfs" if self.server.lfs and path.endswith((".gz", ".safetensors")) else "regular"

    def commit(self, lines: list[dict[str, Any]]) -> None:
        repository = self.path.removeprefix("/api/").removesuffix("/commit/main")
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[repository, value["path"]] = b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[repository, value["path"]] = self.server.stored[value["oid"]]
        url = f"{self.server.url}/{repository.removeprefix('models/')}/commit/{'0' * 40}"
        self.answer({"success": True, "commitOid": "0" * 40, "commitUrl": url})

    def answer(self, data: dict[str, Any], code: int = 200) -> None:
        text = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub() -> Iterator[Any]:
    """A server with the API of a hub; large files take the route of LFS if `lfs` is set."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.repositories, server.cards, server.stored, server.files, server.lfs = [], [], {}, {}, True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
