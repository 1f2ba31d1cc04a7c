"""Adapt a released SPLADE checkpoint, and a dense encoder, to a collection with nothing but its documents.

SPLADE is trained on pseudo queries with in-batch and hard negatives (contrast); with a dense encoder, a second training
from the same checkpoint distils a teacher. The mean of the old and the new weights (Wortsman et al. 2022) keeps what
the checkpoint knew. For the dense encoder, a projection is learned. Held-out queries decide how much of both is used.
docs/experiments/adaptation.md has what was tried.
"""

from collections.abc import Container, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from cai_pyserini.adapt import paper, projection
from cai_pyserini.adapt.choice import Candidate, Decision, decide, fusion_weights
from cai_pyserini.adapt.examples import NEGATIVES, write_examples
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import LANGUAGES
from cai_pyserini.adapt.served import Served
from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.steps import Step
from cai_pyserini.core.terminal import progress, say
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.idf.idf import compute
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.idf import idf_digest
from cai_pyserini.trainer import training
from cai_pyserini.trainer.pairs import base_encoder, train
from cai_pyserini.trainer.settings import SpladeSettings, inherited, load_step, recorded, write_encoder

STAGE = "adapt"
SHORT = {"batch_size": 24, "max_document_length": 96, "dropout": 0.0, "sampled_terms": 1000}
CONTRAST = SHORT | {"loss": "in-batch", "learning_rate": 5e-5, "max_steps": 200, "warmup": 0.25}
DISTIL = SHORT | {"learning_rate": 2e-4, "max_steps": 450, "warmup": 0.11, "lambda_q": 0.01, "lambda_d": 0.01}
WEIGHTS = {1: 0.3, 2: 0.4}  # the share of new weights in the mean, by the number of trainings
NO_JUDGES = "not adapted: no document yields a query to judge by"


def steps(settings: AdaptSettings, made: Container[Path] = ()) -> list[Step]:
    """The steps of an adaptation, in order; only the last one if it is up to date.

    `made` has the folders of vectors that earlier steps make. Raises CaiError for settings that a step would refuse.
    """
    training.require_one_gpu(settings.device)
    folder = settings.output.with_name(f"{settings.output.name}.steps")
    return paper.steps(settings, settings.data, folder) if settings.data else Adaptation(settings, folder, made).steps()


