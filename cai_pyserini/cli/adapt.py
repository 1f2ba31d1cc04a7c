from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Argv, parse
from cai_pyserini.core.steps import print_plan, require_unchanged, run
from cai_pyserini.trainer.settings import AdaptSettings


def main(argv: Argv = None) -> None:
    settings = parse(AdaptSettings, argv, "cai-pyserini adapt")
    require_trainer()

    from cai_pyserini.trainer.adapt import steps

    if settings.dry_run:
        print_plan(steps(settings))
        return
    run(steps(settings))
    require_unchanged(steps(settings), settings.output)
    print(f"{settings.output}: cai-pyserini run {settings.collection} --encoder {settings.output}")
