"""The user's registry, and what is downloaded from its entries."""

import hashlib
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.ship import registry
from cai_pyserini.ship.__main__ import main
from cai_pyserini.ship.archive import pack
from cai_pyserini.ship.registry import Entry

pytestmark = pytest.mark.usefixtures("cache")


def write_entry(folder: Path, source: Path, **changes: object) -> Path:
    """Pack a folder as x.y, and write its entry with some changes."""
    folder.mkdir(exist_ok=True)
    archive = folder / "x.y.tar.gz"
    size = pack([source], "x.y", archive)
    sums = {
        name: subprocess.run([f"{name}sum", archive], capture_output=True, text=True, check=True).stdout.split()[0]
        for name in ("md5", "sha256")
    }
    record = {"name": "y", "description": "an index", "filename": archive.name, "readme": "x.y.README.md"}
    record |= {"urls": [archive.name], **sums, "size": archive.stat().st_size, "unpacked_size": size}
    (folder / "entry.json").write_text(json.dumps([record | {"documents": 1} | changes]))
    return folder / "entry.json"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with the manifest of an index, which is all that is looked at here."""

    def write(folder: Path) -> None:
        (folder / "data").write_text("data\n" * 1000)

    return artifact.make(tmp_path / "index", {"stage": "index", "kind": "impact"}, write)


def test_an_entry_is_added_and_its_archive_fetched(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = write_entry(tmp_path / "shipped", index)
    monkeypatch.chdir(tmp_path)
    main(["add", "shipped/entry.json"])
    (added,) = registry.entries().values()
    assert added.urls == [(tmp_path / "shipped" / "x.y.tar.gz").as_uri()]
    assert capsys.readouterr().out == f"y: 0.00 MB, {added.urls[0]}\n{cache / 'cai-registry.json'}\n"
    main(["get", "y"])
    folder = cache / "indexes" / f"x.y.{added.sha256}"
    assert capsys.readouterr().out == f"{folder}\n"
    assert (folder / "data").read_text() == (index / "data").read_text()
    (folder / "data").write_text("")  # as after a power cut
    main(["get", "y"])
    assert (folder / "data").read_text() == (index / "data").read_text()
    shutil.rmtree(entry.parent)  # is not needed again
    main(["get", "y"])
    assert [path.name for path in (cache / "indexes").iterdir()] == [folder.name]


def test_the_place_of_the_registry_can_be_set(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAI_PYSERINI_REGISTRY", str(tmp_path / "mine.json"))
    registry.add(str(write_entry(tmp_path / "shipped", index)))
    assert (tmp_path / "mine.json").is_file() and not (cache / "cai-registry.json").exists()
    monkeypatch.delenv("CAI_PYSERINI_REGISTRY")
    monkeypatch.delenv("PYSERINI_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry.registry_path() == tmp_path / ".cache" / "pyserini" / "cai-registry.json"


def test_entries_of_the_same_name_are_replaced(index: Path, tmp_path: Path) -> None:
    for name, description in (("y", "old"), ("z", "other"), ("y", "new")):
        registry.add(str(write_entry(tmp_path / "shipped", index, name=name, description=description)))
    assert {name: entry.description for name, entry in registry.entries().items()} == {"y": "new", "z": "other"}
    with pytest.raises(CaiError, match=r"cai-registry\.json has no x \(y, z\): add it"):
        registry.find("x")


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"urls": ["http://example.org/x.y.tar.gz"]},
            "expected a URL that begins with https:// or file://, not http://example",
        ),
        ({"urls": ["ftp://example.org/x.y.tar.gz"]}, "expected a URL"),
        ({"urls": []}, "entry 1: urls"),
        ({"name": "../y"}, "entry 1: name"),
        ({"name": ".y"}, "entry 1: name"),
        ({"filename": "../x.tar.gz"}, "entry 1: filename"),
        ({"filename": "x.zip"}, "entry 1: filename"),
        ({"md5": "0"}, "entry 1: md5"),
        ({"sha256": "0" * 32}, "entry 1: sha256"),
        ({"sha256": "../" * 21 + "x"}, "entry 1: sha256"),
        ({"size": "10"}, "entry 1: size: '10'"),
        ({"unpacked_size": 0}, "entry 1: unpacked_size"),
        ({"color": "red"}, "entry 1: unknown key color"),
    ],
)
def test_a_wrong_entry_is_refused(changes: dict, message: str, index: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=message):
        registry.add(str(write_entry(tmp_path / "shipped", index, **changes)))
    assert not cache.exists()


@pytest.mark.parametrize(
    "text, message", [("[", "not JSON"), ("{}", "expected a list of entries"), ("[1]", "expected a list")]
)
def test_a_broken_registry_is_named(text: str, message: str, cache: Path) -> None:
    cache.mkdir()
    (cache / "cai-registry.json").write_text(text)
    with pytest.raises(CaiError, match=rf"cache/cai-registry\.json: {message}"):
        registry.entries()


def test_an_entry_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"nothing\.json: cannot be read \(.*No such file"):
        registry.add(str(tmp_path / "nothing.json"))


@pytest.mark.parametrize(
    "source", ["http://example.org/e.json", "ftp://example.org/e.json", "HTTPS://example.org/e.json"]
)
def test_only_https_and_files_are_read(source: str) -> None:
    with pytest.raises(CaiError, match=f"{source}: cannot be read .*neither with https:// nor with file://"):
        registry.add(source)


def test_a_url_that_is_none_is_an_error(index: Path, tmp_path: Path) -> None:
    wrong = "https://[x/y.tar.gz"
    with pytest.raises(CaiError, match=r"cannot be read .*Invalid IPv6"):
        registry.add(wrong)
    with pytest.raises(CaiError, match=r"entry\.json: cannot be read .*Invalid IPv6"):
        registry.add(str(write_entry(tmp_path / "shipped", index, urls=[wrong])))
    (entry,) = registry.add(str(write_entry(tmp_path / "shipped", index)))
    with pytest.raises(CaiError, match=r"cannot be downloaded .*Invalid IPv6"):
        registry.fetch(entry.replace(urls=[wrong]))


def broken(archive: Path, entry: Entry) -> Entry:
    archive.write_bytes(archive.read_bytes()[:-1] + b"?")
    return entry


def with_the_same_md5(archive: Path, entry: Entry) -> Entry:
    """As anybody can make one: here the entry is changed instead."""
    archive.write_bytes(archive.read_bytes()[:-1] + b"?")
    return entry.replace(md5=hashlib.md5(archive.read_bytes()).hexdigest())


def truncated(archive: Path, entry: Entry) -> Entry:
    archive.write_bytes(archive.read_bytes()[:100])
    return entry


def lengthened(archive: Path, entry: Entry) -> Entry:
    archive.write_bytes(archive.read_bytes() + bytes(10**7))
    return entry


def missing(archive: Path, entry: Entry) -> Entry:
    archive.unlink()
    return entry


def larger_inside(archive: Path, entry: Entry) -> Entry:
    return entry.replace(unpacked_size=entry.unpacked_size - 1)


def another_folder(archive: Path, entry: Entry) -> Entry:
    archive.rename(archive.with_name("z.tar.gz"))
    return entry.replace(filename="z.tar.gz", urls=[archive.with_name("z.tar.gz").as_uri()])


@pytest.mark.parametrize(
    "change, message",
    [
        (broken, r"x\.y\.tar\.gz: refused, as it has [\d,]+ bytes with SHA-256 \w+; its entry says"),
        (with_the_same_md5, r"refused, as it has [\d,]+ bytes with SHA-256 \w{64}; its entry says"),
        (truncated, "refused, as it has 100 bytes"),
        (lengthened, "refused, as it has more; its entry says"),
        (missing, r"cannot be downloaded \(.*No such file"),
        (larger_inside, "uncompresses to more than"),
        (another_folder, r"'x\.y', which is outside its folder z"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(change, message: str, index: Path, cache: Path, tmp_path: Path) -> None:
    (entry,) = registry.add(str(write_entry(tmp_path / "shipped", index)))
    with pytest.raises(CaiError, match=message):
        registry.fetch(change(tmp_path / "shipped" / "x.y.tar.gz", entry))
    assert list((cache / "indexes").iterdir()) == []


def test_an_archive_without_an_index_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data").touch()
    (entry,) = registry.add(str(write_entry(tmp_path / "shipped", tmp_path / "folder")))
    with pytest.raises(CaiError, match=r"x\.y is missing or unfinished"):
        registry.fetch(entry)
    assert list((cache / "indexes").iterdir()) == []


def test_the_next_url_is_tried(index: Path, tmp_path: Path) -> None:
    urls = [(tmp_path / "nowhere" / "x.y.tar.gz").as_uri(), "x.y.tar.gz"]
    (entry,) = registry.add(str(write_entry(tmp_path / "shipped", index, urls=urls)))
    assert (registry.fetch(entry) / "data").is_file()


class Redirecting(SimpleHTTPRequestHandler):
    """Files, and redirections of /to/URL."""

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if not self.path.startswith("/to/"):
            return super().do_GET()
        self.send_response(302)
        self.send_header("Location", self.path.removeprefix("/to/"))
        return self.end_headers()


def serve(folder: Path, context: ssl.SSLContext | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("localhost", 0), partial(Redirecting, directory=str(folder)))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http{'s' if context else ''}://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[str]:
    yield from serve(tmp_path / "shipped")


@pytest.fixture
def https(tmp_path: Path) -> Iterator[str]:
    """With a certificate of this machine, which has to be trusted first."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    request += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(request, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    yield from serve(tmp_path / "shipped", context)


