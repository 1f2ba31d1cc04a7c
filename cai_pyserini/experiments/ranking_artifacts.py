"""The TREC runs of systems, and evaluations; see experiments.artifacts."""

from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.experiments.artifacts import Artifact
from cai_pyserini.experiments.chosen_artifacts import Weights
from cai_pyserini.experiments.estimate import Rate
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.index_artifacts import FEWER_SYSTEMS, index_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import CrossEncoderSystem, FusedSystem, System
from cai_pyserini.indexes.retrieve import search
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.device import resolve_device
from cai_pyserini.runs.fuse import fuse
from cai_pyserini.runs.measures import evaluate
from cai_pyserini.runs.rerank import rerank
from cai_pyserini.runs.trec import removes_query


def ranking_of(system: System, run: RunFolder) -> "Ranking":
    """The TREC run of a system."""
    match system:
        case FusedSystem():
            return Fusion(system, run)
        case CrossEncoderSystem():
            return Rerank(system, run)
    return Search(system, run)


class Ranking(Artifact):
    """The TREC run of a system."""

    remedy = FEWER_SYSTEMS
    method: str | None = None  # of fusion
    chosen: Artifact | None = None  # weights of the parts, if they are chosen from the documents

    def __init__(self, work: str, system: System, run: RunFolder, *made_from: Artifact | None):
        super().__init__(run, f"{work} {system.name}", f"runs/{system.long_name}.trec", *made_from)
        self.system = system

    def weights(self) -> tuple[float, ...] | None:
        """The weights of the parts; None if all are 1, or if there are no parts."""
        return None


class Search(Ranking):
    rate = Rate(0.001, 0.00001)  # per query
    start = 2.0  # seconds

    def __init__(self, system: System, run: RunFolder):
        self.index = index_of(system, run)
        super().__init__("search", system, run, self.index, self.index.encoded_queries(system.query))

    def make(self) -> Path:
        run, collection = self.run, self.run.experiment.collection
        return search(
            self.index.output,
            self.index.queries(self.system.query),
            self.output,
            hits=collection.hits,
            remove_query=removes_query(collection.remove_query, run.qrels),
            bm25=collection.bm25,
            threads=run.experiment.threads,
            tag=self.system.name,
            passages=bool(collection.passages),
        )

    def seconds(self) -> float:
        return self.start + len(self.run.topics) * self.rate.seconds(self.run.sample)


class Fusion(Ranking):
    """The fusion of the parts' rankings."""

    chosen: Weights | None
    rate = Rate(0.5)

    def __init__(self, system: System, run: RunFolder):
        self.rankings = [ranking_of(part, run) for part in system.parts]
        self.chosen = Weights(run) if run.experiment.balances(system) else None
        self.method = system.fusion
        super().__init__("fuse", system, run, *self.rankings, self.chosen)

    def weights(self) -> tuple[float, ...] | None:
        return self.chosen.values() if self.chosen else self.run.experiment.weights_of(self.system)

    def make(self) -> Path:
        experiment, runs = self.run.experiment, [ranking.output for ranking in self.rankings]
        depth, hits = experiment.depth, experiment.collection.hits
        return fuse(
            runs, self.output, self.system.fusion, depth=depth, hits=hits, tag=self.system.name, weights=self.weights()
        )


class Rerank(Ranking):
    """The first part's best documents in the order of a cross-encoder."""

    remedy = "rerank_minutes, or a smaller depth"

    def __init__(self, system: System, run: RunFolder):
        self.first_stage = ranking_of(system.parts[0], run)
        super().__init__("rerank", system, run, self.first_stage)

    def require(self) -> None:
        from cai_pyserini.models.cross_encoder import require_reranker  # imports torch, which takes seconds

        resolve_device(self.run.experiment.device)
        require_reranker(self._checkpoint())

    def _checkpoint(self) -> Path:
        return load_checkpoint(self.run.experiment.cross_encoder or "")

    def make(self) -> Path:
        run, experiment = self.run, self.run.experiment
        return rerank(
            self.first_stage.output,
            run.topics,
            run.collection,
            self._checkpoint(),
            self.output,
            depth=experiment.depth,
            device=experiment.device,
            precision="auto" if experiment.precision == "int8" else experiment.precision,  # int8 is for documents only
            tag=self.system.name,
            minutes=experiment.rerank_minutes,
        )

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        results.decision += manifest.stats["decision"]


class Evaluation(Artifact):
    """The measures of a ranking, by query."""

    rate = Rate(0.5)

    def __init__(self, system: System, run: RunFolder):
        self.ranking = ranking_of(system, run)
        name, place = f"evaluate {system.name}", f"evaluations/{system.long_name}.json"
        super().__init__(run, name, place, self.ranking)

    def make(self) -> Path:
        return evaluate(self.ranking.output, self.run.qrels or {}, self.output, self.run.experiment.measures)
