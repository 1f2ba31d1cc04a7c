"""Exit codes, error messages and progress bars of commands; terminals get control characters escaped."""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from cai_pyserini.core.errors import CaiError

if TYPE_CHECKING:  # tqdm is imported for the first bar, so that --help is instant
    from tqdm import tqdm

BOLD, PLAIN = "\033[1m", "\033[0m"
CONTROLS = "[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"  # control characters and text direction
CONTROL = re.compile(CONTROLS)
BARS = r"\A\r|\r\Z|\A(?:\x1b\[A|\n)+\Z"  # control sequences of tqdm
ALLOWED_OR_CONTROL = re.compile(rf"({BARS}|{re.escape(BOLD)}|{re.escape(PLAIN)})|{CONTROLS}")


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command, and exit with 0 on success, 1 after an error message on stderr, 130 if interrupted, and
    141 if the reader of a pipe has gone, as in `| head`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `<&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # a character that the locale's encoding lacks must not end a command
            stream.reconfigure(errors=errors)
    sys.stdout, sys.stderr = (
        cast(TextIO, _Terminal(stream)) if stream.isatty() else stream for stream in (sys.stdout, sys.stderr)
    )
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    logging.addLevelName(logging.INFO, "note")
    logging.getLogger("cai_pyserini").setLevel(logging.INFO)
    try:
        try:
            code = main() or 0
        finally:
            sys.stdout.flush()  # also of the help, which argparse ends with SystemExit
    except CaiError as error:
        code = _fail(str(error))
    except ModuleNotFoundError as error:  # other extras than `encode` are asked for before
        if (error.name or "").startswith("cai_pyserini"):
            raise
        from cai_pyserini.core.packages import install_command

        code = _fail(f"{error.name} is not installed: {install_command('encode')}")
    except KeyboardInterrupt:
        code = _fail("interrupted; run the same command again to continue", 130)
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # whose reader has gone; that of one may be that of both
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        code = 141  # as of programs that SIGPIPE ends
    except OSError as error:
        reason = error.strerror or str(error)
        code = _fail(f"{error.filename}: {reason}" if error.filename else reason)
    sys.exit(code)


def shows_bold() -> bool:
    """Whether standard output is a terminal that may get bold text; see no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Escape the control characters of a text, except newline and tab, as in JSON: `\\u001b`."""
    return CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class _Terminal:
    """A terminal that gets control characters escaped, except those of bold text and progress bars."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(ALLOWED_OR_CONTROL.sub(lambda found: found[1] or _escaped(found), text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {printable(message)}", file=sys.stderr)
    return code


def progress[T](items: Iterable[T], total: int | None, label: str, unit: str = "documents") -> "tqdm[T]":
    """Iterate over `items`, `total` of the things `unit`, with a progress bar, shown only on a terminal; the unit B
    means bytes."""
    from cai_pyserini.core.bars import bar

    return bar(items, total, label, unit)
