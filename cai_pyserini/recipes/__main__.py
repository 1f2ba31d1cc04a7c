"""The commands of the recipes."""

from collections.abc import Sequence

from cai_pyserini.core import terminal
from cai_pyserini.core.packages import require_modules
from cai_pyserini.core.settings import Settings, parse
from cai_pyserini.recipes.settings import AdaptSettings, GplSettings
from cai_pyserini.trainer.__main__ import PACKAGES

COMMANDS: dict[str, type[Settings]] = {"adapt": AdaptSettings, "gpl": GplSettings}


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(COMMANDS, argv, "python -m cai_pyserini.recipes", "Adapt a retriever to a collection.")
    require_modules(PACKAGES, "trainer")
    match settings:
        case AdaptSettings():
            from cai_pyserini.recipes.adapt import adapt

            adapt(settings)
        case GplSettings():
            from cai_pyserini.recipes.gpl import gpl

            gpl(settings)
        case _:
            raise TypeError(type(settings))
    print(f"{settings.output}: ./run_beir.sh {settings.collection} --encoder {settings.output}")


if __name__ == "__main__":
    terminal.run(main)