class Adaptation:
    """An adaptation whose steps have their results in a folder."""

    def __init__(self, settings: AdaptSettings, folder: Path, made: Container[Path] = ()):
        self.settings, self._made = settings, made
        self.folder = folder
        self.base = load_encoder(settings.base)
        self.examples = folder / "examples.jsonl"
        self.projection = folder / "projection.safetensors"
        fixed = {"base": settings.base, "data": self.examples, "device": settings.device, "seed": settings.seed}
        given: list[tuple[str, Path | None, Mapping[str, Any]]] = [("contrast", settings.splade, CONTRAST)]
        if settings.dense:
            given.append(("distilled", settings.distil, DISTIL))
        self.trainings: list[SpladeSettings] = []
        for name, file, usual in given:
            step = load_step(SpladeSettings, file, fixed | {"output": folder / name}, usual)
            if step.negatives > NEGATIVES:
                raise CaiError(f"{name}: negatives {step.negatives}, but pseudo queries have {NEGATIVES} each")
            if step.loss == "margin-mse" and not settings.dense:
                raise CaiError(f"{name}: loss margin-mse needs a teacher: --dense")
            self.trainings.append(step)

    @cached_property
    def material(self) -> Material:
        """What the steps share; it stays in memory until the last one is done."""
        settings = self.settings
        return Material(
            load_index_config(settings.collection),
            self.base,
            load_encoder(settings.dense).replace(kind="dense") if settings.dense else None,
            settings.vectors or self.folder / "vectors",
            settings.queries,
            settings.seed,
            settings.device,
            settings.precision,
            self._made,
            settings.alpha,
            settings.weights,
            settings.depth,
        )

    def steps(self) -> list[Step]:
        """The steps, in order; only the last one if it is up to date. Raises CaiError for texts longer than a
        checkpoint reads, and for a language without pseudo queries."""
        if (language := self.material.collection.language) not in LANGUAGES:
            raise CaiError(
                f"collection {self.material.collection.name}: adaptation makes queries of words between spaces, and "
                f"stems them, which it cannot do for {language!r}, only for {', '.join(sorted(LANGUAGES))}"
            )
        output, examples, encoders = self.settings.output, self.examples, self.material.encoders
        for encoder in encoders:
            encoder.require_loadable("documents", "queries")
        for step in self.trainings:
            base_encoder(step)
        recipe = self.recipe()
        last = partial(artifact.make, output, recipe, self._write)
        if artifact.is_up_to_date(output, recipe):
            return [Step("adapt", output, last)]
        artifact.require_writable(output)
        vectors = tuple(map(self.material.vectors, encoders))
        steps = [
            Step(f"adapt: {encoder.config.kind} vectors", folder, partial(self._encode, number))
            for number, (encoder, folder) in enumerate(zip(encoders, vectors, strict=True))
        ]
        steps.append(Step("adapt: pseudo queries", examples, lambda: write_examples(self.material, examples), vectors))
        if self.settings.dense:
            learned, needed = self.projection, (*vectors, examples)
            steps.append(Step("adapt: projection", learned, lambda: projection.learn(self.material, learned), needed))
        for step in self.trainings:
            steps.append(Step(f"adapt: {step.output.name}", step.output, partial(train, step), (examples,)))
        return [*steps, Step("adapt", output, last, tuple(step.output for step in steps))]

    def recipe(self) -> artifact.Recipe:
        """What the adapted checkpoint depends on; the steps need not exist."""
        settings, material = self.settings, self.material
        checkpoint = {"checkpoint": checkpoint_digest(model_folder(self.base)), "encoder": inherited(self.base)}
        own = settings.model_dump(include={"queries", "seed", "weight", "alpha", "weights", "depth"})
        trained = [recorded(step, "data", "base", "idf") | {"idf": idf_digest(step.idf)} for step in self.trainings]
        return artifact.recipe(STAGE, material.judged_identity | checkpoint, **own, trainings=trained)

    def _encode(self, number: int) -> Path:
        return self.material.encode_documents(self.material.encoders[number])

    def _write(self, folder: Path) -> artifact.Stats:
        """Write the encoders with the weights that the judges choose."""
        material, old = self.material, model_folder(self.base)
        (weight, share), why, gains = self._decide()
        say(why)
        mean_of_weights(old, self._trained if weight else [old], weight, folder)
        compute(material.whole, self.base.replace(checkpoint=str(folder)), folder / "idf")
        write_encoder(self.base, folder, folder / "idf")
        if material.dense:
            projection.write_dense(material.dense, self.projection, share, folder / "dense")
        del self.material  # frees the vectors
        return {"weight": weight, "projection": share, "decision": [why], "gains": gains}

    @property
    def _trained(self) -> list[Path]:
        return [step.output for step in self.trainings]

    @property
    def tried(self) -> tuple[Sequence[float], Sequence[float]]:
        """The candidate weights of the trained SPLADE and of the projection."""
        given = self.settings.weight
        splade = (given,) if given else (0.0, WEIGHTS[len(self.trainings)])
        return splade, (0.0, *projection.WEIGHTS) if self.settings.dense else (0.0,)

    def _decide(self) -> Decision:
        material, given = self.material, self.settings.weight
        splade, shares = self.tried
        if not len(material.held_out) or len(splade) == len(shares) == 1:
            why = f"weight {given} of the trained SPLADE, as given" if given else NO_JUDGES
            return Decision(Candidate(splade[0], 0.0), why, [])
        served = Served.judges(material, material.held_out)
        fusion = fusion_weights(served)[0] if material.dense else ()
        return decide(self.values(served, fusion), served.sources, served.systems)

    def values(self, served: Served, fusion: Sequence[float]) -> dict[Candidate, np.ndarray]:
        """nDCG@10 of all candidates (systems, queries), with these weights of BM25, SPLADE and dense in the fusion."""
        work = self.folder / "candidate"
        weights, shares = self.tried
        projections = [projection.read_projection(self.projection, share) for share in shares]
        dense = [served.dense(matrix) for matrix in projections] if self.settings.dense else []
        found: dict[Candidate, np.ndarray] = {}
        for weight in progress(weights, len(weights), "choose", "weight"):
            splade = served.old_splade
            if weight:
                mean_of_weights(model_folder(self.base), self._trained, weight, work)
                config, settings = self.base.replace(checkpoint=str(work), range=None), self.settings  # as written
                splade = served.splade(Encoder(config, settings.device, settings.precision))
            for share, of_systems in zip(shares, served.values(splade, dense, fusion), strict=True):
                found[Candidate(weight, share)] = of_systems
        files.remove(work)
        return found


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
    training.save_tokenizer(AutoTokenizer.from_pretrained(str(new[0]), trust_remote_code=False), output)
