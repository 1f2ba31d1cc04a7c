from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Main
from cai_pyserini.core.steps import print_plan, require_unchanged, run
from cai_pyserini.trainer.settings import AdaptSettings


def _adapt(settings: AdaptSettings) -> None:
    require_trainer()

    from cai_pyserini.trainer.adapt import steps

    if settings.dry_run:
        print_plan(steps(settings))
        return
    run(steps(settings))
    require_unchanged(steps(settings), settings.output)
    print(f"{settings.output}: cai-pyserini run {settings.collection} --encoder {settings.output}")


main = Main(AdaptSettings, "adapt", _adapt)
