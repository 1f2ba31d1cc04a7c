"""`cai-pyserini COMMAND …`, `python -m cai_pyserini COMMAND …`: all commands, and Pyserini's modules.

`-m MODULE` runs a module of Pyserini, unmodified, that can load our encoders by name.
"""

import atexit
import gc
import runpy
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from cai_pyserini.cli import COMMANDS, USAGE
from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.version import VERSION

HELP = ("help", "-h", "--help")


def main(argv: list[str]) -> int | None:
    """Run a command line; the result is the exit code."""
    match argv:
        case [command, *arguments] if command in COMMANDS:
            return import_module(f"cai_pyserini.cli.{command}").main(arguments)
        case [first, *others] if first in HELP and (names := [name for name in others if name not in HELP]):
            is_stage = names[0] not in COMMANDS and _is_stage(names[0])
            return main([*(["stage"] if is_stage else []), *names, "--help"])
        case [] | ["-h" | "--help" | "help", *_]:
            print(USAGE)
        case ["-V" | "--version", *_]:
            print(f"cai-pyserini {VERSION}")
        case ["-m", name, *arguments]:
            _run_pyserini(name, arguments)
        case [wrong, *_]:
            print(f"error: no command {wrong!r}{_hint(wrong) or ';'} `cai-pyserini --help` lists them", file=sys.stderr)
            return 2
    return None


def _is_stage(name: str) -> bool:
    from cai_pyserini.cli.stage import STAGES

    return name in STAGES


def _hint(wrong: str) -> str:
    return f"; did you mean `stage {wrong}`?" if _is_stage(wrong) else did_you_mean(wrong, [*COMMANDS, "help"])


def _run_pyserini(module: str, arguments: list[str]) -> None:
    from cai_pyserini.plugin import hook

    hook.register()
    try:
        known = find_spec(module)
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or ""):
            raise  # of a package that Pyserini needs
        known = None
    if known is None:
        raise CaiError(f"no module named {module}")
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def cli() -> None:
    """Run the command line of this process."""
    atexit.register(gc.freeze)  # Python would search all that PyTorch has loaded for garbage, for half a second
    terminal.run(partial(main, sys.argv[1:]))


if __name__ == "__main__":
    cli()
