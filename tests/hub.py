"""A server that speaks the API of the Hugging Face hub as huggingface_hub uses it: files, revisions, tokens, commits.

Large files are redirected to, and uploaded to, another path by their SHA-256, as those of Git LFS. Xet is not spoken.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers import Handler, answering

Files = dict[str, bytes]
OWNER, OTHER = "hf_owner", "hf_other"  # tokens; OWNER may do everything
LARGE = (".safetensors", ".gz", ".npz")
API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+|[^/]+)(?:/(revision|tree|preupload|commit)/([^/]+))?")
RESOLVE = re.compile(r"/(datasets/)?(.+?)/resolve/([^/]+)/(.+)")
BATCH = re.compile(r"/(datasets/)?(.+?)\.git/info/lfs/objects/batch")


class Hub(ThreadingHTTPServer):
    """Repositories by kind and name, with their files by revision."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("localhost", 0), _Handler)
        self.endpoint = f"http://localhost:{self.server_port}"
        self.repositories: dict[tuple[str, str], dict[str, Files]] = {}
        self.gated: set[str] = set()  # repositories whose files only OWNER may read
        self.private: set[str] = set()  # repositories that only OWNER may see
        self.stored: Files = {}  # large files by SHA-256
        self.requests: list[str] = []
        self.faults: list[str] = []  # of the next answers with a large file: cut, empty, stall
        self.closing = threading.Event()

    def add(self, name: str, files: Mapping[str, bytes], kind: str = "models", revision: str = "main") -> str:
        """Set the files of a revision, and return its commit."""
        self.repositories.setdefault((kind, name), {})[revision] = dict(files)
        self.stored |= {_sha256(data): data for file, data in files.items() if file.endswith(LARGE)}
        return _commit(files)

    def add_folder(self, name: str, folder: Path, kind: str = "models") -> str:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.add(name, files, kind)


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    with answering(Hub()) as hub:
        yield hub
        hub.closing.set()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _commit(files: Mapping[str, bytes]) -> str:
    return hashlib.sha1(
        json.dumps([[name, _sha256(data)] for name, data in sorted(files.items())]).encode()
    ).hexdigest()


class _Handler(Handler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        path = urlsplit(self.path).path
        if self._is_refused():
            return
        if found := API.fullmatch(path):
            self._api(*found.groups())
        elif found := RESOLVE.fullmatch(path):
            self._resolve(*found.groups())
        elif self._token():
            self._error(400, "", "Only one auth mechanism allowed")  # the path is signed
        elif path.startswith("/large/"):
            self._send_large(self.server.stored[path.removeprefix("/large/")])
        else:
            self._error(404, "", "Not found")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        body = self.body()
        path = urlsplit(self.path).path
        if self._is_refused():
            return
        if path == "/api/validate-yaml":
            self._json({})
        elif self._token() != OWNER:
            message = "You don't have the rights to create a model" if self._token() else ""
            self._error(403 if self._token() else 401, "", message)
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := BATCH.fullmatch(path):
            self._json({"objects": [self._upload_of(item) for item in json.loads(body)["objects"]]})
        elif (found := API.fullmatch(path)) and found[3] == "preupload":
            modes = [
                (file["path"], "lfs" if file["path"].endswith(LARGE) else "regular")
                for file in json.loads(body)["files"]
            ]
            self._json({"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes]})
        elif found:
            self._commit(found[1], found[2], [json.loads(line) for line in body.splitlines()])

    def do_PUT(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.stored[self.path.removeprefix("/large/")] = self.body()
        self._json({})

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _is_refused(self) -> bool:
        """Send an error for an unknown token."""
        if self._token() in ("", OWNER, OTHER):
            return False
        self._error(401, "", "Invalid credentials in Authorization header")
        return True

    def _files(self, kind: str, name: str, revision: str | None) -> Files | None:
        """The files of a revision; None after an error was sent."""
        revisions = self.server.repositories.get((kind, name))
        if revisions is None or (name in self.server.private and self._token() != OWNER):
            self._error(404 if self._token() else 401, "RepoNotFound", "Repository not found")
            return None
        by_commit = {_commit(files): files for files in revisions.values()}
        files = (revisions | by_commit).get(unquote(revision or "main"))
        if files is None:
            self._error(404, "RevisionNotFound", "Invalid rev id")
        return files

    def _api(self, kind: str, name: str, what: str | None, revision: str | None) -> None:
        if (files := self._files(kind, name, revision)) is None:
            return
        if what == "tree":
            self._json(
                [{"type": "file", "path": path, "oid": "0" * 40, "size": len(data)} for path, data in files.items()]
            )
        else:
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            flags = {"gated": name in self.server.gated, "private": name in self.server.private}
            self._json({"id": name, "sha": _commit(files), "siblings": siblings} | flags)

    def _resolve(self, dataset: str | None, name: str, revision: str, path: str) -> None:
        if (files := self._files("datasets" if dataset else "models", name, revision)) is None:
            return
        if name in self.server.gated and self._token() != OWNER:
            self._error(403 if self._token() else 401, "GatedRepo", f"Access to model {name} is restricted.")
        elif (data := files.get(unquote(path))) is None:
            self._error(404, "EntryNotFound", "Entry not found")
        elif path.endswith(LARGE):
            headers = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{_sha256(data)}"'}
            location = f"http://127.0.0.1:{self.server.server_port}/large/{_sha256(data)}"  # of another host
            self._send(302, b"", {"X-Repo-Commit": _commit(files), "Location": location} | headers)
        else:
            self._send(200, data, {"X-Repo-Commit": _commit(files), "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})

    def _send_large(self, data: bytes) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        fault = self.server.faults.pop(0) if self.server.faults and self.command == "GET" else ""
        self._send(206 if start else 200, data[start:], headers, fault)

    def _create(self, wanted: dict) -> None:
        key = (f"{wanted.get('type', 'model')}s", f"{wanted['organization']}/{wanted['name']}")
        url = {"url": f"{self.server.endpoint}/{'datasets/' * (key[0] == 'datasets')}{key[1]}"}
        if key in self.server.repositories:
            return self._send(409, json.dumps(url).encode(), {})
        self.server.repositories[key] = {"main": {".gitattributes": b""}}
        if wanted.get("visibility") == "private":
            self.server.private.add(key[1])
        self._json(url)

    def _upload_of(self, item: dict) -> dict:
        return item | {"actions": {"upload": {"href": f"{self.server.endpoint}/large/{item['oid']}"}}}

    def _commit(self, kind: str, name: str, operations: list[dict]) -> None:
        files = dict(self.server.repositories[kind, name]["main"])
        for operation in operations[1:]:
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = self.server.add(name, files, kind)
        url = f"{self.server.endpoint}/{'datasets/' * (kind == 'datasets')}{name}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], fault: str = "") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: {"": len(data), "cut": len(data) // 2, "empty": 0, "stall": 1}[fault]])
        if fault == "stall":
            self.server.closing.wait()
        self.close_connection = self.close_connection or bool(fault)
