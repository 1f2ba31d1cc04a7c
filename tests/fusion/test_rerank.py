"""Cross-encoders: scores of pairs in batches are those of transformers one by one."""

from pathlib import Path

import pytest
import torch

from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from cai_pyserini.rerank import CrossEncoder, rerank
from cai_pyserini.trec import read_run
from tests.conftest import Command


def test_rerank_orders_the_first_documents(tiny: Path, line: Path, cross_encoder: Path) -> None:
    collection = BeirFolder(tiny, "tiny")
    topics = collection.topics("test")
    first = read_run(line / "runs" / "splade.trec")
    model = CrossEncoder(cross_encoder, "cpu", "float32")
    run, _ = rerank(first, topics, collection, model, 3)
    for query, hits in run.items():
        assert {id for id, _ in hits} == set(first[first.query_id == query].doc_id[:3])
        texts = collection.contents({id for id, _ in hits}, "the test")
        scores = model.score([topics[query]] * 3, [texts[id] for id, _ in hits])
        assert [score for _, score in hits] == pytest.approx(scores.tolist(), abs=1e-6)
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)


def test_a_run_of_other_queries_is_refused(tiny: Path, line: Path, cross_encoder: Path) -> None:
    with pytest.raises(CaiError, match="query 'd8', which is not among the topics"):
        rerank(read_run(line / "runs" / "splade.trec"), {}, BeirFolder(tiny, "tiny"), CrossEncoder(cross_encoder), 3)


def test_command(tiny: Path, line: Path, cross_encoder: Path, command: Command, tmp_path: Path) -> None:
    run = tmp_path / "reranked.trec"
    common = ("--collection", tiny, "--run", line / "runs" / "bm25.trec", "--output", run, "--depth", 2)
    done = command("cai_pyserini.rerank", *common, "--cross-encoder", cross_encoder)
    assert done.returncode == 0, done.stderr
    assert (
        len(run.read_text().splitlines()) == read_run(line / "runs" / "bm25.trec").groupby("query_id").head(2).shape[0]
    )
    done = command("cai_pyserini.rerank", *common, "--cross-encoder", tmp_path)
    assert done.returncode == 1 and "no tokenizer" in done.stderr
