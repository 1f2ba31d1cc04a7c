"""Experiments of several runs: collections, encoders, and seeds of what is trained.

The settings of each run are those of the experiment with one of each. Encoders of `train` are made first, in
`<output>/models`: every training is an artifact, which is made again if its settings or inputs change.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.collections.readers import in_languages, languages_found
from cai_pyserini.core import steps
from cai_pyserini.core.config import ENGLISH, IndexConfig, is_encoder, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import NAME
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import Settings, build, place_in
from cai_pyserini.core.steps import Call
from cai_pyserini.experiments.by_language import log_choice, suited
from cai_pyserini.experiments.names import REQUIRED
from cai_pyserini.experiments.plan import require
from cai_pyserini.experiments.prepare import Prepared, prepare
from cai_pyserini.experiments.provenance import repeated
from cai_pyserini.experiments.settings import RunSettings
from cai_pyserini.experiments.summary import VERIFIED
from cai_pyserini.runs.measures import parse_measures
from cai_pyserini.trainer.commands import TRAININGS

FILES = {"mine", "msmarco", "score"}  # trainings that write a file, the `data` of later ones; others write their `base`
STEPS = [name for name in TRAININGS if name != "generate"]  # which writes a collection
FIXED = {"config", "output", "seed"}  # settings of trainings that the experiment determines
logger = logging.getLogger(__name__)


class Trained(NamedTuple):
    """An encoder that is trained: its steps, the encoder that it starts from, and whether a seed shapes it."""

    steps: list[Call]
    base: str
    seeded: bool

    @property
    def output(self) -> Path:
        return self.steps[-1].output


class Variant(NamedTuple):
    """An encoder and a seed, which is None if nothing is trained; `label` names its folders."""

    encoder: str
    seed: int | None
    label: str
    trained: list[Trained]
    changes: dict[str, Any]  # of the settings


class Cell(NamedTuple):
    """A run of an experiment: `settings` are those of this run alone. The `name` of the only one is empty."""

    name: str
    settings: RunSettings
    config: IndexConfig
    variant: Variant

    def prepare(self) -> Prepared:
        return prepare(self.settings, self.config)

    def require(self) -> Prepared:
        """The run, if it can run, else raises CaiError. Encoders that do not exist yet are represented by those that
        they start from."""
        missing = [each for each in self.variant.trained if not each.output.is_dir()]
        bases = {str(each.output): each.base for each in missing}
        (encoder,), dense = self.settings.encoder, self.settings.dense
        encoders = {"encoder": [bases.get(encoder, encoder)], "dense": dense and bases.get(dense, dense)}
        prepared = prepare(self.settings.replace(**encoders), self.config)
        require(*prepared)
        return prepared

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let errors begin with the name."""
        try:
            yield
        except CaiError as error:
            if not self.name:
                raise
            raise CaiError(f"{self.name}: {error}") from error


