"""The steps of an experiment: what each system needs, from the collection to its scores."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from cai_pyserini.collections.check import check
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.steps import Step
from cai_pyserini.experiments.estimate import Times
from cai_pyserini.experiments.experiment import REQUIRES, Experiment
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunSettings
from cai_pyserini.experiments.systems import ADAPTED, BM25, SINGLE, System, adapted, with_parts
from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.retrieve import search
from cai_pyserini.indexes.text_index import GENERATED, index_bm25
from cai_pyserini.indexes.words import count_words
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.encoder import Role
from cai_pyserini.runs.fuse import fuse
from cai_pyserini.runs.fusions import FUSIONS
from cai_pyserini.runs.measures import evaluate
from cai_pyserini.runs.rerank import rerank
from cai_pyserini.runs.trec import removes_query
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.document_frequencies import compute
from cai_pyserini.vectors.encode import encode, project_vectors
from cai_pyserini.vectors.expansion import expand
from cai_pyserini.vectors.near import find_neighbours
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.smooth import smooth
from cai_pyserini.vectors.weighting import write_impacts

SEED = 42  # for sampling the pseudo queries that weights are chosen on
DENSE = SINGLE["dense"]


class Plan:
    """The steps that write the files of a run folder, by output. Each method returns the path of an output and adds its
    step, after those of its inputs, if it is missing. `earlier` is a run on a previous version of the collection, whose
    adapted encoders and chosen weights are kept, and whose vectors are reused."""

    def __init__(self, run: RunFolder, adaptation: AdaptSettings | None = None, earlier: RunFolder | None = None):
        self.run, self.experiment, self.adaptation = run, run.experiment, adaptation
        self.earlier = earlier
        self.times = Times(run)
        self.steps: dict[Path, Step] = {}

    def _add(
        self,
        name: str,
        output: Path,
        call: Callable[[], Path],
        *inputs: Path | None,
        takes: Callable[[], float] | None = None,
    ) -> Path:
        estimate = takes or partial(self.times.of, name)
        self.steps.setdefault(output, Step(name, output, call, tuple(filter(None, inputs)), estimate))
        return output

    def check(self, reads_splade: bool) -> Path:
        run, output, split = self.run, self.run.checked, self.experiment.collection.split
        return self._add(
            "check", output, lambda: check(run.collection, split, output, run.reading if reads_splade else None)
        )

    def adapt(self) -> Path | None:
        """The adapted encoders; None without adaptation settings."""
        if self.adaptation is None:
            return None
        if self.run.adapted not in self.steps:
            from cai_pyserini.trainer.adapt import steps  # needs the extra `trainer`

            for step in steps(self.adaptation, planned=self.steps):
                self.steps.setdefault(step.output, step)
        return self.run.adapted

    def _encoder(self, system: System) -> Path | None:
        """The encoder of a system, if a step writes it."""
        return self.adapt() if system.adapted else None

    def idf(self, system: System) -> Path:
        run, output = self.run, self.run.idf(system)
        return self._add(
            output.name,
            output,
            lambda: compute(run.collection, run.encoder(system).config, output, system.weighting or "idf"),
            self._encoder(system),
        )

    def documents(self, system: System) -> Path:
        output = self.run.vectors_of(system)
        if system.mixes_vectors:
            raw, near = self.documents(replace(system, smooth=False)), self.near(system)
            name = f"smooth{' adapted' * system.adapted}"
            return self._add(name, output, lambda: smooth(Vectors(raw), Vectors(near, "near"), output), raw, near)
        dense = self.experiment.dense
        if system.long_name == f"{ADAPTED}dense" and dense and dense.overlap is None:
            plain = self.documents(DENSE)
            return self._add(
                f"project {output.name}",
                output,
                lambda: project_vectors(Vectors(plain), self.run.encoder(system), output),
                plain,
                self._encoder(system),
            )
        return self._encode(system, "documents")

    def queries(self, system: System) -> Path | None:
        """The queries' raw vectors; None for text and bag-of-words queries, which need no model."""
        return None if system.searches_text or system.bow else self._encode(system, "queries")

    def _encode(self, system: System, role: Role) -> Path:
        run, experiment, output = self.run, self.experiment, self.run.vectors_of(system, role)

        def call() -> Path:
            encoder, split, batch_size = run.encoder(system), experiment.collection.split, experiment.batch_size
            earlier = self.earlier.vectors_of(system) if self.earlier and role == "documents" else None
            return encode(run.collection, encoder, output, role, split=split, batch_size=batch_size, earlier=earlier)

        idf = self.idf(system) if system.kind == "dense" and system.weighting else None
        takes = None if system.adapted or self.earlier else partial(self.times.encode, system, role, output)
        return self._add(f"encode {output.name}", output, call, idf, self._encoder(system), takes=takes)

    def near(self, system: System) -> Path:
        """Each document's neighbours."""
        vectors, output = self.documents(_dense_for(system)), self.run.near(system)
        name = f"near{' adapted' * system.adapted}"
        return self._add(name, output, lambda: find_neighbours(Vectors(vectors), output), vectors)

    def words(self) -> Path:
        return self._add("words", self.run.words, lambda: count_words(self.run.collection, self.run.words))

    def expansion(self, system: System) -> Path | None:
        """The document expansion of a smooth joint index; None for other indexes."""
        if not (system.joint and system.smooth):
            return None
        dense, words, output = _dense_for(system), self.words(), self.run.expansion(system)
        vectors, near = self.documents(dense), self.near(system)

        def call() -> Path:
            encoder = self.run.encoder(dense)
            return expand(Vectors(words, "words"), Vectors(vectors), Vectors(near, "near"), encoder, output)

        takes = None if system.adapted else partial(self.times.expand, dense)
        return self._add(f"expand{' adapted' * system.adapted}", output, call, words, vectors, near, takes=takes)

    def impacts(self, system: System) -> Path:
        run, output = self.run, self.run.impacts(system)
        vectors, near = self.documents(system), self.expansion(system)
        idf = self.idf(system) if system.weighting else None
        words = self.words() if system.joint else None

        def call() -> Path:
            collection, encoder = self.experiment.collection, run.encoder(system)
            config = run.weighted(encoder.config, system)
            bm25 = Bm25(words, collection.k1, collection.b, self.experiment.alpha, near) if words else None
            if bm25 and system.kind == "bm25":
                bm25, config = replace(bm25, alpha=1.0, documents_only=True), config.replace(keep_terms=0)
            return write_impacts(Vectors(vectors), config, output, bm25, encoder, self.experiment.threads)

        return self._add(f"impacts {system.index}", output, call, vectors, idf, words, near)

    def index(self, system: System) -> Path:
        run, experiment, output = self.run, self.experiment, self.run.index(system)
        name = f"index {system.index}"
        if system.has_impacts:
            impacts = self.impacts(system)

            def call_impact() -> Path:
                stored = run.collection if experiment.raw else None
                forward = run.encoder(system).config.forward_index  # impacts may still have earlier settings
                return index_impacts(impacts, output, stored, experiment.threads, forward_index=forward)

            return self._add(name, output, call_impact, impacts)
        if system.kind == "dense":
            vectors = self.documents(system)
            settings = experiment.dense_index, experiment.threads, experiment.collection.weight_of_first_passage
            return self._add(name, output, lambda: index_dense(Vectors(vectors), output, *settings), vectors)

        def call_bm25() -> Path:
            generated = load_collection(experiment.generated or "") if system.kind == "doct5query" else None
            return index_bm25(run.collection, output, experiment.threads, generated, experiment.raw)

        return self._add(name, output, call_bm25)

    @cached_property
    def _remove_query(self) -> bool:
        return removes_query(self.experiment.collection.remove_query, self.run.qrels)

    def ranking(self, system: System) -> Path:
        """The TREC run of a system."""
        run, config, output = self.run, self.experiment.collection, self.run.run(system)
        if system.kind == "hybrid":
            return self._fuse(system, output)
        if system.kind == "cross-encoder":
            return self._rerank(system, output)

        def call() -> Path:
            return search(
                run.index(system),
                run.queries(system),
                output,
                hits=config.hits,
                remove_query=self._remove_query,
                k1=config.k1,
                b=config.b,
                threads=self.experiment.threads,
                tag=system.name,
                passages=bool(config.passages),
            )

        inputs = self.index(system), self.queries(system)
        return self._add(f"search {system.name}", output, call, *inputs, takes=self.times.search)

    def _rerank(self, system: System, output: Path) -> Path:
        run, experiment, first_stage = self.run, self.experiment, self.ranking(BM25)

        def call() -> Path:
            precision = "auto" if experiment.precision == "int8" else experiment.precision  # int8 is for documents only
            return rerank(
                first_stage,
                run.topics,
                run.collection,
                load_checkpoint(experiment.cross_encoder or ""),
                output,
                depth=experiment.depth,
                device=experiment.device,
                precision=precision,
                tag=system.name,
                minutes=experiment.rerank_minutes,
            )

        return self._add(f"rerank {system.name}", output, call, first_stage)

    def _fuse(self, system: System, output: Path) -> Path:
        experiment = self.experiment
        runs = [self.ranking(part) for part in system.parts]
        chosen = self.weights() if experiment.balances(system) else None

        def call() -> Path:
            depth, hits, weights = experiment.depth, experiment.collection.hits, self.run.weights_of(system)
            return fuse(runs, output, system.fusion, depth=depth, hits=hits, tag=system.name, weights=weights)

        return self._add(f"fuse {system.name}", output, call, *runs, chosen)

    def weights(self) -> Path:
        """The weights of BM25 + SPLADE + dense: those of `earlier`, or else chosen from the documents."""
        run, experiment, output = self.run, self.experiment, self.run.weights
        if self.earlier and artifact.read_manifest(output):
            return output

        def call() -> Path:
            from cai_pyserini.trainer.adaptation_data import AdaptationData
            from cai_pyserini.trainer.choice import FEW_HELD_OUT, balance  # imports torch, which takes seconds

            splade, dense = (run.encoder(system).config for system in (SINGLE["splade"], DENSE))
            options = experiment.model_dump(include={"device", "precision", "depth"})
            options |= FEW_HELD_OUT | {"queries": 0, "seed": SEED}
            data = AdaptationData(experiment.collection, splade, dense, run.vectors, **options)
            return balance(data, output)

        vectors = self.documents(SINGLE["splade"]), self.documents(DENSE)
        return self._add("weights", output, call, *vectors, takes=partial(self.times.weights, SINGLE["splade"], DENSE))

    def evaluation(self, system: System) -> Path:
        ranking, output = self.ranking(system), self.run.evaluation(system)
        return self._add(
            f"evaluate {system.name}", output, lambda: evaluate(ranking, self.run.qrels or {}, output), ranking
        )


