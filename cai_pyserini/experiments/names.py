"""Names of retrieval systems, the rows of every table.

bm25            BM25
splade-idf      the paper's SPLADE with CAI: documents are weighted with the collection's IDF
joint           SPLADE and BM25 in one index; one search returns the sum of scores
joint-near      joint, with what a dense encoder finds near: documents are mixed with their neighbours, and have
                associated words and neighbours' words
joint-doc, joint-doc-near    the same with bag-of-words queries, which need no model
trio            BM25 and SPLADE, both with neighbours, and a dense encoder, fused by z-scores with chosen weights
trio-doc        trio with bag-of-words queries

The names of ablations say what they consist of, see docs/reference/systems.md; those above are short for some of them,
see SHORT.
"""

from collections.abc import Iterable, Set

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.experiments.systems import ADAPTED, BM25, SHORT, SINGLE, WEIGHTINGS, FusedSystem, System
from cai_pyserini.runs.fusions import DEFAULT, FUSIONS

REQUIRED = {name: SINGLE[name].settings[0] for name in ("dense", "cross-encoder", "doct5query")}  # settings by name
BY_NAME = SINGLE | {system.name: system for system in SINGLE.values()}
THREE_WAY = ("hybrid-{}-{}-zscore", "fused-bm25-near-{}-near-{}-zscore")  # BM25 + SPLADE + dense
RECOMMENDED = ("bm25", "splade-idf", *SHORT.values())
NAMES = (
    f"{', '.join(RECOMMENDED)} (those with -near, and trio, need --dense); for ablations "
    "bm25-grams[-near-words], bm25-near[-words], doct5query, "
    f"[joint-]splade[-doc][-IDF][-near] (IDF: {', '.join(WEIGHTINGS)}), dense[-idf], cross-encoder, "
    f"hybrid-<one or more of the others>[-{'|-'.join(name for name in FUSIONS if name != DEFAULT)}], "
    "fused-<two or more>[…], which leaves bm25 out; with --adapt, adapted-<any of these with splade or dense>"
)
LONG = {short: long for long, short in SHORT.items()}


def parse_system(name: str) -> System:
    """Parse a name such as hybrid-splade-doc-idf-minmax. Raises CaiError for an unknown name."""
    if name.startswith(ADAPTED):
        return adapted(parse_system(name.removeprefix(ADAPTED)))
    if name in BY_NAME:
        return BY_NAME[name]
    prefix, _, rest = LONG.get(name, name).partition("-")
    suffix = next((f"-{f}" for f in FUSIONS if f != DEFAULT and rest.endswith(f"-{f}")), "")
    fusion = suffix[1:] or DEFAULT
    parts = _split(rest.removesuffix(suffix))
    if prefix == "hybrid" and any(part.joint for part in parts):
        raise CaiError(f"{name}: a joint system contains bm25 already; use it alone, or fused-<two or more>")
    long_name = "-".join([prefix, *(part.long_name for part in parts)]) + suffix
    if prefix == "hybrid" and parts:
        parts = (BM25, *parts)
    is_valid = prefix in ("hybrid", "fused") and len(parts) > 1 and len(set(parts)) == len(parts)
    if not is_valid:
        if "," in name:
            raise CaiError(f"no system {name!r}: put spaces between names, not commas")
        known = dict.fromkeys((*RECOMMENDED, *SINGLE, *(f"hybrid-{single}" for single in SINGLE)))
        raise CaiError(f"no system {name!r}{did_you_mean(name, known) or f'; systems are {NAMES}'}")
    return FusedSystem(long_name, parts, fusion)


def adapted(system: System) -> System:
    """The same system with adapted encoders. Raises CaiError if it has no encoder to adapt."""
    name = f"{ADAPTED}{system.long_name}"
    if system.adapted:
        raise CaiError(f"no system {name!r}: {system.name} is adapted already")
    if not system.adaptable:
        raise CaiError(f"no system {name!r}: {system.name} has no SPLADE or dense encoder to adapt")
    return system.adapt()


def _split(names: str) -> tuple[System, ...]:
    """Split dash-joined names of single systems; empty if that is impossible."""
    for name in sorted(BY_NAME, key=len, reverse=True):
        if names == name:
            return (BY_NAME[name],)
        if names.startswith(f"{name}-") and (rest := _split(names.removeprefix(f"{name}-"))):
            return (BY_NAME[name], *rest)
    return ()


def with_parts(systems: Iterable[System]) -> list[System]:
    """The systems and all their parts, each once, parts first."""
    return list(dict.fromkeys(part for system in systems for part in system.walk()))


def sparse_systems(config: EncoderConfig) -> list[str]:
    sparse = ["splade-doc", "splade-doc-idf"]
    if config.query == "splade":
        sparse = ["splade", "splade-doc", "splade-idf", "splade-doc-idf"]
    return [name for name in sparse if not name.endswith("-idf")] if config.idf_power == 0 else sparse


def default_systems(config: EncoderConfig, kinds: Set[str], adapt: bool = False) -> list[str]:
    """bm25, the SPLADE systems, and for those with IDF, the paper's hybrids and joint indexes. With a dense encoder,
    also joint indexes with what is near, dense, and BM25 + SPLADE + dense. With `adapt`, also adapted ones."""
    sparse = sparse_systems(config)
    best = [name for name in sparse if name.endswith("-idf")] or sparse
    systems = ["bm25", *sparse, *(f"hybrid-{name}{fusion}" for name in best for fusion in ("", "-minmax"))]
    systems += [f"joint-{name}" for name in best]
    if "dense" in kinds:
        systems += [f"joint-{name}-near" for name in best]
        systems += ["dense", "hybrid-dense-minmax", *(THREE_WAY[1].format(name, "dense") for name in best)]
    return _names(systems, adapt)


def all_systems(config: EncoderConfig, kinds: Set[str], adapt: bool = False) -> list[str]:
    """The usual systems of these kinds, alone and in hybrids with bm25 (sum, minmax, LaPraDoR); with `adapt`,
    also adapted ones. dense-idf counts as a kind, because not every dense encoder supports it.
    """
    sparse = sparse_systems(config)
    suffixes = ("", "-near") if "dense" in kinds else ("",)
    variants = [f"{joint}{name}{suffix}" for joint in ("", "joint-") for name in sparse for suffix in suffixes]
    dense = [name for name in ("dense", "dense-idf") if name in kinds]
    others = [kind for kind in ("doct5query", "cross-encoder") if kind in kinds]
    fusions = ["", "-minmax"]
    hybrids = [f"hybrid-{name}{fusion}" for name in sparse + dense for fusion in fusions]
    products = [f"hybrid-{name}-product" for name in dense]
    three_way = [pattern.format(name, other) for pattern in THREE_WAY for name in sparse for other in dense]
    bm25 = ["bm25", "bm25-near"] if "dense" in kinds else ["bm25"]
    systems = [*bm25, *others, *variants, *dense, *hybrids, *products, *three_way]
    return _names(systems, adapt)


def _names(names: Iterable[str], adapt: bool) -> list[str]:
    """The short names of systems; with `adapt` also of the adapted ones, except for sums of scores, to keep tables
    short."""
    systems = [parse_system(name) for name in names]
    kept = [system for system in systems if not system.is_sum]
    others = [adapted(system) for system in kept if system.adaptable] if adapt else []
    return [system.name for system in (*systems, *others)]
