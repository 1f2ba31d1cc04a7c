"""The registry: prebuilt indexes that Pyserini finds by name when our plugin is registered.

It is a JSON file of the user's, in the format of Pyserini's own registries: a list of entries. Its place is
$CAI_PYSERINI_REGISTRY, or else cai-registry.json in Pyserini's cache, which is $PYSERINI_CACHE or ~/.cache/pyserini.
Indexes are unpacked to the folder `indexes` of that cache, under the names that Pyserini would give them.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Annotated
from urllib.parse import urljoin
from urllib.request import urlopen

from pydantic import Field

from cai_pyserini.core import artifact
from cai_pyserini.core.cache import cache_home, cached_index
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Settings, build
from cai_pyserini.core.terminal import progress
from cai_pyserini.ship.archive import unpack

SUFFIX = ".tar.gz"
SCHEMES = ("https://", "file://")
TIMEOUT = 60  # seconds without an answer
LARGEST = 1 << 20  # bytes of a file of entries
CHUNK = 1 << 20

Name = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # neither a path nor hidden


class Entry(Settings):
    """A prebuilt index. The keys are Pyserini's, but for `unpacked_size`."""

    name: Name
    description: str
    filename: Annotated[str, Field(pattern=r"^\w[\w.+-]*\.tar\.gz$")]  # of an archive with one folder of that name
    readme: str
    urls: list[str] = Field(min_length=1)  # of the archive; relative ones are relative to the file with the entry
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
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
    """Add the entries of a file or https URL to the user's registry; they replace those of the same name."""
    url = source if source.startswith(SCHEMES) else Path(source).absolute().as_uri()
    try:
        with urlopen(_checked(url), timeout=TIMEOUT) as response:  # noqa: S310
            text = response.read(LARGEST)
    except (OSError, HTTPException) as error:
        raise CaiError(f"{source}: cannot be read ({error})") from None
    added = [
        entry.replace(urls=[_checked(urljoin(url, place)) for place in entry.urls])
        for entry in parse_entries(text, source)
    ]
    merged = entries() | {entry.name: entry for entry in added}
    artifact.write_text(registry_path(), to_json(list(merged.values())))
    return added


def _checked(url: str) -> str:
    if not url.startswith(SCHEMES):
        raise CaiError(f"{url}: expected a URL that begins with {' or '.join(SCHEMES)}")
    return url


def fetch(entry: Entry) -> Path:
    """The folder of a prebuilt index, downloaded and unpacked if it is not there yet.

    Raises CaiError for an archive that cannot be downloaded, has another size or checksum than the entry, or is
    refused by `unpack`; nothing is left behind then.
    """

    def get(work: Path) -> Path:
        archive = work / entry.filename
        _download(entry, archive)
        return unpack(archive, entry.folder, entry.unpacked_size, work / "unpacked")

    return cached_index(f"{entry.folder}.{entry.md5}", get)


def _download(entry: Entry, output: Path) -> None:
    """Download an archive from the first URL that has it."""
    errors = []
    for url in entry.urls:
        try:
            size, md5 = _copy(_checked(url), output, entry)
        except (OSError, HTTPException) as error:
            errors.append(f"{url}: cannot be downloaded ({error})")
            continue
        if (size, md5) == (entry.size, entry.md5):
            return
        what = f"{size:,} bytes with md5 {md5}" if size <= entry.size else "more"
        errors.append(f"{url}: refused, as it has {what}; its entry says {entry.size:,} bytes with md5 {entry.md5}")
    raise CaiError("\n".join(errors))


def _copy(url: str, output: Path, entry: Entry) -> tuple[int, str]:
    """Copy no more than the size of an entry and one chunk. Returns the size and the MD5."""
    size, digest = 0, hashlib.md5(usedforsecurity=False)
    with (
        progress(range(0), entry.size, f"download {entry.name}", "B") as bar,
        urlopen(url, timeout=TIMEOUT) as response,  # noqa: S310
        output.open("wb") as file,
    ):
        while size <= entry.size and (chunk := response.read(CHUNK)):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            bar.update(len(chunk))
    return size, digest.hexdigest()
