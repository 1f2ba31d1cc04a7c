"""What the names of systems say, and which names say nothing."""

import itertools

import numpy as np
import pytest

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.names import (
    NAMES,
    adapted,
    all_systems,
    default_systems,
    parse_system,
    sparse_systems,
    with_parts,
)
from cai_pyserini.experiments.systems import (
    BM25,
    SINGLE,
    CrossEncoderSystem,
    DenseSystem,
    FusedSystem,
    SpladeSystem,
    System,
    TextSystem,
    WordSystem,
)
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.fusions import DEFAULT, FUSIONS, Fusion
from cai_pyserini.runs.trec import run_of, scores_by_query

CONFIG = EncoderConfig(name="test", checkpoint="nowhere")
SPLADE = SpladeSystem(doc=False, weighting=None, joint=False, near=False)
SPLADE_IDF = SpladeSystem(doc=False, weighting="idf", joint=False, near=False)
SPLADE_DOC = SpladeSystem(doc=True, weighting=None, joint=False, near=False)
SPLADE_DOC_IDF = SpladeSystem(doc=True, weighting="idf", joint=False, near=False)
DENSE, DENSE_IDF = DenseSystem(None), DenseSystem("idf")
DOCT5QUERY = TextSystem("doct5query", generated=True)
BM25_NEAR = WordSystem(grams=False, near=True)
CROSS_ENCODER = CrossEncoderSystem("cross-encoder", BM25)
JOINT = SpladeSystem(doc=False, weighting="idf", joint=True, near=False)
NEAR = SpladeSystem(doc=False, weighting="idf", joint=False, near=True)
JOINT_ALL = SpladeSystem(doc=True, weighting="idf", joint=True, near=True)


def hybrid(name: str, *parts: System, fusion: str = DEFAULT) -> System:
    return fused(name, BM25, *parts, fusion=fusion)


def fused(name: str, *parts: System, fusion: str = DEFAULT) -> System:
    return FusedSystem(name, parts, fusion)


@pytest.mark.parametrize(
    "expected",
    [
        BM25,
        BM25_NEAR,
        DOCT5QUERY,
        CROSS_ENCODER,
        SPLADE,
        SPLADE_DOC_IDF,
        DENSE,
        DENSE_IDF,
        hybrid("hybrid-splade-doc-rrf", SPLADE_DOC, fusion="rrf"),
        hybrid("hybrid-dense-product", DENSE, fusion="product"),
        hybrid("hybrid-cross-encoder-minmax", CROSS_ENCODER, fusion="minmax"),
        hybrid("hybrid-doct5query", DOCT5QUERY),
        hybrid("hybrid-dense-splade-doc-idf", DENSE, SPLADE_DOC_IDF),
        hybrid("hybrid-splade-doc-idf-dense-idf-cross-encoder", SPLADE_DOC_IDF, DENSE_IDF, CROSS_ENCODER),
        JOINT,
        NEAR,
        JOINT_ALL,
        SpladeSystem(doc=True, weighting="bm25idf", joint=True, near=True),
        hybrid("hybrid-splade-auto-minmax", SpladeSystem(False, "auto", joint=False, near=False), fusion="minmax"),
        hybrid("hybrid-splade-idf-dense-zscore", SPLADE_IDF, DENSE, fusion="zscore"),
        fused("fused-joint-splade-idf-dense-zscore", JOINT, DENSE, fusion="zscore"),
        fused("fused-bm25-near-splade-idf-dense-zscore", BM25_NEAR, SPLADE_IDF, DENSE, fusion="zscore"),
        WordSystem(grams=False, near=True, adapted=True),
        WordSystem(grams=False, near=True, associated=True, adapted=True),
        fused("fused-bm25-joint-splade-doc-idf-near", BM25, JOINT_ALL),
        SPLADE_IDF.adapt(),
        DENSE.adapt(),
        SpladeSystem(doc=True, weighting="idf", joint=True, near=True, adapted=True),
        hybrid("adapted-hybrid-splade-idf-dense-zscore", SPLADE_IDF.adapt(), DENSE.adapt(), fusion="zscore"),
        fused("adapted-fused-cross-encoder-dense", CROSS_ENCODER, DENSE.adapt()),
    ],
    ids=lambda system: system.long_name,
)
def test_names(expected: System) -> None:
    assert vars(parse_system(expected.long_name)) == vars(parse_system(expected.name)) == vars(expected)


def test_no_name_can_be_read_in_two_ways() -> None:
    """The fault: bm25idf is read as the IDF of BM25 in one name, and as a part in another."""
    for first, second in itertools.permutations(SINGLE, 2):
        assert [part.long_name for part in parse_system(f"fused-{first}-{second}-minmax").parts] == [first, second]


