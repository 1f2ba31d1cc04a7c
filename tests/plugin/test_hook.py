"""Pyserini's unmodified modules with our encoders."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as beir
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.systems import WEIGHTINGS
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.splade import Splade
from cai_pyserini.runs.trec import read_run, scores_by_query
from cai_pyserini.vectors.quantization import weighted
from cai_pyserini.vectors.queries import Representation
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import json_lines
from tests.indexes.stock import run_module
from tests.plugin.conftest import ranking, scores, search_arguments, search_topics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.mark.parametrize("name", ["splade", "joint-splade-idf"])
def test_pyserinis_run_equals_ours(name: str, run_folder: Path, topics: Path, tmp_path: Path) -> None:
    """With the encoder named, or, for a joint index, the index as the encoder."""
    index = run_folder / "indexes" / name
    encoder = index if name == "joint-splade-idf" else "splade-tiny"
    run_module("pyserini.search.lucene", *search_arguments(index, topics, encoder, tmp_path / "run.trec"))
    assert ranking(tmp_path / "run.trec") == ranking(run_folder / "runs" / f"{name}.trec")


def test_every_weighting_is_that_of_its_name(
    run_folder: Path, tiny: Path, checkpoint: Path, topics: Path, tmp_path: Path
) -> None:
    """In one run, from one encoding. The faults: names that weight alike; an encoder.yaml by which Pyserini, or the
    recipient of an index, weights otherwise; a choice that is printed and not made."""
    run, trec = Path(shutil.copytree(run_folder, tmp_path / "run")), tmp_path / "run.trec"
    encoded = (run / "vectors" / "documents" / "manifest.json").stat().st_ino
    names = [f"splade-{name}" for name in WEIGHTINGS]
    others = ["joint-splade-doc-auto", "hybrid-splade-bm25idf-minmax", "fused-splade-sqrt-splade-auto"]
    beir([f"{tiny}.yaml", "--output", str(run), "--systems", *names, *others])
    assert (run / "vectors" / "documents" / "manifest.json").stat().st_ino == encoded
    results = json.loads((run / "results.json").read_text())
    assert {*names, *others} == results["systems"].keys()
    chosen = artifact.require(run / "idf-power.json", "idf power").stats
    assert results["decision"] == [decision := f"splade-auto: {chosen['decision']}"]
    assert decision in (run / "report.md").read_text()
    idf, bm25idf = Idf.load(run / "idf"), Idf.load(run / "bm25idf")
    weights = (idf.weights(), idf.weights(0.5), bm25idf.weights(), idf.weights(chosen["idf_power"]))
    splade, (documents, *_) = Splade(checkpoint, "cpu", "float32"), Vectors(run / "vectors" / "documents")
    query = splade.encode(["bladder infection"], 256)
    for name, expected in zip(names, weights, strict=True):
        index, products = run / "indexes" / name, (weighted(documents.vectors, expected) @ query.T).toarray()[:, 0]
        run_module("pyserini.search.lucene", *search_arguments(index, topics, index, trec))
        assert ranking(trec) == ranking(run / "runs" / f"{name}.trec")
        hits = scores_by_query(read_run(run / "runs" / f"{name}.trec"))["q2"]
        exact = dict(zip(documents.ids, products.tolist(), strict=True))
        assert len(hits) > 2 and hits == pytest.approx({id: exact[id] for id in hits}, rel=0.02, abs=0.05)


@pytest.mark.parametrize("query, name", [("splade", "joint-splade-idf"), ("bow", "joint-splade-doc-idf")])
def test_a_joint_index_with_a_searcher_of_pyserinis(
    query: Representation, name: str, joint: Path, run_folder: Path, tiny: Path
) -> None:
    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    found = search_topics(joint, CaiQueryEncoder(str(joint), query=query), tiny)
    assert found == pytest.approx(scores(run_folder / "runs" / f"{name}.trec"), abs=2e-6)


@pytest.mark.parametrize("named", ["splade", "tiny"])
def test_a_bare_checkpoint_folder_is_an_encoder(
    named: str, run_folder: Path, topics: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """As are a name, an index and an object. Pyserini's own SPLADE encoder would refuse safetensors."""
    from pyserini.search.lucene import LuceneImpactSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    folder = Path(shutil.copytree(checkpoint, tmp_path / named))
    index = run_folder / "indexes" / "splade-idf"

    encoders = ("splade-tiny", str(folder), str(index), CaiQueryEncoder("splade-tiny"))
    expected, *others = (
        [(hit.docid, hit.score) for hit in LuceneImpactSearcher(str(index), encoder).search("bladder infection", 5)]
        for encoder in encoders
    )
    assert expected[0][0] == "d4" and others == [expected] * 3
    run_module("pyserini.search.lucene", *search_arguments(index, topics, folder, tmp_path / "run.trec"))
    assert ranking(tmp_path / "run.trec") == ranking(run_folder / "runs" / "splade-idf.trec")


