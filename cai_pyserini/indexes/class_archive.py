"""An archive of the classes that a JVM loads to index and search (class data sharing), which takes a third off the
processor time from a start to the first hit.

The first process that starts a JVM has the archive made in the background, at the lowest priority, in the folder
`classes` of the cache; later ones use it. A JVM starts without an archive that is damaged or does not fit.
"""

import hashlib
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from cai_pyserini.core import files
from cai_pyserini.core.lock import locked

OTHERS = re.compile(r"-Xshare|Shared|ClassList|AOT|-Xlog")  # a user's options, which are left to have their effect
EXAMPLE = 'import cai_pyserini as cai; cai.index(["one text", "another"], system="bm25").search("text")'

_makers: list[subprocess.Popen[bytes]] = []  # kept, because Python warns of a process that outlives its object


def archive_path(home: Path, jar: Path) -> Path:
    """Where the archive for this JVM and jar is, or will be. Raises OSError if they are not whole."""
    release, state = (home / "release").read_text(encoding="utf-8"), jar.stat()
    key = f"{home} {release} {jar} {state.st_size} {state.st_mtime_ns}"
    return files.cache_home() / "classes" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def archive_options(home: Path, jar: Path, options: list[str], user_options: str) -> list[str]:
    """Options with which the JVM of `home` uses the archive for `jar`, which is made with `options`; none before."""
    if OTHERS.search(user_options):
        return []
    with suppress(OSError, RuntimeError):  # no release file, or no home folder that can be written to
        archive = archive_path(home, jar)
        if archive.is_file():
            if archive.stat().st_uid != os.getuid():  # another user's classes would run with our rights
                return []
            # Warnings go to standard output by default.
            log = ["-Xlog:disable", "-Xlog:all=warning:stderr"]
            return [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", *log]
        archive.parent.mkdir(parents=True, exist_ok=True)
        if os.access(archive.parent, os.W_OK):
            dump = [str(home / "bin" / "java"), "-Xshare:dump", *options, "-cp", str(jar)]
            command = [sys.executable, "-P", "-m", __name__, str(archive), *dump]
            null = subprocess.DEVNULL
            _makers.append(subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True))
    return []


def make(archive: Path, dump: list[str]) -> None:
    """Index and search an example in another process to list the classes, and archive these by the command `dump`.
    Raises CaiError if another process is making it."""
    with locked(archive.with_suffix(".lock"), archive, {}) as lock, TemporaryDirectory(dir=archive.parent) as folder:
        classes, new = Path(folder) / "classes", Path(folder) / archive.name
        if not archive.exists():
            recording = os.environ | {"JAVA_TOOL_OPTIONS": f"-XX:DumpLoadedClassList={classes}"}
            subprocess.run([sys.executable, "-P", "-c", EXAMPLE], env=recording, check=True)
            listed = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={new}"]
            subprocess.run([dump[0], *listed, *dump[1:]], check=True)
            files.sync(new)
            new.replace(archive)
        lock.remove()


if __name__ == "__main__":
    os.nice(19)
    make(Path(sys.argv[1]), sys.argv[2:])
