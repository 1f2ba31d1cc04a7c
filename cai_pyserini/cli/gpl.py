from cai_pyserini.core import terminal
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Argv, parse
from cai_pyserini.experiments.gpl_settings import GplSettings


def main(argv: Argv = None) -> None:
    settings = parse(GplSettings, argv, "cai-pyserini gpl")
    require_trainer()

    from cai_pyserini.experiments.gpl import gpl

    gpl(settings)
    print(f"{settings.output}: ./run_beir.sh {settings.collection} --encoder {settings.output}")


if __name__ == "__main__":
    terminal.run(main)