def test_an_index_of_another_encoder_is_refused(run_folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    (tmp_path / "other.yaml").write_text("checkpoint: other\n")
    for encoder in (CaiQueryEncoder(str(tmp_path / "other.yaml")), str(other)):
        with pytest.raises(CaiError, match=r"was not encoded as other encodes documents \(the checkpoint changed"):
            LuceneImpactSearcher(str(run_folder / "indexes" / "splade"), encoder)
    with pytest.raises(CaiError, match="was not built with a cai_pyserini encoder"):
        LuceneImpactSearcher(str(run_folder / "indexes" / "bm25"), CaiQueryEncoder("splade-tiny", query="bow"))
    plain, joint = (str(run_folder / "indexes" / name) for name in ("splade-idf", "joint-splade-idf"))
    with pytest.raises(CaiError, match=f"{joint} is a joint index, but .* does not add the words of BM25"):
        LuceneImpactSearcher(joint, "splade-tiny")
    with pytest.raises(CaiError, match=f"{plain} is no joint index, but .*: search it with the encoder {plain}"):
        LuceneImpactSearcher(plain, joint)
    config = load_encoder(joint)
    assert config.joint and config.range
    differs = f"{joint} and the encoder {config.name} weight the words of BM25 differently"
    for change in ({"range": 2 * config.range}, {"joint": config.joint.replace(range=2 * config.joint.range)}):
        with pytest.raises(CaiError, match=differs):
            LuceneImpactSearcher(joint, CaiQueryEncoder(config.replace(**change), query="bow"))


def test_a_dense_index_of_another_encoder_is_refused(metadata_run: Path) -> None:
    from pyserini.search.faiss import FaissSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index, config = str(metadata_run / "indexes" / "dense"), load_encoder("minilm")
    hits = FaissSearcher(index, CaiQueryEncoder(config, device="cpu")).search("cancer", 3)
    assert len(hits) == 3
    with pytest.raises(CaiError, match=r"was not encoded as minilm encodes documents \(pooling cls, was .*\)"):
        FaissSearcher(index, CaiQueryEncoder(config.replace(pooling="cls"), device="cpu"))


def test_pyserini_encodes_and_indexes_with_our_encoder(
    run_folder: Path, tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    impacts = run_folder / "impacts" / "splade-idf"
    encode = ["input", "--corpus", tiny / "corpus.jsonl", "--fields", "title", "text"]
    encode += ["output", "--embeddings", tmp_path / "vectors"]
    encode += ["encoder", "--encoder", impacts / "encoder.yaml", "--fields", "title", "text", "--device", "cpu"]
    run_module("pyserini.encode", *encode)
    ours = {r["id"]: r["vector"] for r in json_lines(impacts / "00000.jsonl")}
    theirs = {r["id"]: r["vector"] for r in json_lines(tmp_path / "vectors" / "embeddings.jsonl")}
    assert theirs == ours
    index = ["--collection", "JsonVectorCollection", "--input", tmp_path / "vectors", "--index", tmp_path / "index"]
    index += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", 1, "--impact", "--pretokenized"]
    run_module("pyserini.index.lucene", *index)
    assert "Total 12 documents indexed" in capfd.readouterr().out
    run_module("pyserini.fusion", "--runs", *(run_folder / "runs").glob("splade*.trec"), "--output", tmp_path / "rrf")
    assert (tmp_path / "rrf").stat().st_size


def test_pyserinis_own_encoders_do_not_change(tmp_path: Path) -> None:
    from pyserini.encode import CachedDataQueryEncoder, TokFreqQueryEncoder

    assert TokFreqQueryEncoder().encode("a b a") == {"a": 2, "b": 1}
    (tmp_path / "queries.jsonl").write_text('{"id": "1", "contents": "q", "vector": {"a": 1}}\n')
    assert CachedDataQueryEncoder(str(tmp_path / "queries.jsonl")).encode("q") == {"a": 1}
