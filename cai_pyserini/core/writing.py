"""The ways in which an artifact is written, so that nothing half-written is ever taken for whole.

A file or folder is written under a temporary name, and replaces the artifact as a whole. A resumable folder is written
in place, marked as unfinished until its manifest is there. In both ways, a lock keeps out other processes, and the
manifest comes last.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import (
    MANIFEST,
    PARTIAL,
    atomic_write,
    remove,
    remove_leftovers,
    sync,
    temporary,
    write_text,
)
from cai_pyserini.core.identity import Recipe, digest
from cai_pyserini.core.lock import Lock, Note, locked, read_note
from cai_pyserini.core.manifest import (
    UNFINISHED,
    Manifest,
    Sizes,
    Stats,
    manifest_data,
    manifest_path,
    outdated,
    sizes_in,
)
from cai_pyserini.core.ownership import foreign_files, lock_path, require_writable

Write = Callable[[Path], Stats | None]


@dataclass
class Attempt(ABC):
    """An attempt to make the artifact at `path`, begun at `start`."""

    path: Path
    recipe: Recipe
    write: Write
    start: float

    @abstractmethod
    def make(self) -> None: ...

    def is_up_to_date(self) -> bool:
        """Whether the artifact is complete, as another process may just have made it."""
        return outdated(self.path, self.recipe) is None

    def manifest(self, stats: Stats | None, files: Sizes) -> str:
        return Manifest.new(self.recipe, stats, files, self.start).text()


class Replaced(Attempt):
    """An artifact that is written to `partial`, which replaces it; the `old` one is kept until then."""

    def make(self) -> None:
        folder, name = self.path.parent, self.path.name
        folder.mkdir(parents=True, exist_ok=True)
        self.partial, self.old = self.hidden(), self.hidden()
        with locked(lock_path(self.path), self.path, {}) as lock:
            try:
                if not (self.is_up_to_date() or self.recovered()):
                    remove_leftovers(folder, rf"\.?{re.escape(name)}(?:\.manifest\.json)?")
                    self.replace()
                    sync(folder)
            finally:
                self.restore()
                remove(self.partial)
                remove(self.old)
                lock.place.unlink(missing_ok=True)

    def hidden(self) -> Path:
        """A temporary path beside the artifact."""
        return temporary(self.path.with_name(f".{self.path.name}"))

    def recovered(self) -> bool:
        """Whether the result of a killed process was found and put in place."""
        return False

    @abstractmethod
    def replace(self) -> None:
        """Write `partial`, with its manifest, and rename it to `path`."""

    def restore(self) -> None:
        """Put the old artifact back if the new one has not replaced it."""

    def not_replaced(self, error: OSError) -> CaiError:
        """Keep the new artifact, which could not be renamed to `path`, and restore the old one. Returns the error with
        the place of both."""
        where = f"the new result is {self.partial.rename(self.partial.with_suffix(''))}"  # else it is deleted
        try:
            if self.old.is_dir():
                self.old.rename(self.path)
        except OSError:
            where += f", and the old one is {self.old.rename(self.old.with_suffix(''))}"
        return CaiError(f"{self.path} could not be replaced ({error.strerror}): {where}")


class ReplacedFolder(Replaced):
    def recovered(self) -> bool:
        if not self.path.exists():
            for leftover in self.path.parent.glob(f".{escape(self.path.name)}.*.partial"):
                if outdated(leftover, self.recipe) is None:  # its process was killed between the two renames
                    leftover.rename(self.path)
                    return True
        return False

    def replace(self) -> None:
        self.partial.mkdir()
        stats = self.write(self.partial)
        write_text(self.partial / MANIFEST, self.manifest(stats, sizes_in(self.partial)))
        sync(*self.partial.rglob("*"), self.partial)
        require_writable(self.path)
        if self.path.exists():
            self.path.rename(self.old)  # deleted later: an interruption here would lose it
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise self.not_replaced(error) from None

    def restore(self) -> None:
        if self.old.exists() and not self.path.exists():
            self.old.rename(self.path)


class ReplacedFile(Replaced):
    def replace(self) -> None:
        stats = self.write(self.partial)
        manifest = self.manifest(stats, {self.path.name: self.partial.stat().st_size})
        sync(self.partial)
        require_writable(self.path, folder=False)
        place = manifest_path(self.path)
        with _restored(self.path, self.old), _restored(place, self.hidden()), atomic_write(place) as written:
            written.write_text(manifest, encoding="utf-8")  # first, in case the disk is full
            write_text(place, self.manifest(stats, {}))  # without files: means unfinished
            try:
                self.partial.replace(self.path)
            except OSError as error:
                raise self.not_replaced(error) from None


@contextmanager
def _restored(file: Path, link: Path) -> Iterator[None]:
    """Keep a hard link to a file meanwhile, and put the file back if an exception is raised."""
    with suppress(OSError):  # no such file, or a file system without links
        os.link(file, link)
    try:
        yield
    except BaseException:
        if link.exists() and not (file.exists() and file.samefile(link)):
            link.replace(file)
        link.unlink(missing_ok=True)
        raise
    link.unlink(missing_ok=True)


class InPlace(Attempt):
    """A folder that is written in place: an attempt continues from the files of earlier ones."""

    shared = False  # whether several processes can write it together

    def make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        marker = self.path / UNFINISHED
        with locked(marker, self.path, {"digest": digest(self.recipe)}, self.before, self.shared) as lock:
            before = read_note(marker)
            if lock.alone:
                self.remove_outdated()
            if not self.is_up_to_date():
                if lock.alone:
                    self.unlink([MANIFEST, *before["moved"]])
                    if self.shared:
                        lock.share()
                if (stats := self.write(self.path)) is None:
                    return  # parts are missing
                if not self.is_up_to_date():
                    lock.require_held()
                    self.remove_partial()
                    self.finish(stats, self.files(lock, before["others"]))
            lock.remove()

    def before(self) -> Note:
        """The files in the folder before this attempt; called with the lock held, before any other process writes."""
        return {"others": foreign_files(self.path), "moved": self.moved()}

    def moved(self) -> Iterable[str]:
        """The files that an earlier attempt has moved to the top of the folder, such as one that was killed."""
        names: list[str] = read_note(self.path / UNFINISHED).get("moved", [])
        return names

    @abstractmethod
    def files(self, lock: Lock, others: list[str]) -> Sizes:
        """The files of the artifact; `others` were there before."""

    def finish(self, stats: Stats, files: Sizes) -> None:
        sync(*(self.path / name for name in files), self.path)
        write_text(self.path / MANIFEST, self.manifest(stats, files))

    def remove_outdated(self) -> None:
        """Remove what killed processes have left, and the files of another recipe."""
        remove_leftovers(self.path, r".*")
        if (old := manifest_data(self.path)) and old["digest"] != digest(self.recipe):
            self.unlink(old.get("files", ()))

    def remove_partial(self) -> None:
        """Remove what a killed attempt has left, also on another machine, but not the manifest that a process which
        shares the work may be writing."""
        names = [path.name for path in self.path.iterdir()]
        self.unlink(name for name in names if PARTIAL.fullmatch(name) and not name.startswith(MANIFEST))

    def unlink(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)


@dataclass
class Parts(InPlace):
    """A folder written in place whose files are those at its top that match the regular expression `names`."""

    names: str
    shared: bool

    def files(self, lock: Lock, others: list[str]) -> Sizes:
        sizes = sizes_in(self.path)
        return {name: sizes[name] for name in sizes if name not in others and re.fullmatch(self.names, name)}


@dataclass
class MovedToTop(InPlace):
    """A folder written in place whose files, of any names, `write` puts into a subfolder; then they are moved up."""

    subfolder: str

    def moved(self) -> Iterable[str]:
        manifest = manifest_data(self.path)
        return [*manifest.get("files", ())] if manifest else super().moved()

    def files(self, lock: Lock, others: list[str]) -> Sizes:
        names = sorted(path.name for path in (self.path / self.subfolder).iterdir())
        lock.add(moved=names)
        for name in names:
            (self.path / self.subfolder / name).replace(self.path / name)
        sizes = sizes_in(self.path)
        return {name: sizes[name] for name in names}
