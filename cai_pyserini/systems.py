"""What a system is called, and what its name says: the rows of every table.

bm25, doct5query                                   words; doct5query's documents have generated queries appended
splade, splade-doc, splade-idf, splade-doc-idf     SPLADE, with bag-of-words queries (-doc), with IDF
dense, dense-idf                                   mean pooling, weighted with IDF
cross-encoder                                      the first 100 documents of bm25, scored anew
hybrid-<one of the others>                         the sum with bm25
hybrid-<…>-minmax, -rrf, -product                  other fusions; hybrid-dense-product is LaPraDoR
hybrid-<…>[-minmax|-product]-exact                 no document of the fused lists lacks a score of either side
"""

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Literal

from cai_pyserini.cli import CaiError
from cai_pyserini.config import EncoderConfig

Kind = Literal["bm25", "doct5query", "splade", "dense", "cross-encoder"]
NAME = re.compile(
    r"(?P<hybrid>hybrid-)?(?P<kind>bm25|doct5query|splade|dense|cross-encoder)(?P<doc>(?<=splade)-doc)?(?P<idf>-idf)?"
    r"(?P<fusion>-minmax|-rrf|-product)?(?P<exact>-exact)?"
)


@dataclass(frozen=True)
class System:
    """What a name says."""

    name: str
    kind: Kind
    bow: bool = False  # SPLADE-Doc: bag-of-words queries
    idf: bool = False
    fusion: str | None = None  # with bm25
    exact: bool = False

    @classmethod
    def parse(cls, name: str) -> "System":
        """The system of a name such as hybrid-splade-doc-idf-minmax. Raises CaiError for any other name."""
        match = NAME.fullmatch(name)
        if not match or not _means_something(match):
            raise CaiError(
                f"no system {name!r}: systems are bm25, doct5query, splade[-doc][-idf], dense[-idf], cross-encoder, "
                "and hybrid-<one of the others> (the sum with bm25), to which -minmax, -rrf or -product can be "
                "appended, and -exact"
            )
        fusion = (match["fusion"] or "-sum")[1:] if match["hybrid"] else None
        return cls(name, match["kind"], bool(match["doc"]), bool(match["idf"]), fusion, bool(match["exact"]))  # type: ignore[arg-type]

    @property
    def parts(self) -> tuple[str, ...]:
        """The systems whose runs it is made of."""
        if self.fusion:
            return ("bm25", f"{self.kind}{'-doc' * self.bow}{'-idf' * self.idf}")
        return ("bm25",) if self.kind == "cross-encoder" else ()

    @property
    def index(self) -> str:
        """The index that it searches."""
        return f"{self.kind}{'-idf' * self.idf}"


def with_parts(systems: Iterable[System]) -> dict[str, System]:
    """Systems by name, and before each the systems whose runs it is made of."""
    needed: dict[str, System] = {}
    for system in systems:
        needed |= with_parts(map(System.parse, system.parts))
        needed[system.name] = system
    return needed


def _means_something(match: re.Match[str]) -> bool:
    if match["hybrid"]:
        no_scores = match["fusion"] == "-rrf" or match["kind"] == "cross-encoder"  # to complete
        return match["kind"] != "bm25" and not (match["exact"] and no_scores)
    return not match["fusion"] and not match["exact"] and (not match["idf"] or match["kind"] in ("splade", "dense"))


def sparse_systems(config: EncoderConfig) -> list[str]:
    """The systems that a SPLADE encoder is made for."""
    sparse = ["splade-doc", "splade-doc-idf"]
    if config.query == "splade":
        sparse = ["splade", "splade-doc", "splade-idf", "splade-doc-idf"]
    return [name for name in sparse if not name.endswith("-idf")] if config.idf_power == 0 else sparse


def default_systems(config: EncoderConfig) -> list[str]:
    """bm25, what the encoder is made for, and hybrids of those with IDF, as sum and minmax."""
    sparse = sparse_systems(config)
    hybrids = [name for name in sparse if name.endswith("-idf")] or sparse
    return ["bm25", *sparse, *[f"hybrid-{name}{fusion}" for name in hybrids for fusion in ("", "-minmax")]]


def all_systems(config: EncoderConfig, kinds: Set[str]) -> list[str]:
    """Every system of these kinds: alone, and its sum and minmax with bm25, zero-filled and exact; and LaPraDoR."""
    sparse = sparse_systems(config)
    dense = ["dense", "dense-idf"] if "dense" in kinds else []
    others = [kind for kind in ("doct5query", "cross-encoder") if kind in kinds]
    fusions = ["", "-minmax", "-exact", "-minmax-exact"]
    hybrids = [f"hybrid-{name}{fusion}" for name in sparse + dense for fusion in fusions]
    return ["bm25", *others, *sparse, *dense, *hybrids, *[f"hybrid-{name}-product" for name in dense]]
