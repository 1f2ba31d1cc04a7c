"""Encoders that treat queries otherwise than documents, by weights of tokens or by a second checkpoint, in all that
searches: the same scores everywhere."""

import re
import shutil
from pathlib import Path

import pytest

from cai_pyserini.analysis.explain import explain_query
from cai_pyserini.cli.plugin import main as plugin
from cai_pyserini.cli.run import main as beir
from cai_pyserini.core.config import WORD
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.runs.trec import read_run
from tests.conftest import damaged
from tests.plugin.conftest import scores, search_topics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]

SYSTEMS = ["bm25", "splade-doc", "splade-doc-auto", "joint-splade-doc", "hybrid-splade-doc"]
JOINT, INDEX = "joint-splade-doc", "joint-splade"


@pytest.fixture(scope="module")
def model(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers with splade-tiny for documents, and weights from 0 to 10 for queries."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling, Transformer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    weights = torch.rand(len(tokenizer), generator=torch.Generator().manual_seed(0)) * 10
    documents = [Transformer(str(checkpoint), transformer_task="fill-mask"), SpladePooling("max")]
    router = Router.for_query_document([SparseStaticEmbedding(tokenizer, weights, frozen=True)], documents)
    folder = tmp_path_factory.mktemp("models") / "inference-free"
    SparseEncoder(modules=[router]).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def run(java: None, model: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    beir([str(tiny), "--encoder", str(model), "--output", str(folder), "--systems", *SYSTEMS, "--device", "cpu"])
    return folder


def test_only_systems_without_a_model_are_among_the_usual_ones(
    model: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tiny), "--encoder", str(model), "--output", str(tmp_path / "run"), "--dry-run", "--systems"]
    beir([*arguments, "all"])
    searched = [line for line in capsys.readouterr().out.splitlines() if "search " in line]
    names = {line.split()[1] for line in searched}
    assert {"splade-doc", "joint-splade-doc"} < names
    assert all(name == "bm25" or ("splade-doc" in name and "-idf" not in name) for name in names)
    with pytest.raises(CaiError, match=r"no model for queries, only token weights: use bags of words, as in"):
        beir([*arguments, "splade"])
    with pytest.raises(CaiError, match="idf_power 0: splade-doc-idf would be unweighted; set `idf_power: 1` in a YAML"):
        beir([*arguments, "splade-doc-idf"])
    arguments[2] = str(tmp_path / "weighted.yaml")
    Path(arguments[2]).write_text(f"checkpoint: {model}\nidf_power: 1.0\n")
    beir([*arguments, "splade-doc-idf"])


def test_stock_pyserini_finds_what_we_find_in_a_joint_index(run: Path, tiny: Path, tmp_path: Path) -> None:
    from pyserini.encode import CachedDataQueryEncoder

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index = run / "indexes" / INDEX
    expected = scores(run / "runs" / f"{JOINT}.trec")
    assert search_topics(index, CaiQueryEncoder(str(index)), tiny, min_idf=-1) == pytest.approx(expected, abs=2e-6)
    plugin(["export-topics", "--encoder", str(index), "--collection", str(tiny), "--output", str(tmp_path / "topics")])
    assert not (tmp_path / "topics" / "splade.jsonl").exists()
    cached = CachedDataQueryEncoder(str(tmp_path / "topics" / "splade-doc.jsonl"))
    assert search_topics(index, cached, tiny, min_idf=-1) == pytest.approx(expected, abs=2e-6)


def test_weights_of_queries_are_not_multiplied_with_idf_by_choice(run: Path) -> None:
    auto, plain = (scores(run / "runs" / f"{name}.trec") for name in ("splade-doc-auto", "splade-doc"))
    assert auto == plain
    (decision,) = RunFolder(run).results.decision
    assert decision == "splade-auto: no IDF, because word pieces of queries have weights of their own"


def test_engines_explanations_and_hybrids_have_the_scores_of_runs(run: Path) -> None:
    opened, folder = Run(run, "cpu"), RunFolder(run)
    for name in (JOINT, "splade-doc"):
        case = explain_query(folder, opened, "q2", [name], depth=3)
        found = scores(run / "runs" / f"{name}.trec")
        for explanation in case.systems[name][:3]:
            assert explanation.score == pytest.approx(found["q2", explanation.document], abs=2e-6)
            of_tokens = [term.query for term in explanation.terms if not term.term.startswith(WORD)]
            assert of_tokens and all(weight % 1 for weight in of_tokens)  # weights, not counts
    hybrid = read_run(run / "runs" / "hybrid-splade-doc.trec")
    parts = scores(run / "runs" / "bm25.trec"), scores(run / "runs" / "splade-doc.trec")
    both = {pair: parts[0][pair] + parts[1][pair] for pair in parts[0].keys() & parts[1].keys()}
    assert both
    found = {(query, document): score for query, document, score in hybrid}
    assert {pair: found[pair] for pair in both} == pytest.approx(both, abs=1e-3)


def test_a_second_checkpoint_encodes_queries(
    checkpoint: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When it changes, documents and their index stay; its queries estimate alpha, which makes joint impacts again."""
    second = damaged(checkpoint, tmp_path / "second", "position_embeddings.weight", 1, 0.5)
    config = tmp_path / "two.yaml"
    config.write_text(f"checkpoint: {checkpoint}\nquery_checkpoint: second\n")
    names = ["splade", "joint-splade"]
    arguments = [str(tiny), "--encoder", str(config), "--output", str(tmp_path / "run"), "--device", "cpu"]
    beir([*arguments, "--systems", *names])

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index = str(tmp_path / "run" / "indexes" / "joint-splade")
    assert search_topics(Path(index), CaiQueryEncoder(index), tiny, min_idf=-1) == pytest.approx(
        scores(tmp_path / "run" / "runs" / "joint-splade.trec"), abs=2e-6
    )
    shutil.rmtree(second)
    damaged(checkpoint, second, "position_embeddings.weight", 1, 0.25)
    capsys.readouterr()
    beir([*arguments, "--systems", *names, "--dry-run"])
    steps = dict(re.split("  +", line) for line in capsys.readouterr().out.splitlines() if line)
    made = {name for name, state in steps.items() if state == "up to date"}
    assert {"encode documents", "impacts splade", "index splade", "words"} <= made
    assert steps["encode queries-test"] == "must run: the checkpoint changed"
    assert steps["impacts joint-splade"] == "must run: the checkpoint changed"
