"""What settings ask for: the run folder of each collection, its systems, and how encoders are adapted."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import EncoderConfig, IndexConfig, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.experiment import Experiment, Results
from cai_pyserini.experiments.names import REQUIRED, all_systems, current_name, default_systems, parse_system
from cai_pyserini.experiments.provenance import recorded, repeated
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import PASSAGE_WORDS, RunSettings
from cai_pyserini.experiments.summary import VERIFIED
from cai_pyserini.experiments.systems import System
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.folder import share_lost, warn_if_cut, with_folder_settings
from cai_pyserini.runs.measures import parse_measures
from cai_pyserini.trainer.settings import AdaptSettings

BEGINNING = 2000  # documents from whose lengths it is decided whether to search passages
MOST_LOST = 0.5  # share of the text that encoders may not read
logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A run that can be executed."""

    run: RunFolder
    systems: list[System]

    def execute(self, evaluate: bool = True) -> Results:
        return execute(self.run, self.systems, evaluate)


class Preparation:
    """The runs that settings ask for, one per collection. `changes` are further values of the collections' configs."""

    def __init__(self, settings: RunSettings, **changes: Any):
        settings, own = repeated(settings)
        parse_measures(settings.measures)
        if settings.verify and VERIFIED not in settings.measures:
            settings = settings.replace(measures=[*settings.measures, VERIFIED])
        self.settings = settings
        self.configs = _configs(settings, own | changes)
        self._decided: dict[str, IndexConfig] = {}
        self.encoder = encoder = load_encoder(settings.encoder)
        given = [parse_system(name) for name in settings.systems if name != "all"]
        if not given or "all" in settings.systems or any("splade" in system.evidence for system in given):
            self.encoder = encoder = with_folder_settings(encoder)  # others need no checkpoint
        self.dense = (
            with_folder_settings(load_encoder(settings.dense).replace(kind="dense")) if settings.dense else None
        )

    @cached_property
    def systems(self) -> list[System]:
        """The systems that the settings name, or the default ones."""
        settings = self.settings
        missing = {kind: name for kind, name in REQUIRED.items() if getattr(settings, name) is None}
        kinds = REQUIRED.keys() - missing
        names = settings.systems or default_systems(self.encoder, kinds, settings.adapt)
        if "all" in names:
            if self.dense and EncoderModel(self.dense).is_mean:
                kinds |= {"dense-idf"}
            every = all_systems(self.encoder, kinds, settings.adapt)
            names = [*every, *(name for name in names if name not in {"all", *every})]
            for kind, setting in missing.items():
                logger.info("without %s: it needs the setting %s", kind, setting)
        for name in names:
            if (current := current_name(name)) != name:
                logger.warning("the system %s is now %s; version 0.4 will not know its former name", name, current)
        return [parse_system(name) for name in dict.fromkeys(names)]

    def prepare(self, collection: str) -> Prepared:
        """The run of a collection, by its name in `configs`. Each call opens encoders anew."""
        if collection not in self._decided:
            self._decided[collection] = self._in_passages(self.configs[collection])
        settings, config = self.settings, self._decided[collection]
        shared = Experiment.model_fields.keys() & RunSettings.model_fields.keys() - {"encoder", "dense"}
        experiment = Experiment(
            collection=config,
            encoder=self.encoder,
            dense=self.dense,
            raw=not settings.no_raw,
            **settings.model_dump(include={*shared}),
        )
        folder = settings.output or Path("runs") / config.name / self.encoder.name
        of_several = settings.output is not None and len(self.configs) > 1
        run = RunFolder(folder / config.name if of_several else folder, experiment)
        if settings.adapt:
            run.adaptation = self._adaptation(collection, run)
        run.settings = recorded(settings, collection)
        if settings.output is None:
            _require_same_encoder(RunFolder(run.root), self.encoder)
        return Prepared(run, self.systems)

    def _in_passages(self, config: IndexConfig) -> IndexConfig:
        """The collection in passages, if it does not say how long documents are, and the first encoder would not read
        most of the text. (An adaptation reads the collection as its YAML file says.) Warns of what a dense encoder
        would not read; of SPLADE, the first step does."""
        evidence = set().union(*(system.evidence for system in self.systems))
        found = {"splade": self.encoder, "dense": self.dense}
        encoders = [encoder for kind, encoder in found.items() if encoder and kind in evidence]
        if config.passages or not encoders:
            return config
        with suppress(CaiError):  # which the first step reports
            texts = open_collection(config).beginning(BEGINNING)
            lost = share_lost(encoders[0], texts)
            if lost > MOST_LOST and config.passages is None and not self.settings.adapt:
                logger.warning(
                    "%s: encoders would not read %.0f%% of the text, so passages of %d words are searched; "
                    "with passages 0, whole documents",
                    *(config.name, 100 * lost, PASSAGE_WORDS),
                )
                return config.replace(passages=PASSAGE_WORDS)
            if self.dense in encoders:
                warn_if_cut(self.dense, texts, config.name)
        return config

    def _adaptation(self, collection: str, run: RunFolder) -> AdaptSettings:
        settings = self.settings
        fusion: dict[str, Any] = {}
        if self.dense:
            fusion = {"weights": run.experiment.three_way_weights, "depth": settings.depth}
        return AdaptSettings(
            collection=collection,
            base=settings.encoder,
            dense=settings.dense,
            output=run.adapted,
            vectors=run.vectors,
            **settings.model_dump(include={"alpha", "seed", "device", "precision"}),
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


def _configs(settings: RunSettings, others: Mapping[str, Any]) -> dict[str, IndexConfig]:
    """The collections by their arguments. Raises CaiError for two of the same name, which would share a run folder."""
    changes = settings.model_dump(include={"split", "strict", "remove_query", "passages"}, exclude_none=True)
    found: dict[str, tuple[str, IndexConfig]] = {}
    for argument in settings.collections:
        config = load_index_config(argument).replace(**changes, **others)
        if config.name in found:
            raise CaiError(
                f"{found[config.name][0]} and {argument} are both named {config.name}: leave one out, or write a YAML "
                "file of it with another `name`"
            )
        found[config.name] = argument, config
    if settings.generated and len(found) > 1:
        raise CaiError("the setting generated has the queries of one collection: run each collection by itself")
    return dict(found.values())
