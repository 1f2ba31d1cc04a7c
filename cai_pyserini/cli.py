"""What the commands share: how they fail, and how long things show their progress."""

import argparse
import errno
import logging
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm


class CaiError(Exception):
    """Something the caller can mend. The message names the file, the line and the remedy."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks, and shows the defaults that are worth it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default not in (None, False, "", 0, argparse.SUPPRESS)
        return f"{action.help} (default: %(default)s)" if shown else action.help


def parser(description: str, example: str) -> argparse.ArgumentParser:
    """An argument parser whose help ends with a command that can be copied."""
    return argparse.ArgumentParser(
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=_Help,
    )


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """--collection and --encoder, as every stage that reads documents takes them."""
    parser.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument(
        "--encoder", required=True, help="a name in encoders/, a YAML file, a checkpoint folder, a hub id"
    )


def progress[T](items: Iterable[T], total: int | None, label: str, unit: str = "doc") -> "tqdm[T]":
    """`items`, with a progress bar on a terminal and none in a log file."""
    from tqdm import tqdm

    return tqdm(items, total=total, desc=label, unit=unit, disable=None, mininterval=0.5)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command: exit 0 when it worked, 1 with one line on stderr when it did not, 130 when interrupted."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    try:
        code = main() or 0
        sys.stdout.flush()
    except CaiError as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = _fail("interrupted; the same command goes on from here", 130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing is left to say, nobody to say it to
        code = 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            code = _fail(f"no space left on the device of {error.filename or 'the output'}; free some and start again")
        else:
            code = _fail(str(error))
    sys.exit(code)


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
