"""What the stages of an experiment share."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from cai_pyserini.beir.experiment import Experiment
from cai_pyserini.beir.systems import ADAPTED, System
from cai_pyserini.collection.check import Reading
from cai_pyserini.collection.contract import Collection, Qrels
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_encoder
from cai_pyserini.encode.encoder import Encoder, Role
from cai_pyserini.encode.queries import Queries, WordQueries
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.retrieval.search import removes_query
from cai_pyserini.words.analyzer import Analyzer


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
