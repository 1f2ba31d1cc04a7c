"""A folder of files, each of which is a document: PDF, Office, HTML, Markdown, text, …"""

import hashlib
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cai_pyserini.collections.beir_folder import QUERIES, SHARDS, SUFFIXES, BeirFolder, note_once
from cai_pyserini.collections.contract import PAGE, PAGES, Record
from cai_pyserini.collections.formats import reader_of
from cai_pyserini.collections.isolated import Failed, isolated
from cai_pyserini.collections.text_cache import Key, State, cache_folder, text_cache
from cai_pyserini.core import files
from cai_pyserini.core.config import ColumnNames
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.file_formats import FORMAT_OF, FORMATS
from cai_pyserini.core.identity import digest
from cai_pyserini.core.metadata import Kind
from cai_pyserini.core.processes import processes_for
from cai_pyserini.core.terminal import progress
from cai_pyserini.core.text import normalized

READER = "cai_pyserini.collections.file_text"  # a program, because it imports libraries that read strangers' files
MAX_BYTES = 1 << 29  # of a file
FRESH_NS = 2_000_000_000  # a file that changed so recently can change again without another time
TABLES, PLAIN = (".csv", ".tsv"), {"csv", "md", "rst", "txt"}
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # waits for no pipe
SHOWN = 3  # files in a warning
IN_ID = re.compile(r"[\s#%\0-\x20\x7f\ud800-\udfff]")  # percent-encoded in ids
KINDS: dict[str, Kind] = {
    "path": "string",
    "type": "string",
    "language": "string",
    "modified": "date",
    "size": "number",
    PAGES: "number",
    PAGE: "number",
    "url": "string",
}
logger = logging.getLogger(__name__)


class File(NamedTuple):
    """A file in the folder, with its path from there."""

    path: str
    format: str
    size: int
    mtime_ns: int

    @property
    def id(self) -> str:
        return _id(self.path)


class Entry(NamedTuple):
    """A file that has a text."""

    file: File
    key: Key
    modified: str
    pages: int | None
    language: str | None


class Snapshot(NamedTuple):
    """The state of a folder, by which all its documents are read, from the text cache."""

    entries: list[Entry]
    unread: list[tuple[str, str]]  # id and reason
    partial: list[tuple[str, str]]  # id and what is left out
    absent: set[str]  # metadata that no file has


class Scan(NamedTuple):
    """The files of a folder by what happens to them."""

    files: list[File]
    unread: list[tuple[str, str]]  # id and reason
    others: Counter[str]  # suffixes of other formats


def has_files(folder: Path) -> bool:
    """Whether a folder is to be read as files: it has one in a known format, at any depth, and neither corpus.*, nor
    documents in *.jsonl or *.parquet. Beside .csv and .tsv, which may be a collection, plain text does not count."""
    if not folder.is_dir() or _is_run(folder):
        return False
    names = [path.name for path in folder.glob("[!.]*") if _is_file(path)]
    corpus = (name for name in names if name.startswith("corpus.") and name.endswith(SUFFIXES))
    shards = (name for name in names if name.endswith(SHARDS) and not _is_queries(name))
    if any(corpus) or any(shards):
        return False
    formats = {*FORMATS} - (PLAIN if any(name.endswith(TABLES) for name in names) else {"csv"})
    return any(_format(path) in formats for path, _ in _walk(folder) if not _is_queries(path))


