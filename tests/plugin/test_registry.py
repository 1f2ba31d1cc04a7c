"""The user's registry, and downloads from its entries."""

import hashlib
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cai_pyserini.cli.ship import main
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin import registry
from cai_pyserini.plugin.index import pack
from cai_pyserini.plugin.registry import Entry
from tests.servers import Handler, answering

pytestmark = pytest.mark.usefixtures("cache")


def write_entry(folder: Path, source: Path, **changes: object) -> Path:
    """Pack a folder as x.y, and write its entry with some changes."""
    folder.mkdir(exist_ok=True)
    archive = folder / "x.y.tar.gz"
    size = pack([source], "x.y", archive)
    sums = {name: hashlib.new(name, archive.read_bytes()).hexdigest() for name in ("md5", "sha256")}
    record = {"name": "y", "description": "an index", "filename": archive.name, "readme": "x.y.README.md"}
    record |= {"urls": [archive.name], **sums, "size": archive.stat().st_size, "unpacked_size": size}
    (folder / "entry.json").write_text(json.dumps([record | {"documents": 1} | changes]))
    return folder / "entry.json"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with only the manifest of an index."""

    def write(folder: Path) -> None:
        (folder / "data").write_text("data\n" * 1000)

    return artifact.make(tmp_path / "index", {"stage": "index", "kind": "impact"}, write)


def test_an_entry_is_added_and_its_archive_fetched(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = write_entry(tmp_path / "shipped", index, urls=["nowhere/x.y.tar.gz", "x.y.tar.gz"])
    monkeypatch.chdir(tmp_path)
    main(["add", "shipped/entry.json"])
    (added,) = registry.entries().values()
    assert added.urls == [(tmp_path / "shipped" / name).as_uri() for name in ("nowhere/x.y.tar.gz", "x.y.tar.gz")]
    assert capsys.readouterr().out == f"y: 0.00 MB, {added.urls[0]}\n{cache / 'cai-registry.json'}\n"
    main(["get", "y"])
    folder = cache / "indexes" / f"x.y.{added.sha256}"
    assert capsys.readouterr().out == f"{folder}\n"
    assert (folder / "data").read_text() == (index / "data").read_text()
    (folder / "data").write_text("")  # as after a power cut
    main(["get", "y"])
    assert (folder / "data").read_text() == (index / "data").read_text()
    shutil.rmtree(entry.parent)  # not needed again
    main(["get", "y"])
    assert [path.name for path in (cache / "indexes").iterdir()] == [folder.name]


def test_entries_of_the_same_name_are_replaced(index: Path, tmp_path: Path) -> None:
    for name, description in (("y", "old"), ("z", "other"), ("y", "new")):
        registry.add(str(write_entry(tmp_path / "shipped", index, name=name, description=description)))
    assert {name: entry.description for name, entry in registry.entries().items()} == {"y": "new", "z": "other"}
    with pytest.raises(CaiError, match=r"cai-registry\.json has no x \(y, z\): add it"):
        registry.find("x")


def test_entries_added_concurrently_are_all_kept(index: Path, cache: Path, tmp_path: Path) -> None:
    """A registry that is a link stays a link."""
    (tmp_path / "elsewhere").mkdir()
    cache.mkdir()
    (cache / "cai-registry.json").symlink_to(tmp_path / "elsewhere" / "registry.json")
    sources = [str(write_entry(tmp_path / name, index, name=name)) for name in "abcdefgh"]
    with ThreadPoolExecutor(len(sources)) as threads:
        list(threads.map(registry.add, sources))
    assert sorted(registry.entries()) == [*"abcdefgh"] and (cache / "cai-registry.json").is_symlink()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"urls": ["http://example.org/x.y.tar.gz"]}, "expected a URL that begins with https:// or file://, not http:"),
        ({"urls": ["https://[x/y.tar.gz"]}, "cannot be read .*Invalid IPv6"),
        ({"urls": []}, r"0\.urls: List should have at least 1 item"),
        ({"name": "../y"}, r"0\.name: String should match"),
        ({"name": ".y"}, r"0\.name"),
        ({"filename": "../x.tar.gz"}, r"0\.filename"),
        ({"sha256": "../" * 21 + "x"}, r"0\.sha256"),
        ({"size": "10"}, r"0\.size: Input should be a valid integer"),
        ({"color": "red"}, r"0\.color: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_entry_is_refused(changes: dict, message: str, index: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=rf"entry\.json: .*{message}"):
        registry.add(str(write_entry(tmp_path / "shipped", index, **changes)))
    assert not cache.exists()


def test_a_folder_is_no_file_of_entries(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"is a folder: give the file in it that `ship index` has written"):
        registry.add(str(tmp_path))


@pytest.mark.parametrize("text", ["[", "{}", "[1]"])
def test_a_broken_registry_is_named(text: str, cache: Path) -> None:
    cache.mkdir()
    (cache / "cai-registry.json").write_text(text)
    with pytest.raises(CaiError, match=r"cache/cai-registry\.json: not a list of registry entries"):
        registry.entries()


@pytest.mark.parametrize(
    "source, message",
    [
        ("nothing.json", "No such file"),
        ("http://example.org/e.json", "only https:// and file:// are read"),
        ("ftp://example.org/e.json", "only https:// and file:// are read"),
        ("https://[x/e.json", "Invalid IPv6"),
    ],
)
def test_what_cannot_be_read_is_named(source: str, message: str) -> None:
    with pytest.raises(CaiError, match=rf"{re.escape(source)}: cannot be read \(.*{message}"):
        registry.add(source)


Change = Callable[[Path, Entry], Entry]


def with_data(change: Callable[[bytes], bytes]) -> Change:
    """Change the archive; its entry has the new MD5, which anybody can forge."""

    def changed(archive: Path, entry: Entry) -> Entry:
        archive.write_bytes(change(archive.read_bytes()))
        return entry.replace(md5=hashlib.md5(archive.read_bytes()).hexdigest())

    return changed


def renamed(archive: Path, entry: Entry) -> Entry:
    archive.rename(archive.with_name("z.tar.gz"))
    return entry.replace(filename="z.tar.gz", urls=[archive.with_name("z.tar.gz").as_uri()])


@pytest.mark.parametrize(
    "change, message",
    [
        (with_data(lambda data: data[:-1] + b"?"), r"gz: refused, as it is not the [\d,]+ bytes with SHA-256"),
        (with_data(lambda data: data[:100]), "refused, as it is not"),
        (with_data(lambda data: data + bytes(10**7)), "refused, as it is not"),
        (lambda archive, entry: entry.replace(urls=["file:///no/x.tar.gz"]), r"cannot be downloaded \(.*No such file"),
        (lambda archive, entry: entry.replace(urls=["https://[x/y.tar.gz"]), r"cannot be downloaded \(.*IPv6"),
        (lambda archive, entry: entry.replace(unpacked_size=4999), "has more than the 4,999 bytes of its entry"),
        (renamed, r"'x\.y' is no regular file or folder in z"),
        (
            lambda archive, entry: entry.replace(unpacked_size=10**18),
            r"needs 1,000,000,000\.0 GB .* set PYSERINI_CACHE",
        ),
    ],
    ids=["changed", "truncated", "longer", "missing", "malformed", "larger inside", "another folder", "too large"],
)
def test_a_refused_archive_leaves_nothing_behind(
    change: Change, message: str, index: Path, cache: Path, tmp_path: Path
) -> None:
    (entry,) = registry.add(str(write_entry(tmp_path / "shipped", index)))
    with pytest.raises(CaiError, match=message):
        registry.fetch(change(tmp_path / "shipped" / "x.y.tar.gz", entry))
    assert list((cache / "indexes").iterdir()) == []


def test_what_is_no_index_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data").touch()
    (entry,) = registry.add(str(write_entry(tmp_path / "shipped", tmp_path / "folder")))
    with pytest.raises(CaiError, match=r"x\.y has no manifest"):
        registry.fetch(entry)
    assert list((cache / "indexes").iterdir()) == []


class Redirecting(Handler, SimpleHTTPRequestHandler):
    """Files, and redirections of /to/URL."""

    def do_GET(self) -> None:
        if not self.path.startswith("/to/"):
            return super().do_GET()
        return self.answer(302, headers={"Location": self.path.removeprefix("/to/")})


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """The URLs of an https server, whose certificate is trusted, and of an http server of the same files."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    request += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(request, check=True, capture_output=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure, plain = (
        ThreadingHTTPServer(("localhost", 0), partial(Redirecting, directory=str(tmp_path / "shipped")))
        for _ in range(2)
    )
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    with answering(secure), answering(plain):
        yield f"https://localhost:{secure.server_port}", f"http://localhost:{plain.server_port}"