# hybrid-splade-sum is hybrid-splade
REFUSED = """
hybrid hybrid- hybrid-bm25 hybrid-bm25-splade hybrid-minmax hybrid-splade-sum hybrid-splade-splade
hybrid-splade-dense-splade hybrid-hybrid-splade hybrid-splade-minmax-rrf hybrid-splade-exact hybrid-splade-
hybrid-splade-average hybrid-splade--dense hybrid-dense-doc bm25-idf splade-rrf splade-idf-doc splade-exact
splade-minmax splade-dense dense-doc
cross-encoder-idf fused-splade-idf fused-splade-idf-minmax fused-splade-splade fused- joint-bm25 joint-dense
splade-bm25 splade-auto-doc splade-idf-sqrt dense-auto joint-splade-near-idf
splade-joint dense-near SPLADE all adapted hybrid-adapted-splade
"""


@pytest.mark.parametrize("name", ["", " splade", *REFUSED.split()])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(CaiError) as error:
        parse_system(name)
    assert str(error.value).startswith(f"no system {name!r}; ")
    assert str(error.value).endswith((f"; systems are {NAMES}", "?"))


@pytest.mark.parametrize(
    "name, message",
    [
        *(
            (f"adapted-{name}", f": {name} has no SPLADE or dense encoder to adapt")
            for name in ("bm25", "doct5query", "cross-encoder", "hybrid-cross-encoder")
        ),
        ("adapted-adapted-splade", ": adapted-splade is adapted already"),
        ("hybrid-joint-splade-idf", ": a joint system contains bm25 already"),
        ("hybrid-dense-joint-splade-doc-minmax", ": a joint system contains bm25 already"),
        ("jiont", r"; did you mean .*\bjoint\b.*\?$"),
        ("trios", r"; did you mean .*\btrio\b.*\?$"),
        ("hybrid-spalde-idf", r"; did you mean .*\bhybrid-splade-idf\b.*\?$"),
    ],
)
def test_the_error_for_a_name_says_what_is_wrong_or_which_are_near(name: str, message: str) -> None:
    with pytest.raises(CaiError, match=f"^(no system '{name}'|{name}){message}"):
        parse_system(name)


