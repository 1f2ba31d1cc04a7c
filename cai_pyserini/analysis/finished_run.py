"""Run folders of `python -m cai_pyserini.beir`, opened again."""

import json
from functools import cached_property
from pathlib import Path

from cai_pyserini.beir.layout import Layout
from cai_pyserini.beir.systems import ADAPTED, System
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import IndexConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Queries
from cai_pyserini.impact.impacts import impacts_of_index
from cai_pyserini.impact.shards import Impacts
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.words.queries import word_queries

BEIR = "`python -m cai_pyserini.beir`"


class FinishedRun:
    """A finished run, with its collection.

    Raises CaiError for a folder without one, for one of another version, and where the collection has changed since.
    """

    def __init__(self, folder: Path):
        self.layout = Layout(folder)
        if not self.layout.results.is_file():
            raise CaiError(f"{folder} has no finished run: make one with {BEIR}")
        checked = artifact.read_manifest(self.layout.collection)
        if checked is None:
            raise CaiError(f"{folder} was run by another version of cai_pyserini: run {BEIR} again")
        try:
            results = json.loads(self.layout.results.read_text(encoding="utf-8"))
            self.encoder_name: str = results["encoder"]
            self.split: str = results["split"]
            config = IndexConfig(name=results["collection"], **results["settings"]["collection"])
        except (ValueError, LookupError, TypeError):
            raise CaiError(f"{self.layout.results} does not have the settings of the run: run {BEIR} again") from None
        self.config = config
        self.collection = open_collection(config)
        if any(
            self.collection.fingerprint(part) != digest for part, digest in checked.recipe["inputs"]["parts"].items()
        ):
            raise CaiError(f"{folder} was not run on {config.source} as it is now: run {BEIR} again")
        if "left_out_judgments" not in checked.stats:
            self.collection.set_missing(self.split, frozenset())
        self.passages = config.passages is not None
        self._encoders: dict[bool, Encoder] = {}

    @cached_property
    def topics(self) -> dict[str, str]:
        return self.collection.topics(self.split)

    def has(self, system: System) -> bool:
        """Whether the run of a system is there."""
        return self.layout.run(system).is_file()

    def encoder(self, adapted: bool = False) -> Encoder:
        """The SPLADE encoder, or the adapted one. Raises CaiError if it has no index."""
        if adapted not in self._encoders:
            indexes = [path.parent for path in sorted(self.layout.folder.glob("indexes/*splade*/encoder.yaml"))]
            indexes = [index for index in indexes if index.name.startswith(ADAPTED) == adapted]
            if not indexes:
                kind = f"{'adapted ' * adapted}SPLADE"
                raise CaiError(f"{self.layout.folder} has no {kind} index: run {BEIR} with such a system")
            self._encoders[adapted] = Encoder(load_encoder(str(indexes[0])))
        return self._encoders[adapted]

    def vectors(self, system: System) -> Vectors:
        """The raw vectors of the documents."""
        return Vectors(self.layout.vectors(system, "documents", self.split))

    def impacts(self, system: System) -> Impacts:
        """The impacts of a system's index."""
        folder = self.layout.vectors(system, "documents", self.split)
        return impacts_of_index(self.layout.index(system), folder, self.layout.words, self.layout.expansion(system))

    def queries(self, system: System) -> Queries:
        """The queries in the form that a system's index takes."""
        words = word_queries(load_encoder(str(self.layout.index(system)))) if system.joint else None
        if system.bow:
            return Queries(self.topics, self.encoder(system.adapted), "bow", words=words)
        encoder = self.encoder(system.adapted) if system.kind == "splade" else None
        return Queries(self.topics, encoder, stored=self.layout.vectors(system, "queries", self.split), words=words)
