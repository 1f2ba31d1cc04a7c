"""Run Anserini's indexers, each in a separate process."""

import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import folder_bytes, remove_leftovers, temporary
from cai_pyserini.indexes import jvm

KEPT_SECONDS = 30 * 24 * 3600  # since it was last used, of a cache of classes for another Java or jar
SMALL = 1 << 20  # bytes of documents, for which Java's optimizing compiler takes more time than it gains


def run_indexer(indexer: str, count: int, heap: str, options: Mapping[str, object], *switches: str) -> int:
    """Index `count` documents with a class of io.anserini.index, and return how many were not empty and so were
    indexed. Raises CaiError with Anserini's messages if any other document is missing."""
    java = jvm.set_environment()
    command = [java.command, *jvm.options(java, heap), "-cp", str(jvm.anserini_jar())]
    classes = jvm.class_cache(java)
    partial = classes and temporary(classes)
    if classes and partial and not classes.exists():
        with suppress(OSError):  # without it, Java only starts more slowly
            classes.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(classes.parent, r".*\.aot")
            command.append(f"-XX:AOTCacheOutput={partial}")
    elif folder_bytes(Path(str(options["input"]))) < SMALL:
        command.append("-XX:TieredStopAtLevel=1")
    command.append(f"io.anserini.index.{indexer}")
    command += [f"-{switch}" for switch in ("optimize", *switches)]
    command += [word for name, value in options.items() for word in (f"-{name}", str(value))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, encoding="utf-8", errors="replace"
    )
    counts = {key: int(n.replace(",", "")) for key, n in re.findall(r"(indexed|empty): +([\d,]+)\n", done.stdout)}
    lines = done.stdout.strip().splitlines()
    errors = [line for line in lines if " ERROR " in line]
    if done.returncode or errors or counts.get("indexed", 0) + counts.get("empty", 0) != count:
        tail = "\n  ".join(errors[:3] + lines[-5:])
        raise CaiError(f"Anserini indexed {counts.get('indexed', 0):,} of {count:,} documents:\n  {jvm.clarify(tail)}")
    if classes and partial and partial.exists():
        partial.replace(classes)
        for other in classes.parent.glob("*.aot"):
            if other.stat().st_mtime < time.time() - KEPT_SECONDS:
                other.unlink(missing_ok=True)
    return counts["indexed"]
