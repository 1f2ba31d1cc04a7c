"""The systems of an experiment, the rows of every table, and their names.

bm25, doct5query                                   BM25; for doct5query, on documents with generated queries appended
splade, splade-doc, splade-idf, splade-doc-idf     SPLADE; with bag-of-words queries (-doc), with IDF (-idf)
dense, dense-idf                                   dense retrieval with mean pooling; weighted with IDF (-idf)
cross-encoder                                      the best documents of bm25, reranked
hybrid-<one or more of the others>                 fused with bm25 by the sum of scores, as in the paper
hybrid-<…>-<fusion>                                fused by another method; hybrid-dense-product is LaPraDoR
hybrid-<…>[-<fusion>]-exact                        every system scores all documents that are fused
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Literal

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.fusion.fusions import DEFAULT, FUSIONS

Kind = Literal["bm25", "doct5query", "splade", "dense", "cross-encoder", "hybrid"]


@dataclass(frozen=True)
class System:
    """A single system, or a hybrid, whose parts are systems."""

    name: str
    kind: Kind
    bow: bool = False  # SPLADE-Doc: bag-of-words queries
    idf: bool = False
    parts: tuple["System", ...] = ()  # the systems whose runs it combines
    fusion: str = DEFAULT
    exact: bool = False

    @property
    def searches_text(self) -> bool:
        """Whether it searches a BM25 index with text."""
        return self.kind in ("bm25", "doct5query")

    @property
    def index(self) -> str:
        """The name of its index."""
        return f"{self.kind}{'-idf' * self.idf}"

    def walk(self) -> Iterator["System"]:
        """Yield its parts, recursively, and then itself."""
        for part in self.parts:
            yield from part.walk()
        yield self


BM25 = System("bm25", "bm25")
SINGLE = {
    system.name: system
    for system in (
        BM25,
        System("doct5query", "doct5query"),
        System("cross-encoder", "cross-encoder", parts=(BM25,)),
        *(
            System(f"splade{'-doc' * bow}{'-idf' * idf}", "splade", bow=bow, idf=idf)
            for idf in (False, True)
            for bow in (False, True)
        ),
        *(System(f"dense{'-idf' * idf}", "dense", idf=idf) for idf in (False, True)),
    )
}
NAMES = (
    "bm25, doct5query, splade[-doc][-idf], dense[-idf], cross-encoder, "
    f"hybrid-<one or more of the others>[-{'|-'.join(name for name in FUSIONS if name != DEFAULT)}][-exact]"
)


def parse_system(name: str) -> System:
    """The system with a name such as hybrid-splade-doc-idf-minmax. Raises CaiError for an unknown name."""
    if name in SINGLE:
        return SINGLE[name]
    rest = name.removeprefix("hybrid-")
    exact = rest.endswith("-exact")
    rest = rest.removesuffix("-exact")
    suffix = next((f"-{f}" for f in FUSIONS if f != DEFAULT and rest.endswith(f"-{f}")), "")
    fusion = suffix[1:] or DEFAULT
    others = _split(rest.removesuffix(suffix))
    known = name.startswith("hybrid-") and others and BM25 not in others and len(set(others)) == len(others)
    if not known or (exact and not _can_be_exact(others, fusion)):
        raise CaiError(f"no system {name!r}; systems are {NAMES}")
    return System(name, "hybrid", parts=(BM25, *others), fusion=fusion, exact=exact)


def _split(names: str) -> tuple[System, ...]:
    """The single systems whose names, joined by dashes, are `names`; empty if there are none."""
    for name in sorted(SINGLE, key=len, reverse=True):
        if names == name:
            return (SINGLE[name],)
        if names.startswith(f"{name}-") and (rest := _split(names.removeprefix(f"{name}-"))):
            return (SINGLE[name], *rest)
    return ()


def _can_be_exact(parts: Iterable[System], fusion: str) -> bool:
    """Whether the parts of a hybrid can score any document, and its fusion uses scores."""
    return FUSIONS[fusion].uses_scores and not any(part.kind == "cross-encoder" for part in parts)


def with_parts(systems: Iterable[System]) -> list[System]:
    """The systems and all of their parts, each once; parts come first."""
    return list(dict.fromkeys(part for system in systems for part in system.walk()))


def sparse_systems(config: EncoderConfig) -> list[str]:
    """The SPLADE systems that suit an encoder."""
    sparse = ["splade-doc", "splade-doc-idf"]
    if config.query == "splade":
        sparse = ["splade", "splade-doc", "splade-idf", "splade-doc-idf"]
    return [name for name in sparse if not name.endswith("-idf")] if config.idf_power == 0 else sparse


def default_systems(config: EncoderConfig) -> list[str]:
    """bm25, the SPLADE systems, and sum and minmax hybrids of those with IDF."""
    sparse = sparse_systems(config)
    hybrids = [name for name in sparse if name.endswith("-idf")] or sparse
    return ["bm25", *sparse, *[f"hybrid-{name}{fusion}" for name in hybrids for fusion in ("", "-minmax")]]


def all_systems(config: EncoderConfig, kinds: Set[str]) -> list[str]:
    """All systems of these kinds, alone and in hybrids with bm25: sum, minmax, exact ones, and LaPraDoR."""
    sparse = sparse_systems(config)
    dense = ["dense", "dense-idf"] if "dense" in kinds else []
    others = [kind for kind in ("doct5query", "cross-encoder") if kind in kinds]
    fusions = ["", "-minmax", "-exact", "-minmax-exact"]
    hybrids = [f"hybrid-{name}{fusion}" for name in sparse + dense for fusion in fusions]
    return ["bm25", *others, *sparse, *dense, *hybrids, *[f"hybrid-{name}-product" for name in dense]]
