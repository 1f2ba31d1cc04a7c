"""Adapt a released SPLADE checkpoint, and a dense encoder, to a collection, using only its documents.

SPLADE is trained on pseudo queries with in-batch and hard negatives (contrast). With a dense encoder, a second training
from the same checkpoint distils a teacher. Averaging the old and new weights (Wortsman et al. 2022) preserves what the
checkpoint has learned before. For the dense encoder, a projection is learned. Held-out queries decide how much of both
is used. docs/experiments/adaptation.md lists what was tried.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from cai_pyserini.collections.readers import load_in_languages
from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.steps import Call, Step
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.idf import compute
from cai_pyserini.trainer import projection, training
from cai_pyserini.trainer.adaptation_data import NEGATIVES, AdaptationData, write_examples
from cai_pyserini.trainer.choice import Candidate, Decision, decide, fusion_weights
from cai_pyserini.trainer.evaluation import identities
from cai_pyserini.trainer.mixture import LANGUAGES
from cai_pyserini.trainer.pairs import base_encoder, train
from cai_pyserini.trainer.settings import AdaptSettings, SpladeSettings, inherited, load_step, recorded, write_encoder
from cai_pyserini.trainer.simulated import SimulatedRetrieval

STAGE = "adapt"
SHORT_TRAINING = {"batch_size": 24, "max_document_length": 96, "dropout": 0.0, "sampled_terms": 1000}
CONTRAST = SHORT_TRAINING | {"loss": "in-batch", "learning_rate": 5e-5, "max_steps": 200, "warmup": 0.25}
DISTIL = SHORT_TRAINING | {"learning_rate": 2e-4, "max_steps": 450, "warmup": 0.11, "lambda_q": 0.01, "lambda_d": 0.01}
NEW_SHARES = {1: 0.3, 2: 0.4}  # the share of the new weights in the mean, by number of trainings
NO_QUERIES = "not adapted: no document yields a query to judge by"


def steps(settings: AdaptSettings, planned: Container[Path] = ()) -> list[Step]:
    """The steps of an adaptation, in order; only the last one if it is up to date. `planned` contains the folders of
    vectors that earlier steps write. Raises CaiError for settings that a step refuses."""
    resolve_device(settings.device)
    return Adaptation(settings, planned).steps()


class Adaptation:
    """An adaptation whose steps write their results to the folder `<output>.steps`."""

    def __init__(self, settings: AdaptSettings, planned: Container[Path] = ()):
        self.settings, self._planned = settings, planned
        self.folder = folder = settings.output.with_name(f"{settings.output.name}.steps")
        self.base = load_encoder(settings.base)
        self.examples = folder / "examples.jsonl"
        self.projection = folder / "projection.safetensors"
        fixed = {"base": settings.base, "data": self.examples, "device": settings.device, "seed": settings.seed}
        trainings: list[tuple[str, Path | None, Mapping[str, Any]]] = [("contrast", settings.splade, CONTRAST)]
        if settings.dense:
            trainings.append(("distilled", settings.distil, DISTIL))
        self.trainings: list[SpladeSettings] = []
        for name, file, defaults in trainings:
            step = load_step(SpladeSettings, file, fixed | {"output": folder / name}, defaults)
            if step.negatives > NEGATIVES:
                raise CaiError(f"{name}: negatives {step.negatives}, but pseudo queries have {NEGATIVES} each")
            if step.loss == "margin-mse" and not settings.dense:
                raise CaiError(f"{name}: loss margin-mse needs a teacher: the setting dense")
            self.trainings.append(step)

    @cached_property
    def data(self) -> AdaptationData:
        """The data that the steps share; it stays in memory until the last one is done."""
        settings, vectors = self.settings, self.settings.vectors or self.folder / "vectors"
        dense = load_encoder(settings.dense).replace(kind="dense") if settings.dense else None
        own = {"queries", "seed", "device", "precision", "alpha", "weights", "depth"}
        options = settings.model_dump(include=own) | {"planned": self._planned}
        return AdaptationData(load_in_languages(settings.collection), self.base, dense, vectors, **options)

    def steps(self) -> list[Step]:
        """The steps, in order; only the last one if it is up to date. Raises CaiError for maximum lengths beyond what a
        checkpoint reads, and for a language without pseudo queries."""
        if (language := self.data.collection.language) not in LANGUAGES:
            raise CaiError(
                f"collection {self.data.collection.name}: adaptation makes queries from stemmed words between spaces, "
                f"which it cannot do for {language!r}, only for {', '.join(sorted(LANGUAGES))}"
            )
        output, examples, encoders = self.settings.output, self.examples, self.data.encoders
        for encoder in encoders:
            encoder.require_loadable("documents", "queries")
        for step in self.trainings:
            base_encoder(step)
        recipe = self.recipe()
        last = partial(artifact.make, output, recipe, self._write)
        if artifact.is_up_to_date(output, recipe):
            return [Call("adapt", output, last)]
        artifact.require_writable(output)
        vectors = tuple(map(self.data.vectors, encoders))
        steps = [
            Call(f"adapt: {encoder.config.kind} vectors", folder, partial(self._encode, number))
            for number, (encoder, folder) in enumerate(zip(encoders, vectors, strict=True))
        ]
        steps.append(Call("adapt: pseudo queries", examples, lambda: write_examples(self.data, examples), vectors))
        if self.settings.dense:
            learned, needed = self.projection, (*vectors, examples)
            steps.append(Call("adapt: projection", learned, lambda: projection.learn(self.data, learned), needed))
        for step in self.trainings:
            steps.append(Call(f"adapt: {step.output.name}", step.output, partial(train, step), (examples,)))
        steps.append(Call("adapt", output, last, tuple(step.output for step in steps)))
        return [replace(step, remedy="no adaptation") for step in steps]

    def recipe(self) -> artifact.Recipe:
        """The recipe of the adapted checkpoint; the results of the steps need not exist."""
        settings, data = self.settings, self.data
        checkpoint = {"checkpoint": checkpoint_digest(model_folder(self.base)), "encoder": inherited(self.base)}
        own = settings.model_dump(include={"queries", "seed", "weight", "alpha", "weights", "depth"})
        trained = [recorded(step, "data", "base") | identities(step) for step in self.trainings]
        return artifact.recipe(STAGE, data.simulation_identity | checkpoint, **own, trainings=trained)

    def _encode(self, number: int) -> Path:
        return self.data.encode_documents(self.data.encoders[number])

    def _write(self, folder: Path) -> artifact.Stats:
        """Write the encoders with the weights that the held-out queries choose."""
        data, old = self.data, model_folder(self.base)
        (weight, share), reason, gains = self._decide()
        print(reason)
        new = [step.output for step in self.trainings] if weight else [old]
        mean_of_weights(old, new, weight, folder)
        compute(data.full_collection, self.base.replace(checkpoint=str(folder)), folder / "idf")
        write_encoder(self.base, folder, folder / "idf")
        if data.dense:
            projection.write_dense(data.dense, self.projection, share, folder / "dense")
        del self.data  # frees the vectors
        return {"weight": weight, "projection": share, "decision": [reason], "gains": gains}

    @property
    def candidates(self) -> tuple[Sequence[float], Sequence[float]]:
        """The candidate weights of the trained SPLADE and of the projection."""
        weight = self.settings.weight
        splade = (weight,) if weight else (0.0, NEW_SHARES[len(self.trainings)])
        return splade, (0.0, *projection.WEIGHTS) if self.settings.dense else (0.0,)

    def _decide(self) -> Decision:
        data, weight = self.data, self.settings.weight
        splade, shares = self.candidates
        if not len(data.held_out) or len(splade) == len(shares) == 1:
            reason = f"weight {weight} of the trained SPLADE, as given" if weight else NO_QUERIES
            return Decision(Candidate(splade[0], 0.0), reason, [])
        retrieval = SimulatedRetrieval.for_pseudo_queries(data, data.held_out)
        fusion = fusion_weights(retrieval)[0] if data.dense else ()
        return decide(self.values(retrieval, fusion), retrieval.sources, retrieval.systems)

    def values(self, retrieval: SimulatedRetrieval, fusion: Sequence[float]) -> dict[Candidate, np.ndarray]:
        """nDCG@10 (systems, queries) of every candidate; `fusion` has the weights of BM25, SPLADE and dense."""
        work = self.folder / "candidate"
        weights, shares = self.candidates
        projections = [projection.read_projection(self.projection, share) for share in shares]
        dense = [retrieval.dense(matrix) for matrix in projections] if self.settings.dense else []
        values: dict[Candidate, np.ndarray] = {}
        for weight in progress(weights, len(weights), "choose", "weights"):
            splade = retrieval.old_splade
            if weight:
                mean_of_weights(model_folder(self.base), [step.output for step in self.trainings], weight, work)
                config, settings = self.base.replace(checkpoint=str(work), range=None), self.settings  # as written
                splade = retrieval.splade(EncoderModel(config, settings.device, settings.precision))
            for share, ndcg in zip(shares, retrieval.values(splade, dense, fusion), strict=True):
                values[Candidate(weight, share)] = ndcg
        files.remove(work)
        return values


def mean_of_weights(old: Path, new: Sequence[Path], weight: float, output: Path) -> None:
    """Write the checkpoint (1 - weight) * old + weight * mean(new), with the tokenizer of the new ones."""
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
