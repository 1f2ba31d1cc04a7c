"""A folder of files, each of which is a document: PDF, Office, HTML, Markdown, text, …"""

import hashlib
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

import regex

from cai_pyserini.collections.beir_folder import QUERIES, SHARDS, SUFFIXES, BeirFolder, log_once
from cai_pyserini.collections.contract import FOLDER, PAGE, PAGES, Record
from cai_pyserini.collections.formats import Text, reader_of
from cai_pyserini.collections.isolated import Failed, isolated
from cai_pyserini.collections.text_cache import Key, State, cache_folder, text_cache, text_of
from cai_pyserini.core import files
from cai_pyserini.core.config import ColumnNames
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.file_formats import FORMAT_OF, FORMATS
from cai_pyserini.core.identity import digest
from cai_pyserini.core.metadata import Kind
from cai_pyserini.core.processes import processes_for, processors
from cai_pyserini.core.terminal import progress
from cai_pyserini.core.text import normalized

READER = "cai_pyserini.collections.file_text"  # a program, because it imports libraries that read strangers' files
MAX_BYTES = 1 << 29  # largest file
FRESH_NS = 2_000_000_000  # a file that changed so recently can change again without another time
TABLES, PLAIN = (".csv", ".tsv"), {"csv", "md", "rst", "txt"}
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # waits for no pipe
SHOWN = 3  # files in a warning
_is_file, _exists = os.path.isfile, os.path.exists  # which, unlike those of Path, raise nothing
PIECES = regex.compile(r"[\p{L}\p{M}\p{N}]+")
PARTS = regex.compile(
    r"\p{Lu}+(?!\p{Ll})|\p{Lu}?[\p{L}\p{M}--\p{Lu}]+|\p{N}+", regex.V1
)  # of HTTPServer_v2: HTTP Server v 2
IN_ID = re.compile(r"[\s#%\0-\x20\x7f\ud800-\udfff]")  # percent-encoded in ids
KINDS: dict[str, Kind] = {
    "path": "string",
    FOLDER: "list",
    "type": "string",
    "language": "string",
    "modified": "date",
    "size": "number",
    PAGES: "number",
    PAGE: "number",
    "url": "string",
}
Unread = tuple[str, str]  # the id of a file, and why it has no text


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
    read: Text  # without the text itself


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
    KINDS, without those that no file has: `folder` has the folders that a file is in, from the outermost on; `url` is
    the path after `base_url`; `page` is where a passage begins.
    Files that cannot be read are left out with a warning; a `strict` collection raises CaiError for the first. The
    warning also counts files of which something is not in the text.

    All files are read when the first document or digest is requested, and later the collection stays as it was then.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        fields: Iterable[str] = ("title", "text"),
        *,
        query_columns: ColumnNames | None = None,
        strict: bool = False,
        base_url: str | None = None,
    ):
        super().__init__(path, name, fields, query_columns=query_columns, strict=strict)
        self._base_url = base_url

    @property
    def metadata(self) -> dict[str, Kind]:
        absent = self._absent | ({PAGE} if self._passages is None else set()) | (set() if self._base_url else {"url"})
        return {name: kind for name, kind in KINDS.items() if name not in absent}

    @cached_property
    def _absent(self) -> set[str]:
        """Metadata that no file has."""
        absent = {name for name in ("language", PAGES) if not any(getattr(each.read, name) for each in self._entries)}
        absent |= set() if any("/" in each.file.path for each in self._entries) else {FOLDER}
        return absent | ({PAGE} if PAGES in absent else set())

    def has_queries(self, split: str) -> bool:
        return any(_is_queries(path.name) for path in self.path.glob("queries.*"))

    def has_qrels(self, split: str) -> bool:
        return self.has_queries(split) and super().has_qrels(split)

    @cached_property
    def whole_size(self) -> int:
        return len(self._entries)

    def _documents(self) -> Iterator[Record]:
        with text_cache() as texts:
            for file, key, read in self._entries:
                where = str(self.path / file.path)
                if (found := texts.text(key)) is None:
                    raise CaiError(f"{where}: its text has been deleted from {cache_folder()}: start again")
                title, text = found
                path = normalized(file.path.encode(errors="replace").decode())
                values = {
                    "path": path,
                    FOLDER: [str(folder) for folder in PurePosixPath(path).parents][-2::-1],
                    "type": file.format,
                    "language": read.language,
                    "modified": read.modified or time.strftime("%Y-%m-%d", time.gmtime(file.mtime_ns / 1e9)),
                    "size": file.size,
                    PAGES: read.pages,
                    "url": self._base_url and f"{self._base_url.rstrip('/')}/{quote(os.fsencode(file.path))}",
                }
                yield Record(where, file.id, title or Path(path).stem, text, values, names=names_of(path))

    def listing(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield the id of each file, its size in bytes, its SHA-256, and a digest of its text without the title."""
        with text_cache() as texts:
            for file, key, _ in self._entries:
                yield file.id, file.size, key[0], texts.digest(key) or key[0]

    def _fingerprint(self, component: str) -> object:
        return [self._base_url, self._texts_digest] if component == "documents" else super()._fingerprint(component)

    @cached_property
    def _texts_digest(self) -> str:
        return digest([[entry.file.id, *entry.key] for entry in self._entries])

    @cached_property
    def _entries(self) -> list[Entry]:
        """The files that have a text, as they were when all were read."""
        entries, unread = self._read()
        if unread and self.strict:
            raise CaiError(f"{self.path / unread[0][0]} {unread[0][1]} ({len(unread):,} such files); move them away")
        self._report(len(entries), unread, [(file.id, read.left_out) for file, _, read in entries if read.left_out])
        return entries

    def _report(self, count: int, unread: list[Unread], partial: list[tuple[str, tuple[str, ...]]]) -> None:
        """Warn of the files that are not read, or only in part, and write all of them to a file in the cache."""
        listing = cache_folder() / f"unread-{self.name[:40]}-{digest(str(self.path.resolve()))}.tsv"
        rows = [(id, " ".join(reason.split())) for id, reason in unread]
        rows += [(id, f"is read without {', '.join(left_out)}") for id, left_out in partial]
        if not rows:
            files.remove(listing)
            return
        lines = "".join(f"{id}\t{reason}\n" for id, reason in rows)
        files.write_text(listing, lines.encode(errors="replace").decode())
        counts = ((len(unread), "left out"), (len(partial), "read only in part"))
        said = " and ".join(f"{count:,} {'is' if count == 1 else 'are'} {what}" for count, what in counts if count)
        shown = "; ".join(f"{id} {reason}" for id, reason in rows[:SHOWN])
        of_all = f"of {count + len(unread):,} files, {said}: {shown}; all of them: {listing}"
        log_once(logging.WARNING, f"{self.path}: {of_all}")

    def _read(self) -> tuple[list[Entry], list[Unread]]:
        """Read the files that are new or have changed."""
        found, unread = self._scan()
        folder = os.fsencode(self.path.resolve())
        with text_cache() as texts:
            states = self._states(found, texts.states(folder), unread)
            readers = {format: reader_of(format) for format in {file.format for file in states}}
            keys = {file: (state.sha256, readers[file.format]) for file, state in states.items()}
            known = texts.known(dict.fromkeys(keys.values()))
            to_read = {key: file for file, key in keys.items() if key not in known}
            calls = {(str(self.path / file.path), file.format): key for key, file in to_read.items()}
            results = isolated(READER, calls, processes_for(len(calls), 4))
            for call, result in progress(results, len(calls), "read files", "file"):
                key = calls[call]
                if isinstance(result, Failed) and result.lasts and _sha256(Path(call[0])) == key[0]:
                    known[key] = texts.put(key, result)
                elif isinstance(result, Failed):  # not what the reader says of the contents: it may pass
                    known[key] = result
                elif result[0] == key[0]:  # else it has changed since it was hashed
                    known[key] = texts.put(key, text_of(result[1]))
            texts.set_states(folder, ((os.fsencode(file.path), states[file]) for file in keys if keys[file] in known))
        entries = []
        for file, key in keys.items():
            read = known.get(key, Failed("changed while it was read"))
            if isinstance(read, Failed):
                unread.append((file.id, read.reason))
            else:
                entries.append(Entry(file, key, read))
        return entries, sorted(unread)

    def _states(self, found: list[File], before: Mapping[bytes, State], unread: list[Unread]) -> dict[File, State]:
        """The files with their digests, hashed if their size or time is not that `before`."""
        started = time.time_ns()
        states = {file: before.get(os.fsencode(file.path)) for file in found}
        unknown = [file for file, state in states.items() if state is None or state[:2] != file[2:]]
        with ThreadPoolExecutor(processors()) as threads:
            hashes = threads.map(_sha256, [self.path / file.path for file in unknown])
            for file, sha256 in zip(unknown, progress(hashes, len(unknown), "hash files", "file"), strict=True):
                is_fresh = file.mtime_ns > started - FRESH_NS
                if isinstance(sha256, Failed):
                    states[file] = None
                    unread.append((file.id, sha256.reason))
                else:
                    states[file] = State(-1 if is_fresh else file.size, file.mtime_ns, sha256)
        return {file: state for file, state in states.items() if state}

    def _scan(self) -> tuple[list[File], list[Unread]]:
        """List the files, and those that are not read, and note how the folder is read."""
        found, unread, others = list[File](), list[Unread](), Counter[str]()
        queries = any(_is_queries(path.name) for path in self.path.glob("queries.*"))
        for path, status in _walk(self.path):
            if _is_queries(path) or (queries and path.startswith("qrels/")):
                continue
            if isinstance(status, str):
                unread.append((_id(path), status))
            elif (format := _format(path)) is None:
                others[Path(path).suffix.lower() or "no suffix"] += 1
            elif not status.st_size or status.st_size > MAX_BYTES:
                unread.append((_id(path), f"has more than {MAX_BYTES >> 20} MiB" if status.st_size else "is empty"))
            else:
                found.append(File(path, format, status.st_size, status.st_mtime_ns))
        found.sort(key=lambda file: file.id)
        note = f"{self.path}: every file is a document: {_counts(Counter(file.format for file in found))}"
        log_once(logging.INFO, note + (f"; not read: {_counts(others)}" if others else ""))
        return found, unread


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
            except OSError as error:
                yield relative, f"cannot be opened ({error.strerror})"
                continue
            if stat.S_ISLNK(status.st_mode):
                if _leads_elsewhere(folder, path):
                    yield relative, "is a link to what is not read in this folder"
            elif name not in folders:
                yield relative, status if stat.S_ISREG(status.st_mode) else "is not a regular file"
    for each in errors:
        yield str(Path(each.filename).relative_to(folder)), f"cannot be opened ({each.strerror})"


def _leads_elsewhere(folder: Path, link: Path) -> bool:
    """Whether a link to a folder, or one that is named like a document, leads to what is not read where it is."""
    target, root = Path(os.path.realpath(link)), Path(os.path.realpath(folder))
    if not target.is_relative_to(root) or not _exists(target):
        return bool(_format(link.name)) or not link.suffix
    is_hidden = any(part.startswith(".") for part in target.relative_to(root).parts)
    return is_hidden or (_is_file(target) and _format(link.name) is not None and _format(target.name) is None)


def _id(path: str) -> str:
    """A path as an id, percent-encoded where an id cannot have a character."""
    return IN_ID.sub(lambda found: quote(os.fsencode(found[0]), safe=""), path)


def names_of(path: str) -> str:
    """The names of a file and its folders, and the words in them, without the suffix: as punctuation divides them, and
    letters, from a capital on, apart from digits."""
    names = path.split("/")
    stems = [*names[:-1], Path(path).stem]
    parts = (part for name in stems for pattern in (PIECES, PARTS) for part in pattern.findall(name))
    return " ".join(dict.fromkeys([*names, *parts]))


def _is_run(folder: Path) -> bool:
    return _is_file(folder / "results.json") and _is_file(folder / "report.md")


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
