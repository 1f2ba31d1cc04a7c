"""What the settings of a run ask for: its run folder, its systems, and how encoders are adapted."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import EncoderConfig, IndexConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.experiment import Experiment, Results
from cai_pyserini.experiments.names import REQUIRED, all_systems, default_systems, parse_system
from cai_pyserini.experiments.provenance import recorded
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import PASSAGE_WORDS, RunSettings
from cai_pyserini.experiments.systems import System
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.folder import share_lost, warn_if_cut, warn_once, with_folder_settings
from cai_pyserini.trainer.settings import AdaptSettings

BEGINNING = 2000  # documents from whose lengths it is decided whether to search passages
MOST_LOST = 0.5  # share of the text that encoders may not read


class Prepared(NamedTuple):
    """A run that can be executed."""

    run: RunFolder
    systems: list[System]

    def execute(self, evaluate: bool = True) -> Results:
        return execute(self.run, self.systems, evaluate)


def prepare(settings: RunSettings, config: IndexConfig) -> Prepared:
    """The run of one collection, which has this config, one encoder and one seed. Each call opens encoders anew."""
    encoder = load_encoder(settings.encoder[0])
    given = [parse_system(name) for name in settings.systems if name != "all"]
    if not given or "all" in settings.systems or any("splade" in system.evidence for system in given):
        encoder = with_folder_settings(encoder)  # others need no checkpoint
    dense = with_folder_settings(load_encoder(settings.dense).replace(kind="dense")) if settings.dense else None
    systems = _systems(settings, encoder, dense)
    shared = Experiment.model_fields.keys() & RunSettings.model_fields.keys() - {"encoder", "dense"}
    experiment = Experiment(
        collection=_in_passages(config, settings, systems, encoder, dense),
        encoder=encoder,
        dense=dense,
        raw=not settings.no_raw,
        **settings.model_dump(include={*shared}),
    )
    run = RunFolder(settings.output or Path("runs") / config.name / encoder.name, experiment)
    if settings.adapt:
        run.adaptation = _adaptation(settings, run)
    run.settings = recorded(settings)
    if settings.output is None:
        _require_same_encoder(RunFolder(run.root), encoder)
    return Prepared(run, systems)


def _systems(settings: RunSettings, encoder: EncoderConfig, dense: EncoderConfig | None) -> list[System]:
    """The systems that the settings name, or the default ones."""
    kinds = {kind for kind, name in REQUIRED.items() if getattr(settings, name) is not None}
    names = settings.systems or default_systems(encoder, kinds, settings.adapt)
    if "all" in names:
        if dense and EncoderModel(dense).is_mean:
            kinds |= {"dense-idf"}
        every = all_systems(encoder, kinds, settings.adapt)
        names = [*every, *(name for name in names if name not in {"all", *every})]
    return [parse_system(name) for name in dict.fromkeys(names)]


def _in_passages(
    config: IndexConfig,
    settings: RunSettings,
    systems: Sequence[System],
    encoder: EncoderConfig,
    dense: EncoderConfig | None,
) -> IndexConfig:
    """The collection in passages, if it does not say how long documents are, and the first encoder would not read most
    of the text. (An adaptation reads the collection as its YAML file says.) Warns of what a dense encoder would not
    read; of SPLADE, the first step does."""
    evidence = set().union(*(system.evidence for system in systems))
    encoders = [each for kind, each in (("splade", encoder), ("dense", dense)) if each and kind in evidence]
    if config.passages or not encoders:
        return config
    with suppress(CaiError):  # which the first step reports
        texts = open_collection(config).beginning(BEGINNING)
        lost = share_lost(encoders[0], texts)
        if lost > MOST_LOST and config.passages is None and not settings.adapt:
            warn_once(
                f"{config.name}: encoders would not read {lost:.0%} of the text, so passages of {PASSAGE_WORDS} words "
                "are searched; with passages 0, whole documents"
            )
            return config.replace(passages=PASSAGE_WORDS)
        if dense in encoders:
            warn_if_cut(dense, texts, config.name)
    return config


def _adaptation(settings: RunSettings, run: RunFolder) -> AdaptSettings:
    fusion: dict[str, Any] = {}
    if settings.dense:
        three_way = settings.weights if len(settings.weights) == 3 else []  # of BM25 + SPLADE + dense
        fusion = {"weights": three_way, "depth": settings.depth}
    return AdaptSettings(
        collection=settings.collections[0],
        base=settings.encoder[0],
        dense=settings.dense,
        output=run.adapted,
        vectors=run.vectors,
        seed=settings.seed[0],
        **settings.model_dump(include={"alpha", "device", "precision"}),
        **fusion,
    )


def _require_same_encoder(run: RunFolder, encoder: EncoderConfig) -> None:
    """Raise CaiError if the default folder has the run of another checkpoint, whose folder only has the same name."""
    try:
        before = Path(run.experiment.encoder.checkpoint)
    except CaiError:  # no run, or one of another version
        return
    own = Path(encoder.checkpoint)
    if before.exists() and own.exists() and not before.samefile(own):
        raise CaiError(f"{run.root} has the run of {before}: choose another output for {own}, or delete that run")
