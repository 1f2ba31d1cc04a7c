"""Exit codes and error messages of commands, and progress bars."""

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

from cai_pyserini.core.errors import CaiError

if TYPE_CHECKING:  # tqdm is imported when the first bar is shown, so that --help starts at once
    from tqdm import tqdm

REMEDIES = {
    errno.ENOSPC: "no space left on the device of {}; free some and start again",
    errno.EROFS: "{} is on a read-only file system; choose another --output",
    errno.EACCES: "no permission to use {}",
    errno.EISDIR: "{} is a folder, not a file",
    errno.ENOTDIR: "{} is not a folder",
    errno.EEXIST: "{} already exists and is not a folder",
    errno.ENOENT: "no file {}",
}


def run(main: Callable[[], int | None], torchrun: bool = False) -> NoReturn:
    """Run a command. Exits with 0 on success, with 1 and a message on stderr on an error, with 130 if interrupted.

    Unless `torchrun`, it is an error if torchrun has started several processes of it.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    logging.addLevelName(logging.INFO, "note")
    logging.getLogger("cai_pyserini").setLevel(logging.INFO)
    try:
        if not torchrun:
            require_one_process()
        code = main() or 0
        sys.stdout.flush()
    except CaiError as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = _fail("interrupted; run the same command again to continue", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads our output any more
        code = 1
    except OSError as error:
        code = _fail(
            REMEDIES[error.errno].format(error.filename or "the output") if error.errno in REMEDIES else str(error)
        )
    sys.exit(code)


def require_one_process() -> None:
    """Raise CaiError if torchrun has started several processes, which would all write the same output."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CaiError(
            "this command runs in one process: start it without torchrun, which is for `trainer pretrain`, `trainer "
            "splade` and `trainer dense`"
        )


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def progress[T](items: Iterable[T], total: int | None, label: str, unit: str = "doc") -> "tqdm[T]":
    """Iterate over `items` with a progress bar, which is shown only on a terminal; the unit B is for bytes."""
    from tqdm import tqdm

    return tqdm(items, total=total, desc=label, unit=unit, unit_scale=unit == "B", disable=None, mininterval=0.5)


def say(text: str) -> None:
    """Print a line; under torchrun, only in the first process."""
    if os.environ.get("RANK", "0") == "0":
        print(text)
