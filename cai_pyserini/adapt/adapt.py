"""From a collection to a retriever adapted to it.

From a released SPLADE checkpoint, with nothing but documents: training on pseudo queries with in-batch and hard
negatives (contrast); with a teacher, a second training from the same checkpoint that distils it; then the mean of the
old and the new weights (Wortsman et al. 2022), which keeps what the checkpoint knew.
docs/experiments/adaptation.md has what was tried.

From a plain language model, with a training file of MS MARCO (`--data`), the paper's recipe: vocabulary expansion,
pretraining on the collection, SPLADE training with Margin-MSE.

Both end with the collection's IDF and an encoder.yaml that names it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import batched, dropwhile, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import AutoTokenizer

from cai_pyserini.adapt import estimate, material, projection
from cai_pyserini.adapt.choice import Candidate, Choice, Decision
from cai_pyserini.adapt.examples import NEGATIVES, Examples
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.pseudo_queries import passage
from cai_pyserini.adapt.served import Served
from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.collection.contract import Document
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress, say
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.idf.idf import compute
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder, require_positions
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.trainer import generate, pretrain, score, training, vocabulary
from cai_pyserini.trainer.callbacks import duration
from cai_pyserini.trainer.examples import Example, count, examples, in_epoch
from cai_pyserini.trainer.settings import (
    GenerateSettings,
    PretrainSettings,
    ScoreSettings,
    SpladeSettings,
    VocabularySettings,
    inherited,
    load_step,
    recorded,
    write_encoder,
)
from cai_pyserini.trainer.splade import SpladeTraining

STAGE = "adapt"
SHORT = {"batch_size": 24, "max_document_length": 96, "dropout": 0.0, "sampled_terms": 1000}
CONTRAST = SHORT | {"loss": "in-batch", "learning_rate": 5e-5, "max_steps": 200, "warmup": 0.25}
DISTIL = SHORT | {"learning_rate": 2e-4, "max_steps": 450, "warmup": 0.11, "lambda_q": 0.01, "lambda_d": 0.01}
WEIGHTS = {1: 0.3, 2: 0.4}  # of the new weights in the mean: of one training, of two
NO_JUDGES = "not adapted: no document makes a query that could judge"


class Step(NamedTuple):
    """A step whose result is kept. `is_done` can be called once the steps before it are done."""

    name: str
    work: str  # what it does, with counts
    run: Callable[[], Path]
    is_done: Callable[[], bool]
    seconds: Callable[[], float] | None = None  # measures how long it will take


class Adaptation:
    """The settings of all steps, checked before the first of them starts."""

    def __init__(self, settings: AdaptSettings):
        self.settings = settings
        self.config = load_index_config(settings.collection)
        self.collection = open_collection(self.config)
        self.base = load_encoder(settings.base)
        self.folder = settings.output.with_name(f"{settings.output.name}.steps")
        self.start = settings.base  # what the SPLADE trainings start from
        common = {"device": settings.device, "seed": settings.seed}
        self.vocabulary = self.pretrain = self.generate = self.score = self.distil = None
        if settings.data or settings.vocabulary:
            fixed = {"corpus": [settings.collection], "base": self.start, "output": self.folder / "vocabulary"}
            self.vocabulary = load_step(VocabularySettings, settings.vocabulary, fixed)
            self.start = str(self.vocabulary.output)
        if settings.data or settings.pretrain:
            fixed = {"corpus": [settings.collection], "base": self.start, "output": self.folder / "pretrained"}
            self.pretrain = load_step(PretrainSettings, settings.pretrain, fixed | common)
            self.start = str(self.pretrain.output)
        if settings.generator:
            fixed = {"collection": settings.collection, "generator": settings.generator}
            fixed |= {"output": self.folder / "generated"}
            self.generate = load_step(GenerateSettings, settings.generate, fixed | common)
        self.data = settings.data or self.folder / "examples.jsonl"
        if settings.cross_encoder:
            fixed = {"data": self.data, "cross_encoder": settings.cross_encoder, "device": settings.device}
            self.score = load_step(ScoreSettings, None, fixed | {"output": self.folder / "scored.jsonl"})
            self.data = self.score.output
        fixed = {"data": self.data, "base": self.start} | common
        contrast = fixed | {"output": self.folder / ("splade" if settings.data else "contrast")}
        self.splade = load_step(SpladeSettings, settings.splade, contrast, {} if settings.data else CONTRAST)
        if settings.dense or settings.cross_encoder:
            fixed |= {"output": self.folder / "distilled"}
            self.distil = load_step(SpladeSettings, settings.distil, fixed, DISTIL)
        self.trained = [step for step in (self.splade, self.distil) if step]
        for step in self.trained if not settings.data else ():
            if step.negatives > NEGATIVES:
                raise CaiError(
                    f"{step.output.name}: negatives {step.negatives}, but pseudo queries have {NEGATIVES} each"
                )
            if step.loss == "margin-mse" and not self.distil:
                raise CaiError(f"{step.output.name}: loss margin-mse needs a teacher: --dense or --cross-encoder")
        self.weight = 1.0 if settings.data else settings.weight or WEIGHTS[len(self.trained)]
        self.material = Material(
            self.config,
            self.base,
            load_encoder(settings.dense).replace(kind="dense") if settings.dense else None,
            settings.vectors or self.folder / "vectors",
            settings.queries,
            settings.seed,
            settings.device,
            self.generate.output if self.generate else None,
        )
        self.examples = Examples(self.material, self.folder / "examples.jsonl")
        self.projection = self.folder / "projection.safetensors"

    @property
    def tried(self) -> tuple[Sequence[float], Sequence[float]]:
        """The weights of the trained SPLADE, and of the projection, that are candidates."""
        given = self.settings.weight
        splade = (given,) if given else (0.0, self.weight)
        return splade, (0.0, *projection.WEIGHTS) if self.material.dense else (0.0,)

    def recipe(self) -> artifact.Recipe:
        """What the adapted checkpoint depends on; the steps need not exist. Raises CaiError for texts longer than a
        checkpoint reads."""
        settings = self.settings
        for encoder in self.material.encoders:
            encoder.require_loadable("documents", "queries")
        for step in self.trained:
            SpladeTraining(step.replace(base=settings.base)).require_positions()  # its own base may not exist yet
        if self.pretrain:
            require_positions(checkpoint_folder(self.base), {"max_length of pretraining": self.pretrain.max_length})
        if settings.data and not settings.data.is_file():
            raise CaiError(f"no file {settings.data}")
        models = {name: spec for name in ("cross_encoder", "generator") if (spec := getattr(settings, name))}
        steps = {
            "vocabulary": self.vocabulary and recorded(self.vocabulary, "corpus", "base"),
            "pretrain": self.pretrain and recorded(self.pretrain, "corpus", "base"),
            "generate": self.generate and recorded(self.generate, "collection", "generator", "batch_size"),
            "splade": recorded(self.splade, "data", "base", "idf"),
            "distil": self.distil and recorded(self.distil, "data", "base", "idf"),
        }
        inputs = {
            "documents": self.collection.fingerprint("documents"),
            "checkpoint": checkpoint_digest(checkpoint_folder(self.base)),
            "encoder": inherited(self.base),
            "dense": self.material.dense and self.material.encoders[-1].identity("documents"),
            "models": {name: checkpoint_digest(checkpoint_folder(load_encoder(spec))) for name, spec in models.items()},
            "data": settings.data and file_digest(settings.data),
        }
        own = {"queries": settings.queries, "seed": settings.seed, "weight": settings.weight}
        return artifact.recipe(STAGE, inputs, **own, **{name: values for name, values in steps.items() if values})

    def steps(self) -> Iterator[Step]:
        """The steps, in order."""
        if expand := self.vocabulary:
            yield Step(
                "vocabulary",
                f"in increments of {expand.increment:,} tokens",
                lambda: vocabulary.expand_checkpoint(expand),
                lambda: artifact.is_up_to_date(expand.output, vocabulary.recipe(expand)),
            )
        if mlm := self.pretrain:
            length = f"{mlm.max_steps:,} steps" if mlm.max_steps else f"{mlm.epochs:g} epochs"
            yield Step(
                "pretraining",
                f"{length} with {mlm.batch_size} sequences of {mlm.max_length} tokens each",
                lambda: pretrain.pretrain(mlm, "pretraining"),
                lambda: artifact.is_up_to_date(mlm.output, pretrain.recipe(mlm)),
                lambda: self._pretrain_seconds(mlm),
            )
        if written := self.generate:
            yield Step(
                "query generation",
                f"{written.per_document} queries for each of {min(self.size, written.documents):,} documents",
                lambda: generate.generate(written),
                lambda: artifact.is_up_to_date(written.output, generate.recipe(written)),
                lambda: self._generate_seconds(written),
            )
        if not self.settings.data:
            yield Step(
                "pseudo queries",
                f"at most {self.settings.queries:,}, with {NEGATIVES} negatives each, from {self.size:,} documents",
                self.examples.write,
                lambda: artifact.is_up_to_date(self.examples.output, self.examples.recipe()),
                self._pseudo_seconds,
            )
        if scored := self.score:
            yield Step(
                "cross-encoder",
                f"scores of at most {self._scored_pairs:,} pairs",
                lambda: score.score(scored),
                lambda: artifact.is_up_to_date(scored.output, score.recipe(scored)),
                lambda: self._score_seconds(scored),
            )
        if self.material.dense:
            yield Step(
                "projection",
                f"of dense vectors, {projection.STEPS} steps with {projection.QUERIES} queries each",
                lambda: projection.learn(self.examples, self.projection),
                lambda: artifact.is_up_to_date(self.projection, projection.recipe(self.examples)),
                self._projection_seconds,
            )
        names = ["splade"] if self.settings.data else ["contrast", "distillation"]
        for number, (name, step) in enumerate(zip(names, self.trained, strict=False), 1):
            yield self._training(f"{name} {number}/{len(self.trained)}" if len(self.trained) > 1 else name, step)

    def _training(self, label: str, settings: SpladeSettings) -> Step:
        steps = training.total_steps(settings, self._count(settings))

        def is_done() -> bool:
            return artifact.is_up_to_date(settings.output, SpladeTraining(settings).recipe())

        def seconds() -> float:
            measured = SpladeTraining(settings.replace(base=self.settings.base))  # its own base may not exist yet
            return steps * measured.step_seconds(self._pool(settings))

        most = "" if self.settings.data or settings.max_steps else "at most "
        work = f"{most}{steps:,} steps with {settings.batch_size} queries each"
        return Step(label, work, lambda: SpladeTraining(settings).run(label), is_done, seconds)

    def _count(self, settings: SpladeSettings) -> int:
        """The number of examples to train on, all checked; before pseudo queries are made, their largest number."""
        if self.settings.data:
            return count(settings.data, settings.loss == "margin-mse", settings.negatives)
        return self.settings.queries

    def _pool(self, settings: SpladeSettings) -> list[Example]:
        """Examples to measure a training with."""
        if self.settings.data:
            lines = examples(settings.data, settings.loss == "margin-mse", settings.negatives)
            return [in_epoch(line, 0, 0, settings.negatives) for line in islice(lines, estimate.SAMPLE)]
        return estimate.as_examples(self.passages, settings.negatives, settings.seed)

    @cached_property
    def _sampled(self) -> tuple[int, list[str]]:
        contents = (document.contents for document in self.collection.documents())
        return estimate.sample(progress(contents, self.collection.size, "sample documents"), self.settings.seed)

    @property
    def size(self) -> int:
        """The number of documents."""
        return self._sampled[0]

    @property
    def sample(self) -> list[str]:
        """The contents of some documents."""
        return self._sampled[1]

    @cached_property
    def passages(self) -> list[str]:
        """The first passage of each of these: what is read of a document after it is encoded is as long."""
        return [passage(text, "") for text in self.sample]

    @property
    def _scored_pairs(self) -> int:
        return self.settings.queries * (1 + NEGATIVES)

    def _pretrain_seconds(self, settings: PretrainSettings) -> float:
        steps, seconds = pretrain.measure(settings.replace(base=self.settings.base), self.sample, self.size)
        return steps * seconds

    def _generate_seconds(self, settings: GenerateSettings) -> float:
        generator = generate.Generator(settings)

        def process(texts: list[str]) -> None:
            for batch in batched(texts, settings.batch_size):
                generator.queries([Document("", text) for text in batch])

        return min(self.size, settings.documents) * estimate.seconds_per_text(process, self.sample)

    def _pseudo_seconds(self) -> float:
        """Encoding takes nearly all of the time."""
        missing = (
            encoder
            for encoder in self.material.encoders
            if artifact.read_manifest(self.material.encoded(encoder)[1]) is None  # else they are encoded already
        )
        seconds = sum(self._seconds_per_text(encoder, self.sample) for encoder in missing)
        return min(self.size, material.SAMPLE) * seconds

    def _projection_seconds(self) -> float:
        """To encode the remainders takes nearly all of the time; a document makes at most one query of each of the four
        kinds."""
        remainders = min(self.settings.queries, 4 * self.size)
        return remainders * self._seconds_per_text(self.material.encoders[-1], self.passages)

    def _seconds_per_text(self, encoder: Encoder, texts: Sequence[str]) -> float:
        process = partial(encoder.load("documents").encode, max_length=encoder.config.max_document_length)
        return estimate.seconds_per_text(process, texts)

    def _score_seconds(self, settings: ScoreSettings) -> float:
        model = CrossEncoder(checkpoint_folder(load_encoder(settings.cross_encoder)), settings.device)
        queries = [example["query"] for example in estimate.as_examples(self.passages, 0, 0)]

        def process(texts: list[str]) -> None:
            model.score(queries[: len(texts)], texts)

        return self._scored_pairs * estimate.seconds_per_text(process, self.passages)


def adapt(settings: AdaptSettings) -> Path:
    """Write the adapted checkpoint with its IDF and encoder.yaml."""
    training.require_one_gpu(settings.device)
    adaptation = Adaptation(settings)
    recipe = adaptation.recipe()
    if artifact.is_up_to_date(settings.output, recipe):
        return settings.output
    artifact.require_writable(settings.output)
    steps = list(adaptation.steps())
    missing = list(dropwhile(lambda step: step.is_done(), steps))
    _announce(adaptation, steps, missing)
    made = [artifact.read_manifest(step.run()) for step in steps]

    def write(folder: Path) -> artifact.Stats:
        start = time.perf_counter()
        trained = [step.output for step in adaptation.trained]
        encoder = load_encoder(str(trained[0])) if settings.data else adaptation.base
        old, (weight, share), decision = checkpoint_folder(load_encoder(adaptation.start)), Candidate(1.0, 0.0), None
        if not settings.data:
            decision = _choose(adaptation)
            weight, share = decision.chosen
            say(decision.why)
        if not weight:
            old, trained = checkpoint_folder(adaptation.base), [checkpoint_folder(adaptation.base)]
        mean_of_weights(old, trained, weight, folder)
        compute(adaptation.collection, folder, folder / "idf")
        write_encoder(encoder, folder, folder / "idf")
        if dense := adaptation.material.dense:
            projection.write_dense(dense, adaptation.projection, share, folder / "dense")
        seconds = time.perf_counter() - start + sum(manifest.stats["seconds"] for manifest in made if manifest)
        stats: artifact.Stats = {"seconds": round(seconds, 3), "weight": weight, "projection": share, "decision": []}
        return stats | {"decision": [decision.why], "gains": decision.gains} if decision else stats

    return artifact.make(settings.output, recipe, write)


def _choose(adaptation: Adaptation) -> Decision:
    """What the judges decide about the weights of the trained SPLADE and of the projection."""
    material, given = adaptation.material, adaptation.settings.weight
    splade, shares = adaptation.tried
    if not len(material.held_out) or len(splade) == len(shares) == 1:
        why = f"weight {given} of the trained SPLADE, as given" if given else NO_JUDGES
        return Decision(Candidate(splade[0], 0.0), why, [])
    choice = Choice(material)
    weight_of_bm25, _ = choice.weight_of_bm25() if material.dense else (0.0, "")
    return choice.decide(values(adaptation, choice.served, weight_of_bm25))


def values(adaptation: Adaptation, served: Served, weight_of_bm25: float) -> dict[Candidate, np.ndarray]:
    """The values of all candidates (systems, queries); the weight is that in three ways."""
    material, work = adaptation.material, adaptation.folder / "candidate"
    old, trained = checkpoint_folder(load_encoder(adaptation.start)), [step.output for step in adaptation.trained]
    idf = material.idf_of(Tokenizer(old)) if adaptation.vocabulary else material.idf  # trained ones have other tokens
    weights, shares = adaptation.tried
    dense = []
    if material.dense:
        dense = [served.dense(matrix) for matrix in projection.candidates(adaptation.projection, shares)]
    found: dict[Candidate, np.ndarray] = {}
    for weight in progress(weights, len(weights), "choose", "weight"):
        splade = served.old_splade
        if weight:
            mean_of_weights(old, trained, weight, work)
            checkpoint = adaptation.base.replace(checkpoint=str(work))
            splade = served.splade(Encoder(checkpoint, adaptation.settings.device), idf)
        for share, of_systems in zip(shares, served.values(splade, dense, weight_of_bm25), strict=True):
            found[Candidate(weight, share)] = of_systems
    artifact.remove(work)
    return found


def _announce(adaptation: Adaptation, steps: Sequence[Step], missing: Sequence[Step]) -> None:
    """Say what will be done and, measured on this machine, how long it will take."""
    say(f"adapt {adaptation.base.name} to {adaptation.config.name}, steps in {adaptation.folder}:")
    for number, step in enumerate(steps, 1):
        say(f"{number}. {step.name}: {step.work}" + ("" if step in missing else " (done)"))
    new = adaptation.weight
    fixed = adaptation.settings.data or adaptation.settings.weight
    shares = f"{1 - new:.2g} old and {new:.2g} new" if fixed else f"{new:.2g} or 0 new, as held-out queries decide"
    say(f"{len(steps) + 1}. mean of weights, {shares}; IDF")
    seconds = {step.name: step.seconds() for step in missing if step.seconds}
    if seconds:
        shares = ", ".join(f"{duration(value)} {name}" for name, value in seconds.items())
        say(f"about {duration(sum(seconds.values()))}: {shares}")


def mean_of_weights(old: Path, new: Sequence[Path], weight: float, output: Path) -> None:
    """Write the checkpoint (1 - weight) * old + weight * the mean of the new ones, with their tokenizer."""
    first, *others = [training.load_model(path) for path in (old, *new)]
    states = [model.state_dict() for model in others]
    mean = {
        name: value.lerp(sum(state[name] for state in states) / len(states), weight)
        for name, value in first.state_dict().items()
        if value.is_floating_point()
    }
    first.load_state_dict(states[0] | mean)
    first.save_pretrained(output)
    AutoTokenizer.from_pretrained(str(new[0])).save_pretrained(output)