class Grid:
    """The runs that settings ask for. `changes` are further values of the collections' configs.

    Raises CaiError for settings that cannot be right, before anything is written.
    """

    def __init__(self, settings: RunSettings, **changes: Any):
        self.settings, own = repeated(settings)
        parse_measures(self.settings.measures)
        if self.settings.verify and VERIFIED not in self.settings.measures:
            self.settings = self.settings.replace(measures=[*self.settings.measures, VERIFIED])
        self.root = self.settings.output or Path("runs")
        self.configs = _configs(self.settings, own | changes)
        self.languages = {argument: languages_found(config) for argument, config in self.configs.items()}
        self.configs = {each: in_languages(config, self.languages[each]) for each, config in self.configs.items()}
        if self.settings.adapt or self.settings.train:
            require_trainer()
        _log_names(self.settings)

    @cached_property
    def cells(self) -> list[Cell]:
        """The runs, by collection, encoder and seed."""
        settings, cells = self.settings, []
        variants = self._variants()
        in_folders = len(variants) > 1 or bool(settings.train)
        for (collection, config), variant in product(self.configs.items(), variants):
            output = settings.output
            if in_folders and (output or variant.trained or variant.label != variant.encoder):
                output = self.root / config.name / variant.label
            elif output and len(self.configs) > 1:
                output /= config.name
            changes = {"collections": [collection], "output": output, "config": None, "train": {}} | variant.changes
            name = ", ".join([config.name] * (len(self.configs) > 1) + [variant.label] * (len(variants) > 1))
            cell = Cell(name, settings.replace(**changes), config, variant)
            if (languages := self.languages[collection]) != [ENGLISH]:
                cell = cell._replace(settings=suited(cell.settings, languages))
                log_choice(config.name, languages, cell.settings)
            cells.append(cell)
        return cells

    @property
    def trainings(self) -> list[Call]:
        """The steps that train encoders, each once."""
        calls = [call for trained in self._trained for call in trained.steps]
        return list({call.output: call for call in calls}.values())

    @property
    def _trained(self) -> list[Trained]:
        return [trained for cell in self.cells for trained in cell.variant.trained]

    def require(self) -> None:
        """Raise CaiError for what cannot run, and for runs of a collection that cannot be compared: some search its
        passages, as their encoder would not read most of its text."""
        found: dict[str, tuple[str, int]] = {}
        for cell in self.cells:
            with cell.named():
                passages = cell.require().run.experiment.collection.passages or 0
                other, first = found.setdefault(cell.config.name, (cell.name, passages))
                if passages != first:
                    raise CaiError(f"one of this and {other} would search passages: set passages, or 0 for documents")

    def train(self) -> None:
        """Train the encoders that are not up to date. Raises CaiError if an input changes meanwhile."""
        steps.run(self.trainings)
        for trained in self._trained:
            steps.require_unchanged(trained.steps, trained.output)

    def _variants(self) -> list[Variant]:
        settings = self.settings
        if unknown := next((name for name in settings.train if is_encoder(name) or not NAME.fullmatch(name)), None):
            raise CaiError(
                f"{self._place(unknown)}: {unknown} is an encoder already, or no name (letters, digits, _.-)"
            )
        trained = [name for name in settings.train if name != settings.dense]
        names = settings.encoder if "encoder" in settings.model_fields_set else trained or settings.encoder
        variants = [variant for name in names for variant in self._seeded(name)]
        if len(settings.seed) > 1 and not any(variant.seed is not None for variant in variants):
            logger.warning("nothing is trained that depends on the seed: each encoder is run once")
        labels = [variant.label for variant in variants]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise CaiError(
                f"two encoders are named {twice}: leave one out, or write a YAML file of it under another name"
            )
        return variants

    def _seeded(self, given: str) -> Iterator[Variant]:
        """An encoder with each seed, or once if nothing is trained."""
        settings, dense = self.settings, self.settings.dense
        encoder = given if given in settings.train else load_encoder(given).name
        for seed in settings.seed:
            trained = {name: self._training(name, seed) for name in (given, dense) if name in settings.train}
            made = {name: str(each.output) for name, each in trained.items()}
            seeded = any(each.seeded for each in trained.values())
            changes = {"seed": [seed], "encoder": [made.get(given, given)], "dense": dense and made.get(dense, dense)}
            label = f"{encoder}-seed-{seed}" if seeded or (settings.adapt and len(settings.seed) > 1) else encoder
            is_drawn = seeded or settings.adapt
            yield Variant(encoder, seed if is_drawn else None, label, [*trained.values()], changes)
            if not is_drawn:
                return

    def _training(self, name: str, seed: int) -> Trained:
        """The steps of an encoder. Raises CaiError for settings that a training does not have, and missing files."""
        models, given = self.root / "models", self.settings.train[name]
        calls: list[Call] = []
        made: dict[str, str] = {}  # by the setting of later steps that it is
        base, seeded = "", False
        for number, step in enumerate(given):
            place = self._place(name, number)
            command, own = next(iter(step.items()), ("", {}))
            if command not in STEPS or len(step) > 1:
                raise CaiError(f"{place}: a step is one of {', '.join(STEPS)}, with its settings")
            if clash := sorted(own.keys() & FIXED):
                raise CaiError(f"{place}: {', '.join(clash)} cannot be set here")
            training, is_last = TRAININGS[command], number == len(given) - 1
            fields = training.settings.model_fields
            seeded |= "seed" in fields
            label = f"{name}-seed-{seed}" if seeded else name
            output = models / label if is_last else models / f"{label}.steps" / f"{number + 1}-{command}"
            inputs = tuple(Path(path) for key, path in made.items() if key in fields and key not in own)
            shared = {"device": self.settings.device, "seed": seed} | made
            values = {key: value for key, value in shared.items() if key in fields}
            keys = ("train", name, number, command)
            settings = build(training.settings, values | own | {"output": output}, self.settings.config or place, *keys)
            _require_files(settings, [*map(Path, made.values()), output], place)
            base = base or getattr(settings, "base", "")
            make = partial(training.make, settings)
            calls.append(Call(f"train {label}: {command}", output, make, inputs))
            made["data" if command in FILES else "base"] = str(output)
        if not given or command in FILES:
            raise CaiError(f"{self._place(name)}: the last step has to train {name}")
        return Trained(calls, base, seeded)

    def _place(self, *keys: str | int) -> str:
        """Where something is in `train`."""
        file = self.settings.config
        return place_in(file, "train", *keys) if file else ".".join(map(str, ("train", *keys)))


def _require_files(settings: Settings, made: Sequence[Path], place: str) -> None:
    """Raise CaiError if a file that a training reads is not there, unless it is one of those that will be made."""
    for key, value in settings:
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path) and path not in made and not path.exists():
                raise CaiError(f"{place}: {key}: no file {path}")


def _configs(settings: RunSettings, others: Mapping[str, Any]) -> dict[str, IndexConfig]:
    """The collections by their arguments. Raises CaiError for two of the same name, which would share a run folder."""
    own = {"split", "strict", "language", "remove_query", "passages"}
    changes = settings.model_dump(include=own, exclude_none=True)
    found: dict[str, tuple[str, IndexConfig]] = {}
    for argument in settings.collections:
        config = load_index_config(argument).replace(**changes, **others)
        if config.name in found:
            raise CaiError(
                f"{found[config.name][0]} and {argument} are both named {config.name}: leave one out, or write a YAML "
                "file of it with another `name`"
            )
        found[config.name] = argument, config
    if settings.train and "models" in found:
        raise CaiError("the folder models is that of trained encoders: give the collection another `name`")
    if settings.generated and len(found) > 1:
        raise CaiError("the setting generated has the queries of one collection: run each collection by itself")
    return dict(found.values())


def _log_names(settings: RunSettings) -> None:
    """Log the kinds of systems that `all` leaves out."""
    if "all" in settings.systems:
        for kind, setting in REQUIRED.items():
            if getattr(settings, setting) is None:
                logger.info("without %s: it needs the setting %s", kind, setting)
