"""Files and folders in object stores, at URLs such as s3://bucket/vectors, through fsspec.

A store writes each file whole or not at all. It has no folders: a folder exists while a file is in it. The store's own
package finds credentials and endpoints, for example in AWS_ENDPOINT_URL.
"""

import errno
import io
import os
import re
from collections.abc import Generator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path, PosixPath, PurePosixPath
from typing import TYPE_CHECKING, Any, Self, cast

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import install_command

if TYPE_CHECKING:  # imported at the first use of a store
    from fsspec import AbstractFileSystem

URL = re.compile(r"(?!file:|local:)[a-z][a-z0-9+.]*://[^/]")
BLOCK = 1 << 20  # bytes per request


def as_path(place: str | Path) -> Path:
    """A StorePath for the URL of an object store, else a path on this machine."""
    if isinstance(place, Path):
        return place
    return StorePath(place) if URL.match(place) else Path(place)


class StorePath(PosixPath):
    """A file or folder in an object store, with the part of pathlib's interface that artifacts need. Any other use of
    the path raises CaiError, as does every error of the store except FileNotFoundError.

    The paths of universal-pathlib are not instances of Path, which pydantic and Python's type checkers require here,
    raise the errors of each store as they are, and take 0.2 s of CPU time to import."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        raise CaiError(f"{self} is in an object store, which cannot be used here: give a path on this machine")

    def with_segments(self, *segments: Any) -> Self:
        path = PurePosixPath(*segments)  # absolute if an absolute path on this machine is joined to a URL
        return cast(Self, Path(path)) if path.is_absolute() else type(self)(path)

    def absolute(self) -> Self:
        return self

    def exists(self, **options: Any) -> bool:
        return self._info() is not None

    def is_file(self, **options: Any) -> bool:
        return (self._info() or {}).get("type") == "file"

    def is_dir(self, **options: Any) -> bool:
        return (self._info() or {}).get("type") == "directory"

    def stat(self, **options: Any) -> os.stat_result:
        """Only the size is set."""
        return os.stat_result((0, 0, 0, 0, 0, 0, self._call("info", str(self))["size"], 0, 0, 0))

    def rglob(self, pattern: str, **options: Any) -> Generator[Self]:
        """The files of a folder and its subfolders whose names match; none if it does not exist."""
        return (self / name for name in self.sizes() if fnmatch(PurePosixPath(name).name, pattern))

    def sizes(self) -> dict[str, int]:
        """The files of a folder and its subfolders: relative path -> bytes."""
        root = self._filesystem._strip_protocol(str(self))
        with suppress(FileNotFoundError):
            infos = self._call("find", str(self), detail=True)
            return {str(PurePosixPath(name).relative_to(root)): info["size"] for name, info in infos.items()}
        return {}

    def glob(self, pattern: str, **options: Any) -> Generator[Self]:
        return (path for path in self.rglob(pattern) if path.parent == self)

    def iterdir(self) -> Generator[Self]:
        return self.glob("*")

    def open(
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None, *more: Any, **options: Any
    ) -> Any:
        """Open a file for reading; to write one, use `upload` or core.files.atomic_write."""
        if mode not in ("r", "rb"):
            self.__fspath__()
        file = io.BufferedReader(_Reader(self), BLOCK)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding)

    def mkdir(self, *more: Any, **options: Any) -> None:
        """Do nothing: a folder exists while a file is in it."""

    def put(self, text: str) -> None:
        self._write("pipe_file", str(self), text.encode())

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._call("rm_file", str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def upload(self, source: Path) -> None:
        self._write("put_file", str(source), str(self))

    def download(self, target: Path) -> None:
        self._call("get_file", str(self), str(target))

    def _info(self) -> dict[str, Any] | None:
        try:
            return self._call("info", str(self))
        except FileNotFoundError:
            return None

    def _write(self, method: str, *arguments: Any) -> None:
        try:
            self._call(method, *arguments)
        except FileNotFoundError as error:  # for example, of a missing bucket
            raise CaiError(
                f"{self} cannot be written ({error.strerror}): create the bucket, or choose another output"
            ) from None

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        filesystem = self._filesystem
        try:
            return getattr(filesystem, method)(*arguments, **options)
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, str(error), str(self)) from None
        except Exception as error:  # every store has its own exceptions
            reason = str(error) or type(error).__name__
            raise CaiError(f"{self} cannot be used ({reason}): check the URL, and your access to it") from None

    @property
    def _filesystem(self) -> "AbstractFileSystem":
        import fsspec

        scheme = str(self).partition("://")[0]
        try:
            return fsspec.filesystem(scheme, use_listings_cache=False)  # other machines write there too
        except (ImportError, ValueError) as error:
            remedy = f": {install_command('s3')}" if scheme == "s3" else ""
            raise CaiError(f"{self}: {error}{remedy}") from None


class _Reader(io.RawIOBase):
    """A file in an object store whose bytes are fetched on reading."""

    def __init__(self, path: StorePath):
        self._path, self._size, self._position = path, path.stat().st_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.readall(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self, most: int | None = None) -> bytes:
        end = self._size if most is None else min(self._position + most, self._size)
        if end <= self._position:
            return b""
        data: bytes = self._path._call("cat_file", str(self._path), start=self._position, end=end)
        self._position += len(data)
        return data
