"""Systems: what ranks documents for queries, and what each needs. They are built from artifacts, see index_of and
ranking_of."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

from cai_pyserini.core.config import IdfFormula
from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs.fusions import DEFAULT

if TYPE_CHECKING:
    from cai_pyserini.experiments.experiment import Experiment

ADAPTED = "adapted-"
SHORT = {  # short names of recommended systems
    "joint-splade-idf": "joint",
    "joint-splade-doc-idf": "joint-doc",
    "joint-splade-idf-near": "joint-near",
    "joint-splade-doc-idf-near": "joint-doc-near",
    "fused-bm25-near-splade-idf-near-dense-zscore": "trio",
    "fused-bm25-near-splade-doc-idf-near-dense-zscore": "trio-doc",
}


WEIGHTINGS: dict[str, tuple[IdfFormula, float | None]] = {  # of documents: formula and power of IDF
    "idf": ("idf", None),  # the encoder's idf_power
    "sqrt": ("idf", 0.5),
    "bm25idf": ("bm25idf", 1.0),
    "auto": ("idf", None),  # chosen from the documents
}


class System:
    """What ranks documents for queries. `long_name` says what it consists of, and names its files."""

    role = ""  # in a fusion
    query: Literal["splade", "bow"] | None = None  # how queries are represented; None: as the index has them
    index_name: str | None = None  # of its index, which systems share that differ in their queries alone
    settings: tuple[str, ...] = ()  # of the experiment that it cannot do without
    adaptable = False  # has encoders that can be adapted
    searchable = True  # by its indexes alone
    near = False  # documents have what is near, which a dense encoder finds
    grams = False  # words also have their n-grams
    weighted = False  # documents are weighted with the IDF of the collection
    joint = False  # its index of impacts has BM25's words
    fusion = DEFAULT
    is_sum = False  # of scores as they are
    balanced = False  # its parts' weights can be chosen from the documents
    work = 0  # systems with less are made first

    def __init__(self, long_name: str, *parts: "System"):
        self.long_name, self.parts = long_name, parts
        self.adapted = long_name.startswith(ADAPTED)  # its encoders are adapted to the collection
        self.models: set[str] = set().union(*(part.models for part in parts))  # that it needs at query time
        self.evidence: set[str] = set().union(*(part.evidence for part in parts))  # what its scores are made from

    def __eq__(self, other: object) -> bool:
        return isinstance(other, System) and self.long_name == other.long_name

    def __hash__(self) -> int:
        return hash(self.long_name)

    def __repr__(self) -> str:
        return self.long_name

    @property
    def name(self) -> str:
        """The short name, if it has one, else the long name with the short names of its parts."""
        name = self.long_name.removeprefix(ADAPTED)
        for part in () if name in SHORT else self.parts:
            name = name.replace(part.long_name.removeprefix(ADAPTED), part.name.removeprefix(ADAPTED), 1)
        return f"{ADAPTED * self.adapted}{SHORT.get(name, name)}"

    @property
    def expected_quality(self) -> tuple[int, ...]:
        """Sort key for systems without scores, larger is better, after docs/choosing.md: more kinds of evidence, more
        indexes, neighbours, IDF, and then dense before BM25 before SPLADE."""
        singles = sum(bool(system.role) for system in self.walk())
        kind = self.role == "dense", self.role == "bm25"
        return len(self.evidence), singles, self.near, self.weighted, *kind, self.grams

    def walk(self) -> "Iterator[System]":
        """Yield its parts recursively, then itself."""
        for part in self.parts:
            yield from part.walk()
        yield self

    @property
    def searched(self) -> "Sequence[System]":
        """The systems whose indexes it searches."""
        return (self,)

    def adapt(self) -> "System":
        """The same system with adapted encoders."""
        raise ValueError(f"{self.name} has no encoder")

    def require(self, experiment: "Experiment") -> None:
        """Raise CaiError for an experiment with an encoder that it cannot use."""


class TextSystem(System):
    """BM25 of the documents' text, with generated queries (doct5query) or without."""

    def __init__(self, name: str, generated: bool = False):
        super().__init__(name)
        self.role = self.index_name = name
        self.evidence, self.generated = {name}, generated
        self.settings = ("generated",) if generated else ()