@pytest.mark.slow
def test_https_leads_neither_to_http_nor_to_files(
    index: Path, servers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    https, http = servers
    path = write_entry(tmp_path / "shipped", index)
    assert registry.add(f"{https}/to/{https}/entry.json")
    (entry,) = registry.add(f"{https}/entry.json")
    assert entry.urls == [f"{https}/x.y.tar.gz"]
    refused = "only https:// and file:// are read; .*"
    for target in (f"{http}/entry.json", path.as_uri()):
        with pytest.raises(CaiError, match=f"cannot be read .*{refused}{target}"):
            registry.add(f"{https}/to/{target}")
    with pytest.raises(CaiError, match=f"cannot be downloaded .*{refused}{http}/x.y.tar.gz"):
        registry.fetch(entry.replace(urls=[f"{https}/to/{http}/x.y.tar.gz"]))
    assert (registry.fetch(entry) / "data").read_text() == (index / "data").read_text()
    archive = path.with_name("x.y.tar.gz").as_uri()
    write_entry(tmp_path / "shipped", index, urls=[archive])
    for source in (f"{https}/entry.json", https.replace("https", "HTTPS") + "/entry.json"):
        with pytest.raises(CaiError, match=f"entry.json: expected a URL that begins with https://, not {archive}"):
            registry.add(source)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(CaiError, match="CERTIFICATE_VERIFY_FAILED"):
        registry.add(f"{https}/entry.json")
