import sqlite3
import time
from itertools import accumulate
from typing import TYPE_CHECKING

from cai_pyserini.core import tables
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Argv, Settings, flag, parse

if TYPE_CHECKING:  # imports SciPy
    from cai_pyserini.vectors.cache import FileStats


class VectorsSettings(Settings):
    """List the vector cache, which saves encoding a text twice on this machine, and delete old vectors.

    The cache is $CAI_PYSERINI_VECTORS, or else the folder `vectors` in $PYSERINI_CACHE or ~/.cache/pyserini. An empty
    $CAI_PYSERINI_VECTORS turns it off. Deleted vectors are encoded again when they are needed.
    """

    example = "cai-pyserini cache --older-than 90"
    older_than: int | None = flag(None, "delete vectors not used for this many days, give or take 7", ge=0)
    size: float | None = flag(None, "keep this many GB of the most recently used vectors, and delete the others", ge=0)


def main(argv: Argv = None) -> None:
    settings = parse(VectorsSettings, argv, "cai-pyserini cache")

    from cai_pyserini.vectors.cache import VARIABLE, cache_folder, file_stats, prune

    if (folder := cache_folder()) is None:
        raise CaiError(f"the vector cache is off, because {VARIABLE} is empty")
    rows, deleted, path = [["encoder", "vectors", "MB", "last used", "file"]], 0, folder
    paths = sorted(folder.glob("*.sqlite"))
    try:
        before = int(time.time()) - 86400 * settings.older_than + 1 if settings.older_than is not None else 0
        if settings.size is not None:
            before = max(before, _oldest_to_keep([file_stats(path := each) for each in paths], 1e9 * settings.size))
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


def _oldest_to_keep(files: "list[FileStats]", limit: float) -> int:
    """The earliest time of last use such that the vectors used since then take at most `limit` bytes."""
    used = sorted(((at, count * file.bytes / file.rows) for file in files for at, count in file.used), reverse=True)
    totals = accumulate(size for _, size in used)
    return next((at + 1 for (at, _), total in zip(used, totals, strict=True) if total > limit), 0)
