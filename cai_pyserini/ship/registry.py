"""The registry: prebuilt indexes that Pyserini finds by name when our plugin is registered.

It is a JSON file of the user's, in the format of Pyserini's own registries: a list of entries. Its place is
$CAI_PYSERINI_REGISTRY, or else cai-registry.json in Pyserini's cache, which is $PYSERINI_CACHE or ~/.cache/pyserini.
Indexes are unpacked to the folder `indexes` of that cache.

What comes over the network comes over https, redirections included, and must have the size and SHA-256 of its entry.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import HTTPRedirectHandler, build_opener

from pydantic import Field

from cai_pyserini.core import artifact
from cai_pyserini.core.cache import cache_home, cached_index
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Settings, build
from cai_pyserini.core.terminal import progress
from cai_pyserini.ship.archive import unpack

SUFFIX = ".tar.gz"
REMOTE, LOCAL = "https://", "file://"
TIMEOUT = 60  # seconds without an answer
LARGEST = 1 << 20  # bytes of a file of entries
CHUNK = 1 << 20

Name = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # neither a path nor hidden


class Entry(Settings):
    """A prebuilt index. The keys are Pyserini's, but for `sha256` and `unpacked_size`."""

    name: Name
    description: str
    filename: Annotated[str, Field(pattern=r"^\w[\w.+-]*\.tar\.gz$")]  # of an archive with one folder of that name
    readme: str
    urls: list[str] = Field(min_length=1)  # of the archive; relative ones are relative to the file with the entry
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # for Pyserini; anybody can make a second file of the same
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: int = Field(gt=0)  # bytes of the archive
    unpacked_size: int = Field(gt=0)  # bytes of the tar in the archive
    documents: int
    unique_terms: int | None = None
    total_terms: int | None = None

    @property
    def folder(self) -> str:
        """The name of the folder in the archive."""
        return self.filename.removesuffix(SUFFIX)


def registry_path() -> Path:
    """The user's registry."""
    return Path(os.environ.get("CAI_PYSERINI_REGISTRY") or cache_home() / "cai-registry.json")


def to_json(entries: Sequence[Entry]) -> str:
    """Entries as the text of a registry."""
    return json.dumps([entry.model_dump(exclude_none=True) for entry in entries], indent=1) + "\n"


def parse_entries(text: str | bytes, where: str) -> list[Entry]:
    """The entries of a registry. Raises CaiError, beginning with `where`, for anything else."""
    try:
        records = json.loads(text)
    except ValueError as error:
        raise CaiError(f"{where}: not JSON ({error})") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise CaiError(f"{where}: expected a list of entries, [{{…}}, …]")
    return [build(Entry, record, f"{where}: entry {number}") for number, record in enumerate(records, 1)]


def entries() -> dict[str, Entry]:
    """The entries of the user's registry, by name."""
    path = registry_path()
    return {entry.name: entry for entry in parse_entries(path.read_bytes(), str(path))} if path.is_file() else {}


def find(name: str) -> Entry:
    """The entry of a name. Raises CaiError if the registry has none."""
    known = entries()
    if name not in known:
        raise CaiError(f"{registry_path()} has no {name} ({', '.join(sorted(known)) or 'it has no entries'}): add it")
    return known[name]


def add(source: str) -> list[Entry]:
    """Add the entries of a file or https URL to the user's registry; they replace those of the same name.

    Raises CaiError for an entry with a URL that is not https, or, in a file, a file's.
    """
    url = source if "://" in source else Path(source).absolute().as_uri()
    allowed = (REMOTE,) if url.startswith(REMOTE) else (REMOTE, LOCAL)
    try:
        with _open(url) as response:
            found = parse_entries(response.read(LARGEST), source)
        added = [entry.replace(urls=[urljoin(url, place) for place in entry.urls]) for entry in found]
    except (OSError, HTTPException, ValueError) as error:  # ValueError for a URL that is none
        raise CaiError(f"{source}: cannot be read ({error})") from None
    if wrong := [place for entry in added for place in entry.urls if not place.startswith(allowed)]:
        raise CaiError(f"{source}: expected a URL that begins with {' or '.join(allowed)}, not {wrong[0]}")
    merged = entries() | {entry.name: entry for entry in added}
    artifact.write_text(registry_path(), to_json(list(merged.values())))
    return added


class _OnlyHttps(HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(REMOTE):
            raise URLError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> Any:
    """The contents of a file or https URL, as a file."""
    if not url.startswith((REMOTE, LOCAL)):
        raise URLError("it begins neither with https:// nor with file://")
    return build_opener(_OnlyHttps).open(url, timeout=TIMEOUT)


def fetch(entry: Entry) -> Path:
    """The folder of a prebuilt index, downloaded and unpacked if it is not there yet.

    Raises CaiError for an archive that cannot be downloaded, has another size or checksum than the entry, or is
    refused by `unpack`; nothing is left behind then.
    """

    def get(work: Path) -> Path:
        archive = work / entry.filename
        _download(entry, archive)
        return unpack(archive, entry.folder, entry.unpacked_size, work / "unpacked")

    return cached_index(f"{entry.folder}.{entry.sha256}", get)


def _download(entry: Entry, output: Path) -> None:
    """Download an archive from the first URL that has it."""
    errors = []
    for url in entry.urls:
        try:
            _copy(url, output, entry)
        except (OSError, HTTPException, ValueError) as error:
            errors.append(f"{url}: cannot be downloaded ({error})")
            continue
        size = output.stat().st_size
        with output.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if (size, sha256) == (entry.size, entry.sha256):
            return
        what = f"{size:,} bytes with SHA-256 {sha256}" if size <= entry.size else "more"
        expected = f"{entry.size:,} bytes with SHA-256 {entry.sha256}"
        errors.append(f"{url}: refused, as it has {what}; its entry says {expected}")
    raise CaiError("\n".join(errors))


def _copy(url: str, output: Path, entry: Entry) -> None:
    """Copy no more than the size of an entry and one chunk."""
    with (
        progress(range(0), entry.size, f"download {entry.name}", "B") as bar,
        _open(url) as response,
        output.open("wb") as file,
    ):
        while file.tell() <= entry.size and (chunk := response.read(CHUNK)):
            bar.update(file.write(chunk))
