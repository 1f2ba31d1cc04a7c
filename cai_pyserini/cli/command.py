"""What the commands have in common: settings that are parsed from the command line, and executed."""

from collections.abc import Callable

from cai_pyserini.core.settings import Argv, Group, Settings, parse


class Command(Settings):
    """The settings of a command, whose docstring is its help."""

    def execute(self) -> int | None:
        """Do the work, and print its result; returns the exit code, if it is not 0.

        Slow modules are imported here, so that --help responds at once.
        """
        raise NotImplementedError


def command(kinds: type[Command] | Group, name: str) -> Callable[[Argv], int | None]:
    """The function `main` of the module of a command, which parses a command line and executes it."""

    def main(argv: Argv = None) -> int | None:
        settings: Command = parse(kinds, argv, f"cai-pyserini {name}")
        return settings.execute()

    return main
