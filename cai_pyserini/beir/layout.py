"""The layout of a run folder."""

from dataclasses import dataclass
from pathlib import Path

from cai_pyserini.beir.systems import ADAPTED, System
from cai_pyserini.encode.encoder import Role


@dataclass(frozen=True)
class Layout:
    """The paths in a run folder."""

    folder: Path

    @property
    def collection(self) -> Path:
        """The result of checking the collection, with its counts."""
        return self.folder / "collection.json"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.md"

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    @property
    def adapted(self) -> Path:
        """The adapted SPLADE encoder."""
        return self.folder / "adapted"

    @property
    def adapted_dense(self) -> Path:
        """The adapted dense encoder."""
        return self.adapted / "dense"

    @property
    def weights(self) -> Path:
        """The weights of three ways."""
        return self.folder / "weights.json"

    def idf(self, system: System) -> Path:
        """The IDF of the tokens of a system's encoder."""
        return self.folder / f"{ADAPTED * system.adapted}idf{'-dense' * (system.kind == 'dense')}"

    @property
    def words(self) -> Path:
        """The words of the documents, for joint indexes."""
        return self.folder / "words"

    def expansion(self, system: System) -> Path:
        """Words near the documents, for smooth joint indexes; adapted ones have those by the adapted dense encoder."""
        return self.folder / f"{ADAPTED * system.adapted}expansion"

    def vectors(self, system: System, role: Role, split: str) -> Path:
        """Raw vectors. SPLADE systems share theirs, smooth and adapted ones among themselves; those of a dense encoder
        depend on the IDF."""
        name = f"documents{'-smooth' * system.smooth}" if role == "documents" else f"queries-{split}"
        prefix = f"{system.index}-" if system.kind == "dense" else ADAPTED * system.adapted
        return self.folder / "vectors" / f"{prefix}{name}"

    def impacts(self, system: System) -> Path:
        return self.folder / "impacts" / system.index

    def index(self, system: System) -> Path:
        return self.folder / "indexes" / system.index

    def run(self, system: System) -> Path:
        return self.folder / "runs" / f"{system.name}.trec"

    def rescored(self, hybrid: System, part: System) -> Path:
        """The run of a part of an exact hybrid, with scores for the documents of all parts."""
        others = "-".join(other.name for other in hybrid.parts if other != part)
        return self.folder / "runs" / "rescored" / f"{part.name}-with-{others}.trec"

    def evaluation(self, system: System) -> Path:
        return self.folder / "evaluations" / f"{system.name}.json"
