"""Archives: folders as .tar.gz files that are the same for the same files, and back again, without trusting them."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tqdm.utils import CallbackIOWrapper

from cai_pyserini.core.artifact import UNFINISHED
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress

LEVEL = 6  # of gzip's compression; 9 takes twice the time and saves 1 %
LEFT_OUT = (UNFINISHED, "write.lock")  # Lucene's lock belongs to a process, not to an index


def pack(folders: Sequence[Path], name: str, output: Path) -> int:
    """Write the files of these folders to a .tar.gz, as one folder `name`; a later folder's file replaces one of the
    same path. Returns the size of the uncompressed tar in bytes.

    Equal files give equal bytes: members are sorted, and have no owner and no time.
    """
    files = {
        path.relative_to(folder): path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name not in LEFT_OUT
    }
    parents = {parent for path in files for parent in path.parents}
    size = sum(path.stat().st_size for path in files.values())
    with (
        progress(range(0), size, f"pack {name}", "B") as bar,
        output.open("wb") as file,
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as zipped,
    ):
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted({*parents, *files}):
                member = tarfile.TarInfo(PurePosixPath(name, path).as_posix())
                if path in parents:
                    member.type, member.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(member)
                    continue
                member.size = files[path].stat().st_size
                with files[path].open("rb") as contents:
                    tar.addfile(member, CallbackIOWrapper(bar.update, contents, "read"))
        return zipped.tell()


def unpack(archive: Path, name: str, size: int, output: Path) -> Path:
    """Unpack an archive that holds one folder `name`, and return that folder, in `output`.

    Raises CaiError for an archive that is broken, uncompresses to more than `size` bytes, or has anything but folders
    and regular files inside `name`. The caller deletes what is in `output` then.
    """
    try:
        with (
            progress(range(0), archive.stat().st_size, f"unpack {name}", "B") as bar,
            archive.open("rb") as file,
            gzip.GzipFile(fileobj=CallbackIOWrapper(bar.update, file, "read")) as unzipped,
            tarfile.open(fileobj=_Bounded(unzipped, size, archive), mode="r|") as tar,
        ):
            for member in tar:
                path = PurePosixPath(member.name)
                if path.parts[:1] != (name,) or ".." in path.parts:
                    raise CaiError(f"{archive}: refused, as it has {member.name!r}, which is outside its folder {name}")
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise CaiError(f"{archive}: refused, as {member.name!r} is neither a regular file nor a folder")
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
        self._message = f"{archive}: refused, as it uncompresses to more than the {size:,} bytes that its entry says"

    def read(self, count: int | None = -1) -> bytes:
        data = self._file.read(count)
        self._left -= len(data)
        if self._left < 0:
            raise CaiError(self._message)
        return data
