"""What is chosen from the documents, without labels; see experiments.artifacts."""

import json
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.experiments.artifacts import Artifact, DenseEncoder, Idf, RunEncoder, SpladeEncoder
from cai_pyserini.experiments.estimate import Rate
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.vectors.idf_power import choose_power
from cai_pyserini.vectors.shards import Vectors

SEED = 42  # samples the pseudo queries that weights are chosen on
SOURCES = 600  # documents that weights are chosen on, at most a twentieth of all, see trainer.choice
QUERIES_PER_SOURCE = 2
QUERY_TOKENS = 16


class IdfPower(Artifact):
    """The power of IDF that documents are weighted with; `words` has the spans that stand for queries."""

    rate = Rate(1.0, 0.1)

    def __init__(self, encoder: RunEncoder, idf: Idf, words: Artifact):
        self.encoder, self.vectors, self.idf, self.words = encoder, encoder.documents(), idf, words
        name = f"{encoder.prefix}idf-power"
        super().__init__(encoder.run, name, f"{name}.json", self.vectors, idf, words)

    def make(self) -> Path:
        vectors, encoder = Vectors(self.vectors.output), self.encoder.opened()
        return choose_power(vectors, self.idf.output, self.words.output, encoder, self.output)

    def value(self) -> float:
        return float(artifact.require(self.output, "idf power").stats["idf_power"])

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        results.decision.append(f"{self.encoder.prefix}splade-auto: {manifest.stats['decision']}")


class Weights(Artifact):
    """The weights of BM25, SPLADE and dense in their fusion, chosen from the documents or kept from an earlier run."""

    rate = Rate(5.0, 0.5)  # besides encoding
    remedy = "weights 2 1 2, without a choice"

    def __init__(self, run: RunFolder):
        self.splade, self.dense = SpladeEncoder(run), DenseEncoder(run)
        super().__init__(run, "weights", "weights.json", self.splade.documents(), self.dense.documents())
        self.is_kept = run.earlier is not None and artifact.read_manifest(self.output) is not None

    def make(self) -> Path:
        from cai_pyserini.trainer.adaptation_data import AdaptationData
        from cai_pyserini.trainer.choice import FEW_HELD_OUT, balance  # imports torch, which takes seconds

        experiment = self.run.experiment
        options = experiment.model_dump(include={"device", "precision", "depth"})
        options |= FEW_HELD_OUT | {"queries": 0, "seed": SEED}
        splade, dense = self.splade.config(), self.dense.config()
        return balance(AdaptationData(experiment.collection, splade, dense, self.run.vectors, **options), self.output)

    def seconds(self) -> float:
        sample, seconds = self.run.sample, self.rate.seconds(self.run.sample)
        queries = QUERIES_PER_SOURCE * min(SOURCES, sample.documents / 20)
        for encoder in (self.splade.opened(), self.dense.opened()):
            seconds += sample.encoding_seconds(encoder, queries * (sample.tokens(encoder) + QUERY_TOKENS))
        return seconds

    def values(self) -> tuple[float, ...]:
        return tuple(json.loads(self.run.require(self.output).read_text(encoding="utf-8")).values())

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        results.decision += manifest.stats["decision"]
