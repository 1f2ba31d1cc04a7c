"""The order of the stages: from a collection and an encoder to a table of scores.

Each step calls one stage, which returns at once if its result is up to date. So an interrupted experiment continues
where it stopped; change a setting and only the affected stages run again.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cai_pyserini.beir import stages
from cai_pyserini.beir.experiment import REQUIRES, Experiment
from cai_pyserini.beir.inputs import Inputs
from cai_pyserini.beir.report import write
from cai_pyserini.beir.results import Results, gather
from cai_pyserini.beir.systems import ADAPTED, SINGLE, System, parse_system, with_parts
from cai_pyserini.collection.check import check
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import locked
from cai_pyserini.core.packages import require_modules
from cai_pyserini.encode.encoder import Role
from cai_pyserini.fusion.fusions import FUSIONS
from cai_pyserini.models.checkpoint import require_safetensors
from cai_pyserini.models.device import resolve_device
from cai_pyserini.trainer.__main__ import PACKAGES
from cai_pyserini.words.words import count_words

logger = logging.getLogger(__name__)


def run(experiment: Experiment, names: Sequence[str]) -> Results:
    """Run the stages that are not up to date, write results.json and report.md, and return the systems' results."""
    systems = [parse_system(name) for name in dict.fromkeys(names)]
    inputs = Inputs(experiment)
    layout = experiment.layout
    require(inputs, systems)
    artifact.require_writable(layout.folder, marker=layout.lock.name)
    layout.folder.mkdir(parents=True, exist_ok=True)
    if artifact.is_of_another_version(layout.collection):
        logger.warning("%s was made by another version of cai_pyserini: every stage runs again", layout.folder)
    seconds: dict[str, float] = {}
    started = artifact.now()
    with locked(layout.lock, layout.folder, {}):
        for label, stage in steps(inputs, systems):
            manifest = artifact.read_manifest(stage())
            if manifest is None:
                raise CaiError(f"{label} is unfinished: another process has yet to encode its shards")
            seconds[label] = manifest.stats["seconds"]
            if manifest.created >= started:
                print(f"{label:<52} {seconds[label]:8.1f} s", file=sys.stderr)
        results = gather(experiment, systems, inputs.qrels, seconds)
        write(results, layout)
    return results


def require(inputs: Inputs, systems: Sequence[System]) -> None:
    """Raise CaiError, before any stage runs, if a system needs something that the experiment does not have."""
    experiment = inputs.experiment
    needed = with_parts(systems)
    if weights := experiment.weights:
        weighted = [system for system in needed if experiment.weights_of(system)]
        if min(weights) <= 0 or not weighted:
            raise CaiError(
                f"--weights {' '.join(map(str, weights))}: give as many positive numbers as a hybrid has parts"
            )
        if products := [system.name for system in weighted if FUSIONS[system.fusion].combine == "product"]:
            raise CaiError(f"--weights have no effect on a product: leave out {products[0]}")
    if adapted := [system for system in needed if system.adapted]:
        _require_adaptation(experiment, adapted[0])
        needed.append(SINGLE["splade"])  # which the adaptation starts from
    elif experiment.adapt:
        raise CaiError(f"--adapt has no effect on these systems: name an adapted one, such as {ADAPTED}splade-idf")
    for system in needed:
        if (setting := REQUIRES.get(system.kind)) and getattr(experiment, setting) is None:
            raise CaiError(f"{system.name} needs --{setting.replace('_', '-')}; --help says more")
        if system.kind == "splade":
            if experiment.encoder.kind == "dense":
                raise CaiError(f"encoder {experiment.encoder.name} is dense: use it with --dense")
            if system.idf and experiment.encoder.idf_power == 0:
                raise CaiError(f"encoder {experiment.encoder.name} has idf_power 0: {system.name} would be unweighted")
        if system.kind in ("splade", "dense"):
            read: list[Role] = ["documents"] if system.bow else ["documents", "queries"]
            inputs.encoder(replace(system, adapted=False)).require_loadable(*read)  # the adapted one may not exist yet
        if system.kind == "cross-encoder":
            require_safetensors(inputs.cross_encoder)
            resolve_device(experiment.device)
        if system.exact and experiment.collection.passages:
            raise CaiError(f"{system.name}: runs of passages hold documents, whose scores an index of passages lacks")
        if system.kind == "doct5query":
            open_collection(load_index_config(experiment.generated or ""))


