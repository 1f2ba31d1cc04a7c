"""The files that a run has read: where they are, what they had in them, and which are copies of each other.

`files.json` in a run folder is written with the results of the run. A file is opened only if it still has the contents
that the run has read, so nothing else of the folder can be read in this way, wherever a path or a link leads.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self
from urllib.parse import unquote_to_bytes

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.file_folder import FRESH_NS, OPEN, FileFolder
from cai_pyserini.core import files

_is_folder = os.path.isdir  # which, unlike that of Path, raises nothing


class Missing(Exception):
    """A file is not where it was, or cannot be opened."""


class Changed(Exception):
    """A file has other contents than those that the run has read."""


class Listed(NamedTuple):
    size: int  # bytes
    sha256: str


class FileListing:
    """The files in `folder` by document id, and groups of ids whose files have the same bytes or the same text. Without
    a folder, none can be opened."""

    def __init__(self, folder: Path | None, files: Mapping[str, Sequence[int | str]], copies: Iterable[Sequence[str]]):
        self.folder = folder
        self._files = {id: Listed(int(size), str(sha256)) for id, (size, sha256) in files.items()}
        self._copies = {id: group for group in copies for id in group}
        self.folded = len(self._copies) - sum(1 for id, group in self._copies.items() if id == group[0])
        self._unchanged: dict[str, tuple[int, ...]] = {}  # the state of each file when its contents were compared

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The listing in a file; None if there is none."""
        try:
            listing = json.loads(path.read_text(encoding="utf-8"))
            return cls(Path(listing["folder"]), listing["files"], listing["copies"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def has(self, id: str) -> bool:
        """Whether a document has a file, in a folder that this machine has."""
        return id in self._files and self.folder is not None and _is_folder(self.folder)

    def copies_of(self, id: str) -> list[str]:
        """The other documents whose files have the same bytes or the same text."""
        return [copy for copy in self._copies.get(id, ()) if copy != id]

    def original_of(self, id: str) -> str:
        """The same id for a document and all its copies."""
        return self._copies.get(id, (id,))[0]

    def open(self, id: str) -> tuple[BinaryIO, str]:
        """The file of a document, open, and its SHA-256. Raises Missing and Changed."""
        if self.folder is None or id not in self._files:
            raise Missing(id)
        listed, path = self._files[id], self.folder / os.fsdecode(unquote_to_bytes(id))
        try:
            if os.path.realpath(path) != str(path):
                raise Missing(id)
            file = os.fdopen(os.open(path, OPEN), "rb")
        except (OSError, ValueError):
            raise Missing(id) from None
        try:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != listed.size:
                raise Changed(id)
            state = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            if self._unchanged.get(id) != state:
                is_fresh = max(state[1:]) > time.time_ns() - FRESH_NS  # it can change again without another time
                if hashlib.file_digest(file, "sha256").hexdigest() != listed.sha256:
                    raise Changed(id)
                file.seek(0)
                if not is_fresh:
                    self._unchanged[id] = state
            return file, listed.sha256
        except BaseException:
            file.close()
            raise


def list_files(collection: Collection, path: Path) -> None:
    """Write the listing of a folder of files; of another collection, delete it."""
    before = FileListing.load(path)
    if not isinstance(collection, FileFolder):
        if before:
            path.unlink()
        return
    digest, folder = collection.documents_digest[0], collection.path.resolve()
    if before and before.folder == folder and json.loads(path.read_text(encoding="utf-8")).get("digest") == digest:
        return
    listed, text_of, groups = dict[str, Listed](), dict[str, str](), dict[str, list[str]]()
    for id, size, sha256, text in collection.listing():
        listed[id] = Listed(size, sha256)
        groups.setdefault(text_of.setdefault(sha256, text), []).append(id)
    copies = [group for group in groups.values() if len(group) > 1]
    found = {"folder": str(folder), "digest": digest, "files": listed, "copies": copies}
    files.write_text(path, json.dumps(found) + "\n")
