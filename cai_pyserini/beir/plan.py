"""The order of the stages: from a collection and an encoder to a table of scores.

Each step calls one stage, which returns at once if its result is up to date. So an interrupted experiment continues
where it stopped; change a setting and only the affected stages run again.
"""

import fcntl
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from cai_pyserini.adapt.balance import balance
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.beir.experiment import REQUIRES, Experiment
from cai_pyserini.beir.report import Results, gather, write
from cai_pyserini.beir.systems import ADAPTED, SINGLE, System, parse_system, with_parts
from cai_pyserini.collection.check import Reading, check
from cai_pyserini.collection.contract import Collection, Qrels
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import require_modules
from cai_pyserini.encode.encode import encode
from cai_pyserini.encode.encoder import Encoder, Role
from cai_pyserini.encode.projection import project_vectors
from cai_pyserini.encode.queries import Queries, WordQueries
from cai_pyserini.encode.shards import Vectors
from cai_pyserini.evaluate.measures import evaluate
from cai_pyserini.expand.expand import expand
from cai_pyserini.fusion.fuse import fuse
from cai_pyserini.fusion.fusions import FUSIONS
from cai_pyserini.fusion.rerank import rerank
from cai_pyserini.fusion.rescore import Scorer, dense_scorer, impact_scorer, rescore, text_scorer
from cai_pyserini.idf.idf import compute
from cai_pyserini.impact.bm25 import Bm25
from cai_pyserini.impact.impacts import write_impacts
from cai_pyserini.index.bm25 import index_bm25
from cai_pyserini.index.dense import index_dense
from cai_pyserini.index.impact import index_impacts
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder, require_safetensors
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.models.transformer import resolve_device
from cai_pyserini.search.feedback import Feedback
from cai_pyserini.search.search import removes_query, search
from cai_pyserini.smooth.smooth import smooth
from cai_pyserini.trainer.__main__ import PACKAGES
from cai_pyserini.words.analyzer import Analyzer
from cai_pyserini.words.words import count_words

SEED = 42  # of the queries that judge weights

logger = logging.getLogger(__name__)


class Inputs:
    """The inputs that the stages of an experiment share, each opened when it is first needed."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.layout = experiment.layout
        self._encoders: dict[str, Encoder] = {}

    @cached_property
    def collection(self) -> Collection:
        return open_collection(self.experiment.collection)

    @cached_property
    def topics(self) -> dict[str, str]:
        return self.collection.topics(self.experiment.split)

    @property
    def has_queries(self) -> bool:
        return self.collection.has_queries(self.experiment.split)

    @property
    def has_qrels(self) -> bool:
        return self.collection.has_qrels(self.experiment.split)

    @cached_property
    def qrels(self) -> Qrels | None:
        return self.collection.qrels(self.experiment.split) if self.has_qrels else None

    @cached_property
    def remove_query(self) -> bool:
        return removes_query(self.experiment.collection.remove_query, self.qrels)

    @cached_property
    def cross_encoder(self) -> Path:
        return checkpoint_folder(load_encoder(self.experiment.cross_encoder or ""))

    @cached_property
    def analyzer(self) -> Analyzer:
        return Analyzer()

    def encoder(self, system: System) -> Encoder:
        """The encoder of a system; dense systems with and without IDF have different ones. Raises CaiError for one that
        is to be adapted, but is not yet."""
        is_dense = system.kind == "dense"
        name = system.index if is_dense else f"{ADAPTED * system.adapted}splade"
        if name not in self._encoders:
            config = self.experiment.encoder
            if system.adapted:
                config = load_encoder(str(self.layout.adapted_dense if is_dense else self.layout.adapted))
            elif is_dense and self.experiment.dense:
                config = self.experiment.dense
            if is_dense:
                config = config.replace(idf=str(self.layout.idf(system)) if system.idf else None)
            self._encoders[name] = Encoder(config, self.experiment.device, self.experiment.precision)
        return self._encoders[name]

    @cached_property
    def reading(self) -> Reading | None:
        """How SPLADE reads documents; None if it reads all of them, in windows."""
        config = self.experiment.encoder
        if config.overlap is not None:
            return None
        checkpoint = checkpoint_folder(config)
        tokenizer = Tokenizer(checkpoint)

        def lengths(texts: Sequence[str]) -> list[int]:
            return [len(tokens) for tokens in tokenizer.encode(texts, max_length=None)]

        return Reading(lengths, config.max_document_length, checkpoint_digest(checkpoint, tokenizer_only=True))

    def vectors(self, system: System, role: Role) -> Path:
        return self.layout.vectors(system, role, self.experiment.split)

    def queries(self, system: System) -> Queries:
        """The queries in the form that a system's index takes."""
        if system.searches_text:
            return Queries(self.topics)
        words = None
        if system.joint:
            words = WordQueries(self.analyzer, load_encoder(str(self.layout.index(system))))
        if system.bow:
            return Queries(self.topics, self.encoder(system), "bow", words=words)
        return Queries(self.topics, self.encoder(system), "splade", self.vectors(system, "queries"), words)