def _dense_for(system: System) -> System:
    """The dense system that finds the neighbours of a system's documents; adapted if the system is."""
    return adapted(DENSE) if system.adapted else DENSE


def plan(
    run: RunFolder,
    systems: Sequence[System],
    adaptation: AdaptSettings | None = None,
    evaluate: bool = True,
    earlier: RunFolder | None = None,
) -> list[Step]:
    """The steps that these systems need, in order: with searches if the collection has queries, and evaluations if it
    has qrels, but neither without `evaluate`. Indexes come first, and weights, so that systems can be searched as early
    as possible. See Plan for `earlier`."""
    steps, needed = Plan(run, adaptation, earlier), with_parts(systems)
    has_queries = evaluate and run.has_queries
    indexed = [system for system in needed if system.kind not in ("hybrid", "cross-encoder")]
    steps.check(any(system.kind == "splade" for system in indexed))
    for system in sorted(indexed, key=_work):
        steps.index(system)
    if any(map(run.experiment.balances, needed)):
        steps.weights()
    if has_queries:
        for system in indexed:
            steps.queries(system)
        for system in needed:
            steps.ranking(system)
    for system in systems if evaluate and run.has_qrels else []:
        steps.evaluation(system)
    return list(steps.steps.values())


def _work(system: System) -> tuple[bool, ...]:
    """Sort key for systems, so that each index is finished, and can be searched, as early as possible."""
    return system.adapted, system.smooth, system.kind == "dense", not system.searches_text


