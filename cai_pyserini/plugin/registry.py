"""The registry: prebuilt indexes that Pyserini finds by name when our plugin is registered.

It is a list of entries in a JSON file, in the format of Pyserini's own registries: $CAI_PYSERINI_REGISTRY, or else
cai-registry.json in Pyserini's cache. Archives come from files, over https, redirections included, or from a hub
(hf://datasets/ORG/NAME@COMMIT/FILE), must have the size and SHA-256 of their entry, and are unpacked to the folder
`indexes` of the cache.
"""

import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from shutil import disk_usage
from typing import Annotated, Any, Self
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

import fsspec
import requests
from huggingface_hub.errors import HTTPError as HubError
from pydantic import Field, TypeAdapter, ValidationError
from requests.exceptions import InvalidSchema
from urllib3.exceptions import HTTPError

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import cache_home
from cai_pyserini.core.lock import alone_in
from cai_pyserini.core.settings import Settings
from cai_pyserini.core.terminal import progress

SUFFIX = ".tar.gz"
TIMEOUT = 60  # seconds to wait for a response
MAX_BYTES = 1 << 20  # largest file of entries, and largest header in an archive
MAX_MEMBERS = 10_000  # an archive has at most so many; even empty ones take disk space
CHUNK_BYTES = 1 << 20
DOWNLOAD_ERRORS = (OSError, ValueError, HTTPError, HubError)  # ValueError: a malformed URL


class Entry(Settings):
    """A prebuilt index. The keys are Pyserini's, except for `sha256` and `unpacked_size`."""

    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # neither a path nor hidden
    description: str
    filename: Annotated[str, Field(pattern=r"^\w[\w.+-]*\.tar\.gz$")]  # the archive, with one folder of this name
    readme: str
    urls: list[str] = Field(min_length=1)  # of the archive, or relative to the file of entries
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # for Pyserini; not checked here, because it can be forged
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: int = Field(gt=0)  # bytes of the archive
    unpacked_size: int = Field(gt=0)  # bytes of the uncompressed tar
    documents: int
    unique_terms: int | None = None
    total_terms: int | None = None

    @property
    def folder(self) -> str:
        return self.filename.removesuffix(SUFFIX)


ENTRIES = TypeAdapter(list[Entry])


def registry_path() -> Path:
    return Path(os.environ.get("CAI_PYSERINI_REGISTRY") or cache_home() / "cai-registry.json")


def to_json(entries: Sequence[Entry]) -> str:
    return ENTRIES.dump_json([*entries], indent=1, exclude_none=True).decode() + "\n"


def parse_entries(text: str | bytes, where: str) -> list[Entry]:
    """Parse the entries of a registry. Raises CaiError, which begins with `where`, for anything else."""
    try:
        return ENTRIES.validate_json(text)
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, detail['loc'])) or 'file'}: {detail['msg']}" for detail in error.errors()]
        raise CaiError(f"{where}: not a list of registry entries ({'; '.join(reasons)})") from None


def entries() -> dict[str, Entry]:
    path = registry_path()
    return {entry.name: entry for entry in parse_entries(path.read_bytes(), str(path))} if path.is_file() else {}


def find(name: str) -> Entry:
    """The entry with a name. Raises CaiError if the registry has none."""
    known = entries()
    if name not in known:
        raise CaiError(f"{registry_path()} has no {name} ({', '.join(sorted(known)) or 'it has no entries'}): add it")
    return known[name]


def add(source: str) -> list[Entry]:
    """Add the entries of a file or https URL to the user's registry, replacing entries of the same names.

    Raises CaiError for an entry whose URL is not https; from a file, file URLs are allowed as well.
    """
    if Path(source).is_dir():
        raise CaiError(f"{source} is a folder: give the file in it that `ship index` has written, NAME.json")
    source_url = source if "://" in source else Path(source).absolute().as_uri()
    try:
        with open_url(source_url) as file:
            parsed = parse_entries(file.read(MAX_BYTES), source)
        added = [entry.replace(urls=[urljoin(source_url, url) for url in entry.urls]) for entry in parsed]
        schemes = ["https"] if urlsplit(source_url).scheme == "https" else ["https", "file"]
        refused = [url for entry in added for url in entry.urls if urlsplit(url).scheme not in schemes]
    except DOWNLOAD_ERRORS as error:
        raise CaiError(f"{source}: cannot be read ({error})") from None
    if refused:
        raise CaiError(f"{source}: expected a URL that begins with {':// or '.join(schemes)}://, not {refused[0]}")
    save(added)
    return added


