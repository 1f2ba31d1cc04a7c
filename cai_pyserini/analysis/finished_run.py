"""Finished runs of the line, opened again: what was encoded, indexed and searched."""

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cai_pyserini import artifact
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import IndexConfig, checkpoint_folder, load_encoder
from cai_pyserini.systems import System

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from cai_pyserini.impact import Quantizer
    from cai_pyserini.splade import Tokenizer
    from cai_pyserini.vectors import Vectors


class FinishedRun:
    """A folder that `python -m cai_pyserini.beir` has finished, and what it was run on.

    Raises CaiError where the folder has no finished run of a SPLADE encoder, and where its collection has changed.
    """

    def __init__(self, folder: Path):
        settings = sorted(folder.glob("indexes/splade*/encoder.yaml"))
        if not (folder / "results.json").is_file() or not settings:
            raise CaiError(f"{folder} has no finished run of SPLADE: make one with `python -m cai_pyserini.beir`")
        self.folder = folder
        self.encoder = load_encoder(str(settings[0].parent))
        results = json.loads((folder / "results.json").read_text())
        self.split: str = results["split"]
        inputs = artifact.require_manifest(folder / "collection.json", "check")["recipe"]["inputs"]
        config = IndexConfig(results["collection"], **results["settings"]["collection"])
        self.collection = open_collection(config)
        if [self.collection.fingerprint(part) for part in ("documents", "queries")] != inputs[:2]:
            raise CaiError(
                f"{folder} was not run on {config.source} as it is now: run `python -m cai_pyserini.beir` again"
            )
        self.topics = self.collection.topics(self.split)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        from cai_pyserini.splade import Tokenizer

        return Tokenizer(checkpoint_folder(self.encoder))

    def run_path(self, system: System) -> Path:
        return self.folder / "runs" / f"{system.name}.trec"

    def index(self, system: System) -> Path:
        return self.folder / "indexes" / system.index

    @property
    def document_vectors(self) -> "Vectors":
        """Raw vectors of the documents."""
        from cai_pyserini.vectors import Vectors

        return Vectors(self.folder / "vectors" / "documents")

    def quantization(self, system: System) -> "tuple[Quantizer, np.ndarray | None]":
        """What raw vectors became impacts with: the quantizer, and IDF weights (vocabulary,) where there are any."""
        from cai_pyserini.impact import quantization

        return quantization(self.index(system), self.tokenizer.terms)

    def query_impacts(self, system: System) -> "csr_matrix":
        """Integer weights of the queries as the system has them, (queries, vocabulary), in the order of the topics."""
        from scipy.sparse import vstack

        from cai_pyserini.vectors import Vectors

        if system.bow:
            weights = self.tokenizer.bag_of_words(list(self.topics.values()), self.encoder.max_query_length)
        else:
            shards = Vectors(self.folder / "vectors" / f"queries-{self.split}")
            weights = vstack([shard.matrix for shard in shards], format="csr")
        weights.data = np.rint(weights.data * self.encoder.query_scale)
        weights.eliminate_zeros()
        return weights
