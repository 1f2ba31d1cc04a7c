"""Every kind of artifact, in a run of all systems."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cai_pyserini.core.config import IndexConfig, load_encoder
from cai_pyserini.experiments.artifacts import Artifact, Documents
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.index_artifacts import Index
from cai_pyserini.experiments.names import adapted, parse_system
from cai_pyserini.experiments.plan import artifacts
from cai_pyserini.experiments.ranking_artifacts import Ranking
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import SINGLE
from cai_pyserini.trainer.settings import AdaptSettings


def kinds(kind: type[Artifact]) -> Iterator[type[Artifact]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


ABSTRACT = {Documents, Index, Ranking}
UNKNOWN_SECONDS = {"AdaptedEncoders", "Rerank"}
UNKNOWN = ("encode adapted", "adapted-near-words")  # whose encoder does not exist yet
EVERY = [kind for kind in kinds(Artifact) if kind not in ABSTRACT]


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    folder = tmp_path_factory.mktemp("artifacts")
    experiment = Experiment(
        collection=IndexConfig(name="tiny", source=str(tiny)),
        encoder=load_encoder("splade-tiny"),
        dense=load_encoder("minilm").replace(kind="dense"),
        device="cpu",
    )
    settings = AdaptSettings(collection=str(tiny), base="splade-tiny", dense="minilm", output=folder / "adapted")
    run = RunFolder(folder / "run", experiment, adaptation=settings)
    single = [*SINGLE.values(), *(adapted(system) for system in SINGLE.values() if system.adaptable)]
    return artifacts(run, [*single, parse_system("trio"), parse_system("adapted-trio")])


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_a_kind_of_artifact_knows_all_of_itself(kind: type[Artifact], made: list[Artifact]) -> None:
    """The faults: a kind that no system reaches; two artifacts in one place, or two steps of one name; a kind whose
    inputs or time a run does not know."""
    mine = [each for each in made if type(each) is kind]
    assert mine
    for each in mine:
        assert each.output.is_relative_to(each.run.folder) and each.name
        assert [other for other in made if other.output == each.output or other.name == each.name] == [each]
        before = made[: made.index(each)]
        assert {other.output for other in each.made_from} <= {other.output for other in before}
        is_known = each.seconds() is not None
        assert is_known == (kind.__name__ not in UNKNOWN_SECONDS and not each.name.startswith(UNKNOWN)), each.name