def run(experiment: Experiment, names: Sequence[str]) -> Results:
    """Run the stages that are not up to date, write results.json and report.md, and return the systems' results."""
    systems = [parse_system(name) for name in dict.fromkeys(names)]
    inputs = Inputs(experiment)
    layout = experiment.layout
    require(inputs, systems)
    artifact.require_writable(layout.folder, marker=layout.lock.name)
    layout.folder.mkdir(parents=True, exist_ok=True)
    if artifact.manifest_path(layout.collection).exists() and not artifact.read_manifest(layout.collection):
        logger.warning("%s was made by another version of cai_pyserini: every stage runs again", layout.folder)
    seconds: dict[str, float] = {}
    started = artifact.now()
    with locked(layout.lock):
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
            inputs.encoder(replace(system, adapted=False)).require_loadable()  # the adapted one may not exist yet
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
            yield "adapt", partial(_adapt, inputs.experiment.adapt)
        documents += [_near_by(system) for system in group if system.smooth and inputs.experiment.dense]
        for folder, system in _first(group, layout.idf, lambda system: system.idf or system.smooth):
            yield folder.name, partial(_idf, inputs, system)
        for folder, system in _first(documents, lambda system: inputs.vectors(system, "documents")):
            yield f"encode {folder.name}", partial(_encode, inputs, system, "documents")
        asked = [system for system in group if system in searched]
        for folder, system in _first(asked, lambda system: inputs.vectors(system, "queries"), lambda s: not s.bow):
            yield f"encode {folder.name}", partial(_encode, inputs, system, "queries")
    for _, system in _first(smooth, lambda system: inputs.vectors(system, "documents")):
        yield f"smooth{' adapted' * system.adapted}", partial(_smooth, inputs, system)
    if any(system.joint for system in encoded):
        yield "words", lambda: count_words(inputs.collection, layout.words)
    for _, system in _first(encoded, layout.expansion, inputs.experiment.expands):
        yield f"expand{' adapted' * system.adapted}", partial(_expand, inputs, system)
    for _, system in _first(encoded, layout.impacts, lambda system: system.kind == "splade"):
        yield f"impacts {system.index}", partial(_impacts, inputs, system)
    for _, system in _first(indexed, layout.index):
        yield f"index {system.index}", partial(_index, inputs, system)
    for system in searched:
        if system in indexed:
            yield f"search {system.name}", partial(_search, inputs, system)
    for system in searched:
        if system.kind == "cross-encoder":
            yield f"rerank {system.name}", partial(_rerank, inputs, system)
    exact = [(system, part) for system in searched if system.exact for part in system.parts]
    for path, (system, part) in {layout.rescored(*pair): pair for pair in exact}.items():
        yield f"rescore {path.stem}", partial(_rescore, inputs, system, part)
    if any(inputs.experiment.balances(system) for system in needed):
        yield "weights", partial(_balance, inputs)
    for system in searched:
        if system.kind == "hybrid":
            yield f"fuse {system.name}", partial(_fuse, inputs, system)
    for system in systems if inputs.has_qrels else []:
        yield f"evaluate {system.name}", partial(_evaluate, inputs, system)


def _first(
    systems: Sequence[System], path: Callable[[System], Path], condition: Callable[[System], bool] = lambda _: True
) -> list[tuple[Path, System]]:
    """Each distinct path, with the first system that meets the condition and has this path."""
    found: dict[Path, System] = {}
    for system in filter(condition, systems):
        found.setdefault(path(system), system)
    return list(found.items())


def _adapt(settings: AdaptSettings) -> Path:
    from cai_pyserini.adapt.adapt import adapt  # needs the extra `trainer`

    return adapt(settings)


def _idf(inputs: Inputs, system: System) -> Path:
    return compute(inputs.collection, inputs.encoder(system).checkpoint, inputs.layout.idf(system))


def _encode(inputs: Inputs, system: System, role: Role) -> Path:
    split, batch_size = inputs.experiment.split, inputs.experiment.batch_size
    encoder, output = inputs.encoder(system), inputs.vectors(system, role)
    if role == "documents" and system.name == f"{ADAPTED}dense" and encoder.config.overlap is None:
        return project_vectors(Vectors(_encode(inputs, SINGLE["dense"], role)), encoder, output)
    return encode(inputs.collection, encoder, output, role, split, batch_size)


def _smooth(inputs: Inputs, system: System) -> Path:
    vectors = Vectors(inputs.vectors(replace(system, smooth=False), "documents"))
    dense = Vectors(inputs.vectors(_near_by(system), "documents")) if inputs.experiment.dense else None
    return smooth(vectors, inputs.vectors(system, "documents"), dense, inputs.layout.idf(system))