class FileFolder(BeirFolder):
    """A folder of files in core.file_formats, at any depth, each a document; queries.* and qrels/SPLIT.* are optional.

    A document's id is the path in the folder, percent-encoded where an id cannot have a character. Its metadata are
    KINDS, without those that no file has: `url` is the path after `base_url`; `page` is where a passage begins.
    Files that cannot be read are left out with a warning; a `strict` collection raises CaiError for the first. The
    warning also counts files of which something is not in the text.

    All files are read when the first document or digest is requested, and later the collection stays as it was then.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        fields: Iterable[str] = ("title", "text"),
        query_columns: ColumnNames | None = None,
        strict: bool = False,
        base_url: str | None = None,
    ):
        super().__init__(path, name, fields, query_columns=query_columns, strict=strict)
        self._base_url = base_url
        self.failed: dict[Key, Failed] = {}  # what may be read next time

    @property
    def metadata(self) -> dict[str, Kind]:
        absent = self._snapshot.absent | {PAGE} if self._passages is None else self._snapshot.absent
        return {name: kind for name, kind in KINDS.items() if name not in absent}

    def has_queries(self, split: str) -> bool:
        return any(_is_queries(path.name) for path in self.path.glob("queries.*"))

    def has_qrels(self, split: str) -> bool:
        return self.has_queries(split) and super().has_qrels(split)

    @cached_property
    def _count(self) -> int:
        return len(self._snapshot.entries)

    def _documents(self) -> Iterator[Record]:
        with text_cache() as texts:
            for entry in self._snapshot.entries:
                file, where = entry.file, str(self.path / entry.file.path)
                if (found := texts.text(entry.key)) is None:
                    raise CaiError(f"{where}: its text has been deleted from {cache_folder()}: start again")
                title, text = found
                values = {
                    "path": normalized(file.path.encode(errors="replace").decode()),
                    "type": file.format,
                    "language": entry.language,
                    "modified": entry.modified,
                    "size": file.size,
                    PAGES: entry.pages,
                    "url": self._base_url and f"{self._base_url.rstrip('/')}/{quote(os.fsencode(file.path))}",
                }
                yield Record(where, file.id, title or Path(str(values["path"])).stem, text, values)

    def _fingerprint(self, component: str) -> object:
        return [self._base_url, self._texts_digest] if component == "documents" else super()._fingerprint(component)

    @cached_property
    def _texts_digest(self) -> str:
        return digest([[entry.file.id, *entry.key] for entry in self._snapshot.entries])

    @cached_property
    def _snapshot(self) -> Snapshot:
        snapshot = self._read()
        if snapshot.unread:
            id, reason = snapshot.unread[0]
            if self.strict:
                raise CaiError(f"{self.path / id} {reason} ({len(snapshot.unread):,} such files); move them away")
        self._report(snapshot)
        return snapshot

    def _report(self, snapshot: Snapshot) -> None:
        """Warn of the files that are not read, or only in part, and write all of them to a file in the cache."""
        listing = cache_folder() / f"unread-{self.name[:40]}-{digest(str(self.path.resolve()))}.tsv"
        rows = [(id, " ".join(reason.split())) for id, reason in (*snapshot.unread, *snapshot.partial)]
        lines = "".join(f"{id}\t{reason}\n" for id, reason in rows)
        try:
            files.write_text(listing, lines.encode(errors="replace").decode()) if rows else files.remove(listing)
            where = f"all of them: {listing}"
        except OSError as error:
            where = f"all of them cannot be written to {listing} ({error.strerror})"
        if not rows:
            return
        counts = ((len(snapshot.unread), "left out"), (len(snapshot.partial), "read only in part"))
        said = " and ".join(f"{count:,} {'is' if count == 1 else 'are'} {what}" for count, what in counts if count)
        shown = "; ".join(f"{id} {reason}" for id, reason in rows[:SHOWN])
        total = len(snapshot.entries) + len(snapshot.unread)
        _warn_once(f"{self.path}: of {total:,} files, {said}: {shown}; {where}")

    def _read(self) -> Snapshot:
        """Read the files that are new or have changed, and return the state of the folder."""
        found, unread, started = self._scan(), list[tuple[str, str]](), time.time_ns()
        folder = os.fsencode(self.path.resolve())
        with text_cache() as texts:
            before = texts.states(folder)
            states = {file: before.get(os.fsencode(file.path)) for file in found.files}
            unknown = [file for file, state in states.items() if state is None or state[:2] != file[2:]]
            states |= dict.fromkeys(unknown)
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                hashes = threads.map(_sha256, [self.path / file.path for file in unknown])
                for file, sha256 in zip(unknown, progress(hashes, len(unknown), "hash files", "file"), strict=True):
                    is_fresh = file.mtime_ns > started - FRESH_NS
                    if isinstance(sha256, Failed):
                        unread.append((file.id, sha256.reason))
                    else:
                        states[file] = State(-1 if is_fresh else file.size, file.mtime_ns, sha256)
            readers = {format: reader_of(format) for format in {file.format for file in found.files}}
            readable = {file: (state.sha256, readers[file.format]) for file, state in states.items() if state}
            known = self.failed | texts.known(dict.fromkeys(readable.values()))
            to_read = {key: file for file, key in readable.items() if key not in known}
            calls = {(os.fsencode(self.path / file.path), file.format): key for key, file in to_read.items()}
            results = isolated(READER, calls, processes_for(len(calls), 4))
            for call, result in progress(results, len(calls), "read files", "file"):
                key = calls[call]
                if isinstance(result, Failed) and result.lasts and _sha256(Path(os.fsdecode(call[0]))) == key[0]:
                    known[key] = texts.put(key, result)
                elif isinstance(result, Failed):  # not what the reader says of the contents: it may pass
                    known[key] = self.failed[key] = result
                elif result[0] == key[0]:  # else it has changed since it was hashed
                    known[key] = texts.put(key, result[1])
            stable = ((os.fsencode(file.path), states[file]) for file, key in readable.items() if key in known)
            texts.set_states(folder, ((path, state) for path, state in stable if state))
        entries, partial = [], []
        for file, key in readable.items():
            if (text := known.get(key)) is None:
                unread.append((file.id, "changed while it was read"))
            elif isinstance(text, Failed):
                unread.append((file.id, text.reason))
            else:
                if text.left_out:
                    partial.append((file.id, f"is read without {', '.join(text.left_out)}"))
                modified = text.modified or time.strftime("%Y-%m-%d", time.gmtime(file.mtime_ns / 1e9))
                entries.append(Entry(file, key, modified, text.pages, text.language))
        absent = {name for name in ("language", PAGES) if not any(getattr(entry, name) for entry in entries)}
        absent |= ({PAGE} if PAGES in absent else set()) | (set() if self._base_url else {"url"})
        return Snapshot(entries, sorted([*found.unread, *unread]), partial, absent)

    def _scan(self) -> Scan:
        """List the files, and note how the folder is read."""
        scan = Scan([], [], Counter())
        queries = any(_is_queries(path.name) for path in self.path.glob("queries.*"))
        for path, status in _walk(self.path):
            if _is_queries(path) or (queries and path.startswith("qrels/")):
                continue
            if isinstance(status, str):
                scan.unread.append((_id(path), status))
            elif (format := _format(path)) is None:
                scan.others[Path(path).suffix.lower() or "no suffix"] += 1
            elif not status.st_size or status.st_size > MAX_BYTES:
                reason = f"has more than {MAX_BYTES >> 20} MiB" if status.st_size else "is empty"
                scan.unread.append((_id(path), reason))
            else:
                scan.files.append(File(path, format, status.st_size, status.st_mtime_ns))
        scan.files.sort(key=lambda file: file.id)
        formats = Counter(file.format for file in scan.files)
        note = f"{self.path}: every file is a document: {_counts(formats)}"
        note_once(note + (f"; not read: {_counts(scan.others)}" if scan.others else ""))
        return scan


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result | str]]:
    """Yield the path of each file, from the folder, with its status, or with the reason why it is not read. Leaves out
    hidden files, and run folders, whose reports are no documents."""
    errors = list[OSError]()
    for place, folders, names in os.walk(folder, onerror=errors.append):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _is_run(here / name))
        for name in (*folders, *names):
            if name.startswith((".", "~$")):
                continue
            path = here / name
            relative = str(path.relative_to(folder))
            try:
                status = path.lstat()
            except FileNotFoundError:  # deleted meanwhile
                continue
            except OSError as error:
                yield relative, f"cannot be opened ({error.strerror})"
                continue
            if stat.S_ISLNK(status.st_mode):
                if reason := _unread_link(folder, path):
                    yield relative, reason
            elif name not in folders:
                yield relative, status if stat.S_ISREG(status.st_mode) else "is not a regular file"
    for each in errors:
        yield str(Path(each.filename).relative_to(folder)), f"cannot be opened ({each.strerror})"


def _unread_link(folder: Path, path: Path) -> str | None:
    """Why the target of a link is not read. None if it is read where it is, or is in another format."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return f"is a link that leads nowhere ({error.strerror})" if _format(path.name) or not path.suffix else None
    target, root = Path(os.path.realpath(path)), os.path.realpath(folder)
    if not is_folder and not _format(path.name):
        return None
    if not target.is_relative_to(root):
        return "is a link out of the folder"
    is_read = is_folder or _format(target.name)
    is_hidden = any(part.startswith(".") for part in target.relative_to(root).parts)
    return None if is_read and not is_hidden else "is a link to a file that is not read"


def _id(path: str) -> str:
    """A path as an id, percent-encoded where an id cannot have a character."""
    return IN_ID.sub(lambda found: quote(os.fsencode(found[0]), safe=""), path)


def _is_run(folder: Path) -> bool:
    return _is_file(folder / "results.json") and _is_file(folder / "report.md")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be opened, or a path that is too long
        return False


def _is_queries(name: str) -> bool:
    return name.startswith("queries.") and name.endswith(QUERIES)


def _format(path: str) -> str | None:
    return FORMAT_OF.get(Path(path).suffix.lower())


def _sha256(path: Path) -> str | Failed:
    try:
        with os.fdopen(os.open(path, OPEN), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was when it was listed
                return Failed("is not a regular file")
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return Failed(f"cannot be opened ({error.strerror})")


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counter.most_common(6)) or "none"


@cache  # once per process
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