def test_over_https(index: Path, https: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry(tmp_path / "shipped", index)
    with pytest.raises(CaiError, match="CERTIFICATE_VERIFY_FAILED"):
        registry.add(f"{https}/entry.json")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert registry.add(f"{https}/to/{https}/entry.json")
    (entry,) = registry.add(f"{https}/entry.json")
    assert entry.urls == [f"{https}/x.y.tar.gz"]
    assert (registry.fetch(entry) / "data").read_text() == (index / "data").read_text()


def test_https_does_not_lead_to_http_or_to_files(
    index: Path, http: str, https: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    path = write_entry(tmp_path / "shipped", index)
    with pytest.raises(CaiError, match=f"cannot be read .*it redirects to {http}/entry.json, which is not https"):
        registry.add(f"{https}/to/{http}/entry.json")
    (entry,) = registry.add(f"{https}/entry.json")
    with pytest.raises(CaiError, match=f"cannot be downloaded .*it redirects to {http}/x.y.tar.gz, which is not https"):
        registry.fetch(entry.replace(urls=[f"{https}/to/{http}/x.y.tar.gz"]))
    archive = path.with_name("x.y.tar.gz").as_uri()
    write_entry(tmp_path / "shipped", index, urls=[archive])
    with pytest.raises(CaiError, match=f"entry.json: expected a URL that begins with https://, not {archive}"):
        registry.add(f"{https}/entry.json")