def _require_adaptation(experiment: Experiment, system: System) -> None:
    """Raise CaiError if an adapted system cannot be adapted."""
    if experiment.adapt is None:
        raise CaiError(f"{system.name} needs --adapt; --help says more")
    require_modules(PACKAGES, "trainer")

    from cai_pyserini.trainer.training import require_one_gpu

    require_one_gpu(experiment.adapt.device)
    if load_index_config(experiment.adapt.collection).passages != experiment.collection.passages:
        raise CaiError(
            "--passages with --adapt: write `passages` to a YAML file of the collection instead, as in index_configs/, "
            "so that adaptation reads the same passages"
        )


def steps(inputs: Inputs, systems: Sequence[System]) -> Iterator[tuple[str, Callable[[], Path]]]:
    """Yield the steps that these systems need, in order: a label, and a function that returns the artifact's path.

    Without qrels, nothing is evaluated; without queries, nothing is searched either.
    """
    layout, needed = inputs.layout, with_parts(systems)
    searched = needed if inputs.has_queries else []
    indexed = [system for system in needed if system.kind in ("splade", "dense") or system.searches_text]
    encoded = [system for system in indexed if not system.searches_text]
    smooth = [system for system in encoded if system.smooth]
    reading = inputs.reading if any(system.kind == "splade" for system in encoded) else None
    yield "check", lambda: check(inputs.collection, inputs.experiment.split, layout.collection, reading)
    for adapted in (False, True):
        group = [system for system in encoded if system.adapted == adapted]
        documents = [replace(system, smooth=False) for system in group]
        if adapted and group and inputs.experiment.adapt:
            yield "adapt", partial(stages.adapt_encoder, inputs.experiment.adapt)
        documents += [stages.near_by(system) for system in group if system.smooth and inputs.experiment.dense]
        for folder, system in _first(group, layout.idf, lambda system: system.idf or system.smooth):
            yield folder.name, partial(stages.compute_idf, inputs, system)
        for folder, system in _first(documents, lambda system: inputs.vectors(system, "documents")):
            yield f"encode {folder.name}", partial(stages.encode_texts, inputs, system, "documents")
        asked = [system for system in group if system in searched]
        for folder, system in _first(asked, lambda system: inputs.vectors(system, "queries"), lambda s: not s.bow):
            yield f"encode {folder.name}", partial(stages.encode_texts, inputs, system, "queries")
    for _, system in _first(smooth, lambda system: inputs.vectors(system, "documents")):
        yield f"smooth{' adapted' * system.adapted}", partial(stages.smooth_vectors, inputs, system)
    if any(system.joint for system in encoded):
        yield "words", lambda: count_words(inputs.collection, layout.words)
    for _, system in _first(encoded, layout.expansion, inputs.experiment.expands):
        yield f"expand{' adapted' * system.adapted}", partial(stages.expand_documents, inputs, system)
    for _, system in _first(encoded, layout.impacts, lambda system: system.kind == "splade"):
        yield f"impacts {system.index}", partial(stages.weight_impacts, inputs, system)
    for _, system in _first(indexed, layout.index):
        yield f"index {system.index}", partial(stages.build_index, inputs, system)
    for system in searched:
        if system in indexed:
            yield f"search {system.name}", partial(stages.search_index, inputs, system)
    for system in searched:
        if system.kind == "cross-encoder":
            yield f"rerank {system.name}", partial(stages.rerank_run, inputs, system)
    exact = [(system, part) for system in searched if system.exact for part in system.parts]
    for path, (system, part) in {layout.rescored(*pair): pair for pair in exact}.items():
        yield f"rescore {path.stem}", partial(stages.rescore_run, inputs, system, part)
    if any(inputs.experiment.balances(system) for system in needed):
        yield "weights", partial(stages.balance_weights, inputs)
    for system in searched:
        if system.kind == "hybrid":
            yield f"fuse {system.name}", partial(stages.fuse_parts, inputs, system)
    for system in systems if inputs.has_qrels else []:
        yield f"evaluate {system.name}", partial(stages.evaluate_run, inputs, system)


def _first(
    systems: Sequence[System], path: Callable[[System], Path], condition: Callable[[System], bool] = lambda _: True
) -> list[tuple[Path, System]]:
    """Each distinct path, with the first system that meets the condition and has this path."""
    found: dict[Path, System] = {}
    for system in filter(condition, systems):
        found.setdefault(path(system), system)
    return list(found.items())
