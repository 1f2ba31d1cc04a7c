"""Call a function on files from strangers in processes of their own, with limits of memory and time.

A module with such a function runs as a program and calls `serve`. Neither a crash, nor memory, nor endless work of a
call affects the caller: the process is killed and replaced. Where Linux permits it, the process has no network. Calls
and results are JSON: named tuples become objects.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

from cai_pyserini.core.errors import CaiError

SECONDS, CPU_SECONDS = 120.0, 60.0  # for one call, in all and of processor time
MEMORY = 3 << 29  # bytes for one call, 1.5 GiB, besides what the libraries of a process take
CALLS = 500  # calls per process, because libraries leak
TRIES, PAUSE = 3, 0.1  # of a call whose process dies; seconds between them
MAX_RESULT = 1 << 28  # bytes
ROOT = Path(__file__).parents[2]


class Failed(NamedTuple):
    """Why a call has no result, for people."""

    reason: str
    lasts: bool = False  # whether the same call would fail again


class _Worker:
    """A process that answers calls one by one."""

    def __init__(self, module: str):
        self.pipe, theirs = Pipe()
        self._process: subprocess.Popen[bytes] | None = None
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with suppress(OSError):  # too many processes or too little memory, which `start` finds
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],  # -P: no modules of the working directory
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what libraries print about a broken file
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
            )
        theirs.close()  # now only the process holds it, so its end raises EOFError in `recv`
        self.is_ready = False
        self.calls = 0
        self.call: Any = None
        self.tries, self.cpu_seconds = 0, 0.0  # of this call
        self.is_dead = False
        self.deadline = 0.0

    def send(self, call: Any, tries: int, seconds: float, cpu_seconds: float) -> None:
        self.calls += 1
        self.call, self.tries, self.deadline = call, tries + 1, time.monotonic() + seconds
        self.cpu_seconds = cpu_seconds
        with suppress(OSError):  # it has died, which `result` finds
            _send(self.pipe, (call, cpu_seconds))

    def start(self, seconds: float) -> bool:
        """Note whether the process has imported its module, or has died instead."""
        with suppress(EOFError, OSError, ValueError):
            self.is_ready = _received(self.pipe) is True
        self.deadline = time.monotonic() + seconds
        return self.is_ready

    def result(self) -> Any:
        """The result of the call. Failed if the process has died, or never started."""
        try:
            found = _received(self.pipe)
            return Failed(**found["failed"]) if "failed" in found else found["result"]
        except (EOFError, OSError):
            self.is_dead = True
            code = self._process.wait() if self._process else 0
            if code == -signal.SIGPROF:
                return Failed(f"takes more than {self.cpu_seconds:g} seconds of processor time", lasts=True)
            return Failed(f"crashed its reader ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})")

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
        self.pipe.close()


def isolated[T](
    module: str, calls: Iterable[T], processes: int, seconds: float = SECONDS, cpu_seconds: float = CPU_SECONDS
) -> Iterator[tuple[T, Any]]:
    """Yield each call with what the function of `module` returns, or with Failed, in the order in which they end.

    A call whose process dies is tried again. Raises CaiError if no process starts, for example because the module
    cannot be imported.
    """
    remaining, repeated = ((call, 0) for call in calls), list[tuple[T, int]]()
    idle, busy, has_started = list[_Worker](), dict[Connection, _Worker](), False
    try:
        while True:
            while len(busy) < processes and (item := repeated.pop() if repeated else next(remaining, None)):
                worker = idle.pop() if idle else _Worker(module)
                busy[worker.pipe] = worker
                worker.send(*item, seconds, cpu_seconds)
            if not busy:
                return
            timeout = min(worker.deadline for worker in busy.values()) - time.monotonic()
            ready = cast(list[Connection], wait(list(busy), max(0.0, timeout)))
            late = [pipe for pipe, worker in busy.items() if worker.deadline <= time.monotonic() and pipe not in ready]
            for pipe in (*ready, *late):
                worker = busy[pipe]
                if not worker.is_ready and pipe in ready and worker.start(seconds):
                    has_started = True
                    continue
                del busy[pipe]
                result = Failed(f"took more than {seconds:.0f} seconds") if pipe in late else worker.result()
                if pipe in late or worker.is_dead or worker.calls >= CALLS:
                    worker.kill()
                else:
                    idle.append(worker)
                if worker.is_dead and worker.tries < TRIES and not result.lasts:
                    repeated.append((worker.call, worker.tries))
                    time.sleep(PAUSE)
                elif worker.is_dead and not has_started:
                    raise CaiError(f"a process failed to start: `{sys.executable} -m {module} 0` says why")
                else:
                    yield worker.call, result
    finally:
        for worker in (*idle, *busy.values()):
            worker.kill()


def serve(function: Callable[[Any], Any]) -> None:
    """Answer the calls of `isolated` in this process, until it is killed. Exceptions become Failed."""
    pipe = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller too, which then kills this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with suppress(OSError):  # no network; other users than root need a new user namespace
            os.unshare(os.CLONE_NEWNET | (os.CLONE_NEWUSER if os.geteuid() else 0))
    with suppress(OSError, ValueError):  # macOS has no /proc, and refuses the limit
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with suppress(EOFError, BrokenPipeError):  # the caller is gone
        _send(pipe, True)
        while True:
            call, cpu_seconds = _received(pipe)
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # then SIGPROF ends this process
            _send(pipe, _result(function, call))


def _result(function: Callable[[Any], Any], call: Any) -> dict[str, Any]:
    try:
        return {"result": _plain(function(call))}
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except MemoryError:
        reason = f"needs more than {MEMORY / (1 << 30):.1f} GiB of memory"
    except RecursionError:
        reason = "is nested too deeply"
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return {"failed": {"reason": reason}}


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def _send(pipe: Connection, message: Any) -> None:
    pipe.send_bytes(json.dumps(message, ensure_ascii=False).encode(errors="surrogatepass"))


def _received(pipe: Connection) -> Any:
    return json.loads(pipe.recv_bytes(MAX_RESULT).decode(errors="surrogatepass"))