def _expand(inputs: Inputs, system: System) -> Path:
    layout, dense = inputs.layout, _near_by(system)
    vectors = Vectors(inputs.vectors(dense, "documents"))
    return expand(Vectors(layout.words, "words"), vectors, inputs.encoder(dense), layout.expansion(system))


def _near_by(system: System) -> System:
    """The dense system that tells what is near the documents of a smooth one."""
    return parse_system(f"{ADAPTED * system.adapted}dense")


def _impacts(inputs: Inputs, system: System) -> Path:
    experiment, layout = inputs.experiment, inputs.layout
    config = inputs.encoder(system).config.replace(idf=str(layout.idf(system)) if system.idf else None)
    near = layout.expansion(system) if experiment.expands(system) else None
    bm25 = Bm25(layout.words, experiment.collection.k1, experiment.collection.b, experiment.alpha, near)
    return write_impacts(
        Vectors(inputs.vectors(system, "documents")),
        config,
        layout.impacts(system),
        bm25 if system.joint else None,
        inputs.encoder(system),
    )


def _index(inputs: Inputs, system: System) -> Path:
    output, experiment = inputs.layout.index(system), inputs.experiment
    if system.kind == "splade":
        return index_impacts(inputs.layout.impacts(system), output, inputs.collection if experiment.raw else None)
    if system.kind == "dense":
        return index_dense(Vectors(inputs.vectors(system, "documents")), output)
    generated = experiment.generated if system.kind == "doct5query" else None
    queries = open_collection(load_index_config(generated)) if generated else None
    return index_bm25(inputs.collection, output, experiment.threads, queries, experiment.raw)


def _search(inputs: Inputs, system: System) -> Path:
    config = inputs.experiment.collection
    return search(
        inputs.layout.index(system),
        inputs.queries(system),
        inputs.layout.run(system),
        hits=config.hits,
        remove_query=inputs.remove_query,
        k1=config.k1,
        b=config.b,
        threads=inputs.experiment.threads,
        tag=system.name,
        feedback=Feedback(inputs.vectors(system, "documents")) if system.feedback else None,
        passages=config.passages is not None,
    )


def _rerank(inputs: Inputs, system: System) -> Path:
    experiment, (first,) = inputs.experiment, system.parts
    return rerank(
        inputs.layout.run(first),
        inputs.topics,
        inputs.collection,
        inputs.cross_encoder,
        inputs.layout.run(system),
        experiment.depth,
        experiment.device,
        experiment.precision,
        system.name,
    )


def _rescore(inputs: Inputs, hybrid: System, part: System) -> Path:
    layout = inputs.layout
    others = [layout.run(other) for other in hybrid.parts if other != part]
    output = layout.rescored(hybrid, part)
    return rescore(layout.run(part), others, _scorer(inputs, part), output, inputs.experiment.depth, part.name)


def _scorer(inputs: Inputs, system: System) -> Scorer:
    """A function that scores documents for queries as the system does."""
    config, index = inputs.experiment.collection, inputs.layout.index(system)
    if system.searches_text:
        return text_scorer(index, inputs.topics, config.k1, config.b)
    if system.kind == "dense":
        return dense_scorer(inputs.vectors(system, "documents"), inputs.queries(system))
    vectors, layout = inputs.vectors(system, "documents"), inputs.layout
    return impact_scorer(index, vectors, layout.words, layout.expansion(system), inputs.queries(system))


def _balance(inputs: Inputs) -> Path:
    experiment, layout = inputs.experiment, inputs.layout
    splade, dense = (inputs.encoder(SINGLE[kind]).config for kind in ("splade", "dense"))
    folder = layout.folder / "vectors"
    material = Material(
        experiment.collection, splade, dense, folder, 0, SEED, experiment.device, precision=experiment.precision
    )
    return balance(material, layout.weights)


def _fuse(inputs: Inputs, system: System) -> Path:
    layout, experiment = inputs.layout, inputs.experiment
    runs = [layout.rescored(system, part) if system.exact else layout.run(part) for part in system.parts]
    depth = experiment.depth
    if system.exact and FUSIONS[system.fusion].missing == "zero":
        depth *= len(runs)  # rescored runs contain the union of all parts' best documents, all of which are fused
    weights = experiment.weights_of(system)
    if experiment.balances(system):
        weights = tuple(json.loads(layout.weights.read_text()).values())
    hits = experiment.collection.hits
    return fuse(runs, layout.run(system), system.fusion, depth, hits, system.name, weights)


def _evaluate(inputs: Inputs, system: System) -> Path:
    return evaluate(inputs.layout.run(system), inputs.qrels or {}, inputs.layout.evaluation(system))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file. Raises CaiError if another process holds it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaiError(
                f"another run is at work in {path.parent}; wait for it, or choose another --output"
            ) from None
        yield
