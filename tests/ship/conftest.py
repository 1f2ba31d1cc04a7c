"""An empty cache of Pyserini's, and a stand-in for a model hub."""

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.plugin.conftest import topics

__all__ = ["topics"]
TOKEN = "hf_of_the_tests"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Pyserini's."""
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CAI_PYSERINI_REGISTRY", raising=False)
    return tmp_path / "cache"


class Hub(BaseHTTPRequestHandler):
    """The routes of a hub that uploads use. `server.files` maps repository and path to contents."""

    server: Any

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            self.server.repositories.append(asked)
            self.answer({"url": f"{self.server.url}/{asked['organization']}/{asked['name']}"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):  # all files are small enough to be in the commit
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer({"files": modes})
        else:
            repository = self.path.removeprefix("/api/").removesuffix("/commit/main")
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[repository, line["value"]["path"]] = b64decode(line["value"]["content"])
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
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with the API of a hub, which huggingface_hub uses in this process."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.repositories, server.files = [], {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", template.replace("https://huggingface.co", server.url)
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()
