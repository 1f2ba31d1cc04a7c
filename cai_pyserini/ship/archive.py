"""Archives: folders as reproducible .tar.gz files, and their unpacking, which trusts no archive."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cai_pyserini.core.artifact import UNFINISHED
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress

LEVEL = 6  # of gzip's compression; 9 takes twice the time and saves 1 %
LEFT_OUT = (UNFINISHED, "write.lock")  # Lucene's lock belongs to a process, not to an index


def pack(folders: Sequence[Path], name: str, output: Path) -> int:
    """Write the files of folders to a .tar.gz, as one folder `name`; where paths are equal, the last folder counts.

    Returns the size of the uncompressed tar in bytes. Equal files give equal bytes: members are sorted, and have no
    owner and no time.
    """
    files = {
        path.relative_to(folder): path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name not in LEFT_OUT
    }
    parents = {parent for path in files for parent in path.parents}
    paths = progress(sorted({*parents, *files}), len(parents) + len(files), f"pack {name}", "file")
    with output.open("wb") as file, gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in paths:
                member = tarfile.TarInfo(PurePosixPath(name, path).as_posix())
                if path in parents:
                    member.type, member.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(member)
                else:
                    member.size = files[path].stat().st_size
                    with files[path].open("rb") as contents:
                        tar.addfile(member, contents)
        return zipped.tell()


def unpack(archive: Path, name: str, size: int, output: Path) -> Path:
    """Unpack an archive of one folder `name` into `output`, and return that folder.

    Raises CaiError for an archive that is broken, uncompresses to more than `size` bytes, or has anything but folders
    and regular files inside `name`. What is in `output` must not be used then.
    """
    try:
        with (
            gzip.open(archive) as unzipped,
            tarfile.open(fileobj=_Bounded(unzipped, size, archive), mode="r|") as tar,
        ):
            for member in progress(tar, None, f"unpack {name}", "file"):
                parts = PurePosixPath(member.name).parts
                is_inside = parts[:1] == (name,) and ".." not in parts
                if not is_inside or member.issparse() or not (member.isdir() or member.isreg()):
                    raise CaiError(f"{archive}: refused, as {member.name!r} is no regular file or folder in {name}")
                tar.extract(member, output, filter="data")
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise CaiError(f"{archive} cannot be unpacked ({error}); if it is broken or truncated, get it again") from None
    if not (output / name).is_dir():
        raise CaiError(f"{archive}: refused, as it has no folder {name}")
    return output / name


class _Bounded(io.BufferedIOBase):
    """A stream that refuses to be longer than `size` bytes."""

    def __init__(self, file: io.BufferedIOBase, size: int, archive: Path):
        self._file, self._left = file, size
        self._message = f"{archive}: refused, as it uncompresses to more than the {size:,} bytes of its entry"

    def read(self, count: int | None = -1) -> bytes:
        data = self._file.read(count)
        self._left -= len(data)
        if self._left < 0:
            raise CaiError(self._message)
        return data
