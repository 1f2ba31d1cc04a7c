import sqlite3
import time
from itertools import accumulate
from typing import TYPE_CHECKING

from cai_pyserini.core import tables, terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Argv, Settings, flag, parse

if TYPE_CHECKING:  # imports SciPy
    from cai_pyserini.vectors.cache import FileStats


class VectorsSettings(Settings):
    """List the cache of vectors, with which no text is encoded twice on this machine, and delete old ones.

    The cache is the folder `vectors` in $PYSERINI_CACHE or ~/.cache/pyserini, or is $CAI_PYSERINI_VECTORS; if that is
    empty, there is none. Whatever is deleted is encoded again where it is needed.
    """

    example = "python -m cai_pyserini.vectors --older-than 90"
    older_than: int | None = flag(None, "delete vectors that have not been used for so many days, give or take 7", ge=0)
    size: float | None = flag(None, "keep so many GB, of the vectors that were used last, and delete the others", ge=0)


def main(argv: Argv = None) -> None:
    settings = parse(VectorsSettings, argv, "python -m cai_pyserini.vectors")

    from cai_pyserini.vectors.cache import VARIABLE, cache_folder, file_stats, prune

    if (folder := cache_folder()) is None:
        raise CaiError(f"there is no cache of vectors, as {VARIABLE} is set to nothing")
    rows, deleted, path = [["encoder", "vectors", "MB", "last used", "file"]], 0, folder
    paths = sorted(folder.glob("*.sqlite"))
    try:
        before = int(time.time()) - 86400 * settings.older_than + 1 if settings.older_than is not None else 0
        if settings.size is not None:
            before = max(before, _oldest([file_stats(path := each) for each in paths], 1e9 * settings.size))
        for path in paths:
            deleted += prune(path, before) if before else 0
            stats = file_stats(path)
            last = time.strftime("%Y-%m-%d", time.gmtime(stats.used[0][0])) if stats.used else ""
            rows.append([", ".join(stats.names), f"{stats.rows:,}", f"{stats.bytes / 1e6:,.1f}", last, path.name])
    except sqlite3.Error as error:
        raise CaiError(f"{path}: {error}; if it is damaged, delete it") from None
    print(f"{folder}: {sum(path.stat().st_size for path in paths) / 1e9:,.2f} GB, {deleted:,} vectors deleted")
    if paths:
        print(tables.aligned(rows))


def _oldest(files: "list[FileStats]", limit: float) -> int:
    """The time of last use from which on vectors take at most so many bytes."""
    used = sorted(((at, count * file.bytes / file.rows) for file in files for at, count in file.used), reverse=True)
    sizes = accumulate(size for _, size in used)
    return next((at + 1 for (at, _), so_far in zip(used, sizes, strict=True) if so_far > limit), 0)


if __name__ == "__main__":
    terminal.run(main)