def test_a_new_fusion_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an entry in FUSIONS, its hybrids have names and runs."""

    def best(scores: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
        """1 for the best document of a query, 0 for the others."""
        return np.isin(np.arange(len(scores)), starts).astype(float)

    with pytest.raises(CaiError):
        parse_system("hybrid-splade-borda")
    monkeypatch.setitem(FUSIONS, "borda", Fusion("votes for the best document", best))
    voted = hybrid("hybrid-splade-dense-borda", SPLADE, DENSE, fusion="borda")
    assert vars(parse_system(voted.name)) == vars(voted)
    runs = [run_of({"q": [("a", 9.0), ("b", 1.0)]}), run_of({"q": [("b", 3.0), ("a", 2.0)]})]
    runs.append(run_of({"q": [("b", 5.0)]}))
    assert scores_by_query(fuse_runs(runs, voted.fusion)) == {"q": {"b": 2.0, "a": 1.0}}


@pytest.mark.parametrize("name", SINGLE)
def test_the_index_of_a_system(name: str) -> None:
    assert SINGLE[name].long_name == name
    assert parse_system(SINGLE[name].name) == parse_system(name) == SINGLE[name]
    # The index depends on the documents alone.
    expected = name.replace("splade-doc", "splade")
    if name != "cross-encoder":
        assert SINGLE[name].index_name == expected
    if SINGLE[name].adaptable:
        assert adapted(SINGLE[name]).index_name == f"adapted-{expected}"


@pytest.mark.parametrize(
    "short, long",
    [
        ("joint", "joint-splade-idf"),
        ("joint-doc", "joint-splade-doc-idf"),
        ("joint-near", "joint-splade-idf-near"),
        ("joint-doc-near", "joint-splade-doc-idf-near"),
        ("trio", "fused-bm25-near-splade-idf-near-dense-zscore"),
        ("trio-doc", "fused-bm25-near-splade-doc-idf-near-dense-zscore"),
        ("fused-joint-dense-zscore", "fused-joint-splade-idf-dense-zscore"),
        ("adapted-trio", "adapted-fused-bm25-near-splade-idf-near-dense-zscore"),
        ("adapted-fused-joint-near-dense", "adapted-fused-joint-splade-idf-near-dense"),
    ],
)
def test_a_system_has_one_name_however_it_is_spelled(short: str, long: str) -> None:
    system = parse_system(long)
    assert (system.name, system.long_name) == (short, long) and parse_system(short) == system


def test_parts_come_first_and_once() -> None:
    names = ["hybrid-splade-idf-minmax", "splade-idf", "hybrid-cross-encoder-splade-idf", "bm25"]
    assert [system.name for system in with_parts(map(parse_system, names))] == [
        "bm25",
        "splade-idf",
        "hybrid-splade-idf-minmax",
        "cross-encoder",
        "hybrid-cross-encoder-splade-idf",
    ]
    assert list(CROSS_ENCODER.walk()) == [BM25, CROSS_ENCODER]


@pytest.mark.parametrize(
    "name, models, balanced",
    [
        ("bm25", set(), False),
        ("joint-doc-near", set(), False),
        ("hybrid-splade-idf-zscore", {"splade"}, False),
        ("hybrid-splade-doc-dense-zscore", {"dense"}, True),
        ("hybrid-splade-doc-near-dense-idf-zscore", {"dense"}, True),
        ("adapted-hybrid-splade-idf-dense-zscore", {"splade", "dense"}, True),
        ("fused-bm25-near-splade-doc-idf-dense-zscore", {"dense"}, True),
        ("hybrid-splade-idf-dense-minmax", {"splade", "dense"}, False),
        ("fused-joint-splade-idf-dense-zscore", {"splade", "dense"}, False),
        ("fused-splade-dense-cross-encoder", {"splade", "dense", "cross-encoder"}, False),
    ],
)
def test_models_at_query_time_and_balanced_weights(name: str, models: set[str], balanced: bool) -> None:
    system = parse_system(name)
    assert (system.models, system.balanced) == (models, balanced)


DEFAULTS = ["bm25", "splade", "splade-doc", "splade-idf", "splade-doc-idf"] + [
    f"hybrid-splade{doc}-idf{fusion}" for doc in ("", "-doc") for fusion in ("", "-minmax")
]
DEFAULTS += ["joint", "joint-doc"]


def test_default_systems_are_those_the_encoder_is_made_for() -> None:
    assert default_systems(CONFIG, set()) == DEFAULTS
    assert default_systems(CONFIG.replace(query="bow"), {"cross-encoder"}) == [
        "bm25",
        *("splade-doc", "splade-doc-idf", "hybrid-splade-doc-idf", "hybrid-splade-doc-idf-minmax"),
        "joint-doc",
    ]
    without_idf = CONFIG.replace(idf_power=0.0)
    assert default_systems(without_idf, set()) == [
        "bm25",
        *("splade", "splade-doc"),
        *(f"hybrid-{name}{fusion}" for name in ("splade", "splade-doc") for fusion in ("", "-minmax")),
        *("joint-splade", "joint-splade-doc"),
    ]
    assert default_systems(CONFIG, {"dense"}) == [
        *DEFAULTS,
        *("joint-near", "joint-doc-near", "dense", "hybrid-dense-minmax"),
        *("trio", "trio-doc"),
    ]
    assert sparse_systems(without_idf.replace(query="bow")) == ["splade-doc"]


def test_with_adaptation_the_systems_before_and_after() -> None:
    assert default_systems(CONFIG, set(), adapt=True) == [
        *DEFAULTS,
        *(f"adapted-{name}" for name in ("splade", "splade-doc", "splade-idf", "splade-doc-idf")),
        *("adapted-hybrid-splade-idf-minmax", "adapted-hybrid-splade-doc-idf-minmax"),
        *("adapted-joint", "adapted-joint-doc"),
    ]
    assert {
        *("adapted-dense", "adapted-hybrid-dense-minmax", "adapted-joint-doc-near"),
        "adapted-trio",
    } < set(default_systems(CONFIG, {"dense"}, adapt=True))


@pytest.mark.parametrize("adapt", [False, True])
@pytest.mark.parametrize("kinds", [set(), {"dense"}, {"dense", "cross-encoder", "doct5query"}])
@pytest.mark.parametrize("settings", [{}, {"query": "bow"}, {"idf_power": 0.0}])
def test_all_systems_are_systems(kinds: set[str], settings: dict, adapt: bool) -> None:
    weighted = {"dense-idf"} if "dense" in kinds else set()
    names = all_systems(CONFIG.replace(**settings), kinds | weighted, adapt)
    assert len(set(names)) == len(names) and names[0] == "bm25"
    assert {part.role for part in with_parts(map(parse_system, names))} == {"bm25", "splade", ""} | kinds
    assert set(default_systems(CONFIG.replace(**settings), kinds, adapt)) <= set(names)