class SpladeSystem(System):
    """SPLADE, with bag-of-words queries if `doc`; a joint one has BM25's words in the same index."""

    role, work, adaptable = "splade", 1, True
    index_name: str

    def __init__(self, doc: bool, weighting: str | None, joint: bool, near: bool, adapted: bool = False):
        def named(queries: str | Literal[False] = False) -> str:
            name = _joined(joint and "joint", "splade", queries, weighting, near and "near")
            return f"{ADAPTED * adapted}{name}"

        super().__init__(named(doc and "doc"))
        self.index_name = named()
        self.query = "bow" if doc else "splade"
        self.weighting, self.weighted, self.joint, self.near = weighting, weighting is not None, joint, near
        self.settings = ("dense",) * near
        self.models = set() if doc else {self.role}
        self.evidence = {self.role, *["bm25"] * joint, *["dense"] * near}

    def adapt(self) -> System:
        return SpladeSystem(self.query == "bow", self.weighting, self.joint, self.near, adapted=True)

    def require(self, experiment: "Experiment") -> None:
        encoder = experiment.encoder
        if not encoder.is_sparse:
            raise CaiError(f"encoder {encoder.name} is dense: give it as the setting dense")
        if self.weighting == "idf" and encoder.idf_power == 0:
            raise CaiError(
                f"encoder {encoder.name} has idf_power 0: {self.name} would be unweighted; set `idf_power: 1` in a "
                "YAML file of the encoder, or leave the system out"
            )


class WordSystem(System):
    """BM25 in an index of impacts: of words, with their n-grams if `grams`; if `near`, documents also have words of
    near ones, with associated words if `associated`."""

    role, query, work, joint = "bm25", "bow", 1, True

    def __init__(self, grams: bool, near: bool, associated: bool = False, adapted: bool = False):
        name = _joined("bm25", grams and "grams", near and "near", associated and "words")
        super().__init__(f"{ADAPTED * adapted}{name}")
        self.index_name, self.grams, self.near, self.adaptable = self.long_name, grams, near, near
        self.associated, self.evidence, self.settings = associated, {self.role, *["dense"] * near}, ("dense",) * near

    def adapt(self) -> System:
        return WordSystem(self.grams, self.near, self.associated, adapted=True)


class DenseSystem(System):
    """Nearest vectors of a dense encoder, in which tokens are weighted with an IDF if there is a `formula`."""

    role, work, adaptable, settings = "dense", 2, True, ("dense",)

    def __init__(self, formula: IdfFormula | None, adapted: bool = False):
        super().__init__(f"{ADAPTED * adapted}{_joined('dense', formula)}")
        self.index_name, self.formula, self.weighted = self.long_name, formula, formula is not None
        self.models = self.evidence = {self.role}

    def adapt(self) -> System:
        return DenseSystem(self.formula, adapted=True)


class CrossEncoderSystem(System):
    """The part's best documents, in the order of a cross-encoder."""

    role, searchable, settings = "cross-encoder", False, ("cross_encoder",)

    def __init__(self, long_name: str, first_stage: System):
        super().__init__(long_name, first_stage)
        self.models |= {self.role}
        self.evidence |= {self.role}


class FusedSystem(System):
    """A fusion of its parts' rankings."""

    def __init__(self, long_name: str, parts: "Sequence[System]", fusion: str = DEFAULT):
        super().__init__(long_name, *parts)
        self.fusion, self.is_sum = fusion, fusion == DEFAULT
        self.balanced = fusion == "zscore" and [part.role for part in parts] == ["bm25", "splade", "dense"]
        self.near, self.weighted = (any(getattr(part, each) for part in parts) for each in ("near", "weighted"))
        self.adaptable, self.searchable = any(p.adaptable for p in parts), all(p.searchable for p in parts)

    @property
    def searched(self) -> Sequence[System]:
        return self.parts

    def adapt(self) -> System:
        parts = [part.adapt() if part.adaptable else part for part in self.parts]
        return FusedSystem(f"{ADAPTED}{self.long_name}", parts, self.fusion)


def _joined(*parts: str | Literal[False] | None) -> str:
    return "-".join(part for part in parts if part)


BM25, BOTH = TextSystem("bm25"), (False, True)
SINGLE: dict[str, System] = {  # by their long names
    system.long_name: system
    for system in (
        BM25,
        WordSystem(grams=False, near=True),
        WordSystem(grams=False, near=True, associated=True),
        WordSystem(grams=True, near=False),
        WordSystem(grams=True, near=True, associated=True),
        TextSystem("doct5query", generated=True),
        CrossEncoderSystem("cross-encoder", BM25),
        *(
            SpladeSystem(doc, weighting, joint, near)
            for joint, near, weighting, doc in product(BOTH, BOTH, (None, *WEIGHTINGS), BOTH)
        ),
        DenseSystem(None),
        DenseSystem("idf"),
    )
}