def require(
    run: RunFolder, systems: Sequence[System], adaptation: AdaptSettings | None = None, keep: bool = False
) -> None:
    """Raise CaiError, before any step runs, if the experiment lacks a setting that a system needs, or if the run folder
    is not writable. With `keep`, adapted encoders that exist need no adaptation settings."""
    artifact.require_writable(run.root, marker=run.lock.name)
    experiment, needed = run.experiment, with_parts(systems)
    if weights := experiment.weights:
        weighted = [system for system in needed if experiment.weights_of(system)]
        if min(weights) <= 0 or not weighted:
            raise CaiError(
                f"weights {' '.join(map(str, weights))}: give as many positive numbers as a hybrid has parts"
            )
        if fixed := [system for system in weighted if not FUSIONS[system.fusion].is_sum]:
            raise CaiError(f"weights have no effect on {fixed[0].fusion}: leave out {fixed[0].name}")
    if adapted_systems := [system for system in needed if system.adapted]:
        if not keep or not artifact.read_manifest(run.adapted):
            _require_adaptation(experiment, adapted_systems[0], adaptation)
        needed.append(SINGLE["splade"])  # the base of the adaptation
    elif adaptation:
        raise CaiError(
            f"the setting adapt has no effect on these systems: name an adapted one, such as {ADAPTED}splade-idf"
        )
    for system in needed:
        kind = "dense" if system.smooth else system.kind  # which finds neighbours
        if (setting := REQUIRES.get(kind)) and getattr(experiment, setting) is None:
            raise CaiError(
                f"{system.name} needs the setting {setting}, {RunSettings.model_fields[setting].description}"
            )
        if system.kind == "splade":
            if experiment.encoder.kind == "dense":
                raise CaiError(f"encoder {experiment.encoder.name} is dense: give it as the setting dense")
            if system.weighting and experiment.encoder.idf_power == 0:
                raise CaiError(
                    f"encoder {experiment.encoder.name} has idf_power 0: {system.name} would be unweighted; set "
                    "`idf_power: 1` in a YAML file of the encoder, or leave the system out"
                )
        if system.kind in ("splade", "dense"):
            roles: list[Role] = ["documents"] if system.bow else ["documents", "queries"]
            run.encoder(replace(system, adapted=False)).require_loadable(*roles)  # the adapted one may not exist yet
        if system.kind == "cross-encoder":
            from cai_pyserini.models.rerankers import require_reranker  # imports torch, which takes seconds

            resolve_device(experiment.device)
            require_reranker(load_checkpoint(experiment.cross_encoder or ""))
        if system.kind == "doct5query" and not load_collection(experiment.generated or "").has_qrels(GENERATED):
            raise CaiError(f"{experiment.generated} has no queries of `cai-pyserini train generate`")


def _require_adaptation(experiment: Experiment, system: System, adaptation: AdaptSettings | None) -> None:
    """Raise CaiError if an adapted system cannot be adapted."""
    if adaptation is None:
        raise CaiError(f"{system.name} needs the setting adapt")
    require_trainer()
    if (load_index_config(adaptation.collection).passages or 0) != (experiment.collection.passages or 0):
        raise CaiError(
            "passages with adapt: write `passages` to a YAML file of the collection instead, as in index_configs/, "
            "so that adaptation reads the same passages"
        )