def save(added: Sequence[Entry]) -> None:
    """Write entries to the user's registry, in place of those with the same names."""
    path = registry_path().resolve()  # not a link to it
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent):
        files.write_text(path, to_json([*(entries() | {entry.name: entry for entry in added}).values()]))


def fetch(entry: Entry) -> Path:
    """The folder of a prebuilt index, downloaded and unpacked if it is missing or damaged.

    Raises CaiError, and leaves nothing behind, for an archive that cannot be downloaded, does not have the size and
    SHA-256 of its entry, does not fit on the disk, or is refused by `unpack`.
    """
    target = cache_home() / "indexes" / f"{entry.folder}.{entry.sha256}"
    if artifact.read_manifest(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as temporary:
        work = Path(temporary)
        if (free := disk_usage(work).free) < (needed := entry.size + entry.unpacked_size):
            raise CaiError(
                f"{entry.name} needs {needed / 1e9:,.1f} GB to be unpacked, and {work.parent} has {free / 1e9:,.1f} GB "
                "free: set PYSERINI_CACHE to a folder on another disk"
            )
        _download(entry, work / entry.filename)
        folder = unpack(work / entry.filename, entry.folder, entry.unpacked_size, work / "unpacked")
        artifact.require(folder, "index")
        files.sync(*folder.rglob("*"), folder)
        if not artifact.read_manifest(target):
            files.remove(target)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    return target


def _download(entry: Entry, output: Path) -> None:
    errors = []
    for url in entry.urls:
        digest = hashlib.sha256()
        try:
            with (
                progress(range(0), entry.size, f"download {entry.name}", "B") as bar,
                open_url(url) as source,
                output.open("wb") as file,
            ):
                while chunk := source.read(min(CHUNK_BYTES, entry.size + 1 - file.tell())):
                    digest.update(chunk)
                    bar.update(file.write(chunk))
                size = file.tell()
        except DOWNLOAD_ERRORS as error:
            errors.append(f"{url}: cannot be downloaded ({error})")
            continue
        if (size, digest.hexdigest()) == (entry.size, entry.sha256):
            return
        errors.append(f"{url}: refused, as it is not the {entry.size:,} bytes with SHA-256 {entry.sha256} of its entry")
    raise CaiError("\n".join(errors))


def open_url(url: str) -> Any:
    """Open a file, https or hf URL for reading."""
    if urlsplit(url).scheme == "file":
        return Path(url2pathname(urlsplit(url).path)).open("rb")
    if urlsplit(url).scheme == "hf":
        return fsspec.filesystem("hf", skip_instance_cache=True).open(url, block_size=0)  # a stream
    session = requests.Session()
    del session.adapters["http://"]  # so that http raises InvalidSchema, even if https redirects to it
    try:
        response = session.get(url, stream=True, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"})
    except InvalidSchema as error:
        raise OSError(f"only https:// and file:// are read; {error}") from None
    response.raise_for_status()
    return response.raw


def unpack(archive: Path, name: str, size: int, output: Path) -> Path:
    """Unpack an archive of one folder `name` into `output`, and return that folder.

    Raises CaiError for an archive that is broken, has files of more than `size` bytes, more than MAX_MEMBERS members,
    anything but folders and regular files inside `name`, or an encoder whose code would run. `output` must not be used
    then.
    """
    try:
        remaining = size
        with tarfile.open(archive, "r|gz", tarinfo=_LimitedMember) as tar:
            for count, member in enumerate(progress(tar, None, f"unpack {name}", "files"), 1):
                if count > MAX_MEMBERS:
                    raise CaiError(f"{archive}: refused, as it has more than {MAX_MEMBERS:,} files and folders")
                parts = PurePosixPath(member.name).parts
                is_inside = parts[:1] == (name,) and ".." not in parts
                if not is_inside or member.issparse() or not (member.isdir() or member.isreg()):
                    raise CaiError(f"{archive}: refused, as {member.name!r} is no regular file or folder in {name}")
                if (remaining := remaining - max(member.size, 0)) < 0:
                    raise CaiError(f"{archive}: refused, as it has more than the {size:,} bytes of its entry")
                tar.extract(member, output, filter="data")
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise CaiError(f"{archive} cannot be unpacked ({error}); if it is broken or truncated, get it again") from None
    if not (output / name).is_dir():
        raise CaiError(f"{archive}: refused, as it has no folder {name}")
    return output / name


class _LimitedMember(tarfile.TarInfo):
    """A member whose extended header, which tarfile reads into memory, has at most MAX_BYTES."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if not (member.isreg() or member.isdir()) and member.size > MAX_BYTES:
            raise ValueError(f"a header of {member.size:,} bytes")
        return member
