"""The encode stage: shards, several processes, interruptions, caches and earlier vectors."""

import json
import math
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact, identity
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from cai_pyserini.models import device
from cai_pyserini.models.device import Precision
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.splade import Splade
from cai_pyserini.models.transformer import Transformer
from cai_pyserini.vectors import encode as stage
from cai_pyserini.vectors.cache import VARIABLE, VectorCache
from cai_pyserini.vectors.encode import encode, encode_texts, project_vectors
from cai_pyserini.vectors.queries import Queries
from cai_pyserini.vectors.shards import Vectors, text_keys
from tests.conftest import damaged, stage_command
from tests.vectors.support import interrupted_after

main = stage_command("encode")

KINDS = pytest.mark.parametrize("kind", ["splade", "dense"])


@pytest.fixture
def collection(tiny: Path) -> BeirFolder:
    return BeirFolder(tiny, "tiny")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SHARD", 5)  # of 12 documents


@cache  # models are loaded once
def encoder(kind: str = "splade", precision: Precision = "float32", **settings: object) -> EncoderModel:
    """splade-tiny, whose transformer also serves as a dense encoder."""
    return EncoderModel(load_encoder("splade-tiny").replace(kind=kind, **settings), "cpu", precision)


def assert_same(one: Path, other: Path) -> None:
    """Assert that two folders hold bitwise equal vectors."""
    for a, b in zip(Vectors(one), Vectors(other), strict=True):
        assert a.ids == b.ids
        for name in ("data", "indices", "indptr") if hasattr(a.vectors, "indptr") else ("T",):
            np.testing.assert_array_equal(getattr(a.vectors, name), getattr(b.vectors, name))


def ids_of(folder: Path) -> list[str]:
    return [id for shard in Vectors(folder) for id in shard.ids]


def shorten(collection: Path) -> None:
    """Keep only the first four documents of a collection."""
    lines = (collection / "corpus.jsonl").read_text().splitlines(keepends=True)
    (collection / "corpus.jsonl").write_text("".join(lines[:4]))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch sizes that the model reads, except for the check of stored vectors."""
    sizes: list[int] = []
    pad = Transformer.pad

    def counting(self: Transformer, tokens):
        sizes.append(len(tokens))
        return pad(self, tokens)

    monkeypatch.setattr(Transformer, "pad", counting)
    monkeypatch.setattr(stage._TextVectors, "_require_unchanged", lambda *arguments: None)
    return sizes


def test_documents_are_in_order_and_their_vectors_those_of_the_model(
    collection: BeirFolder, checkpoint: Path, tmp_path: Path, small_shards: None
) -> None:
    vectors = Vectors(encode(collection, encoder(), tmp_path / "vectors"))
    assert (len(vectors), vectors.shards) == (12, 3)
    assert ids_of(vectors.folder) == [f"d{i}" for i in range(1, 13)]
    expected = Splade(checkpoint, "cpu", "float32").encode([d.contents for d in collection.documents()], 256).toarray()
    found = np.vstack([shard.vectors.toarray() for shard in vectors])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert vectors.manifest.stats["nonzeros"] == (found != 0).sum() > 100


def test_shards_encoded_at_the_same_time_are_those_of_one_after_the_other(
    collection: BeirFolder, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU. Also: an error in one of them ends the stage, and shards that were finished are kept."""
    whole = encode(collection, encoder(), tmp_path / "whole")
    monkeypatch.setattr(stage, "_shards_at_a_time", lambda encoder, texts: 2)
    assert_same(whole, encode(collection, encoder(), tmp_path / "together"))
    written = stage.write_shard

    def refuse_last(path: Path, *arguments, **more) -> None:
        if path.name == "00002.npz":
            raise CaiError("disk full")
        written(path, *arguments, **more)

    monkeypatch.setattr(stage, "write_shard", refuse_last)
    with pytest.raises(CaiError, match="disk full"):
        encode(collection, encoder(), tmp_path / "x")
    assert artifact.read_manifest(tmp_path / "x") is None
    assert sorted(path.name for path in (tmp_path / "x").glob("*.npz")) == ["00000.npz", "00001.npz"]


@KINDS
def test_a_vector_that_is_not_finite_is_refused_by_id(
    kind: str, collection: BeirFolder, checkpoint: Path, tmp_path: Path
) -> None:
    longest = max(collection.documents(), key=lambda document: len(document.contents))
    broken = damaged(checkpoint, tmp_path / "x", "position_embeddings.weight", 30, math.nan)
    config = load_encoder(str(broken)).replace(kind=kind)
    with pytest.raises(
        CaiError, match=rf"x: the vector of '{longest.id}' has NaN or infinity: the checkpoint is damaged"
    ):
        encode(collection, EncoderModel(config, "cpu", "float32"), tmp_path / "vectors")
    assert artifact.read_manifest(tmp_path / "vectors") is None


def test_an_interrupted_stage_continues_with_the_first_missing_shard(
    collection: BeirFolder, tmp_path: Path, small_shards: None, encoded: list[int]
) -> None:
    output = tmp_path / "vectors"
    whole = encode(collection, encoder(), tmp_path / "whole")
    with interrupted_after(1), pytest.raises(KeyboardInterrupt):
        encode(collection, encoder(), output)
    with pytest.raises(CaiError, match="unfinished"):
        Vectors(output)
    encoded.clear()
    assert_same(whole, encode(collection, encoder(), output))
    assert sum(encoded) == 12 - 5
    encoded.clear()
    encode(collection, encoder(), output)
    assert not encoded


def test_a_smaller_collection_leaves_no_stale_shard_but_the_files_of_others(
    broken: Path, tmp_path: Path, small_shards: None
) -> None:
    output = tmp_path / "vectors"
    encode(BeirFolder(broken, "tiny"), encoder(), output)
    assert len(list(output.glob("*.npz"))) == 3
    shorten(broken)
    for name in ("00000.npz.killed-1-01234567.partial", "mine.npz", "notes.txt", "00009.npz"):
        write_text(output / name, "years of work")
    encode(BeirFolder(broken, "tiny"), encoder(), output)
    names = ["00000.npz", "00009.npz", "manifest.json", "mine.npz", "notes.txt"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert Vectors(output).manifest.files.keys() == {"00000.npz"} and ids_of(output) == ["d1", "d2", "d3", "d4"]


def test_shards_that_a_power_cut_emptied_or_somebody_deleted_are_made_again(
    collection: BeirFolder, tmp_path: Path, small_shards: None, encoded: list[int]
) -> None:
    whole, output = encode(collection, encoder(), tmp_path / "whole", batch_size=2), tmp_path / "cut"
    with interrupted_after(1), pytest.raises(KeyboardInterrupt):
        encode(collection, encoder(), output, batch_size=2)
    for missing in (12, 5):  # the second time, the vectors had been finished
        (output / "00000.npz").write_bytes(b"")
        encoded.clear()
        assert_same(whole, encode(collection, encoder(), output, batch_size=2))
        assert sum(encoded) == missing
    (output / "00001.npz").unlink()
    encoded.clear()
    assert_same(whole, encode(collection, encoder(), output, batch_size=2))
    assert sum(encoded) == 5


def test_new_code_makes_every_shard_again(
    collection: BeirFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_shards: None, encoded: list[int]
) -> None:
    """Also files of an interrupted attempt."""
    with interrupted_after(1), pytest.raises(KeyboardInterrupt):
        encode(collection, encoder(), tmp_path / "vectors")
    monkeypatch.setattr(identity, "changed_stages", lambda: {"encode documents splade": "0" * 16})
    encoded.clear()
    encode(collection, encoder(), tmp_path / "vectors")
    assert sum(encoded) == 12


def test_several_commands_share_the_shards(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], small_shards: None
) -> None:
    output = tmp_path / "vectors"
    arguments = ["--collection", str(tiny), "--encoder", "splade-tiny", "--output", str(output), "--precision=float32"]
    main([*arguments, "--shard-num", "2", "--shard-id", "1"])
    assert capsys.readouterr().out == f"{output}: the shards of process 1 of 2 are finished, others are missing\n"
    assert [path.name for path in output.glob("*.npz")] == ["00001.npz"]
    assert artifact.read_manifest(output) is None
    main([*arguments, "--shard-num", "2"])
    line = capsys.readouterr().out
    assert line.startswith(f"{output}: 12 vectors, ") and line.endswith(" per second, float32\n")
    assert ids_of(output) == [f"d{i}" for i in range(1, 13)]
    for split, ids in (("test", ["q1", "q2", "q3", "q4", "d8"]), ("train", ["t1"])):
        main([*arguments, "--split", split])
        assert capsys.readouterr().out.startswith(f"{output}: {len(ids)} vectors, ") and ids_of(output) == ids


def test_shards_of_several_machines_are_copied_together(
    collection: BeirFolder, tmp_path: Path, small_shards: None
) -> None:
    """Machines without a common disk; the vectors are those of one command."""
    whole = encode(collection, encoder(), tmp_path / "whole")
    for number, machine in enumerate(("one", "two")):
        encode(collection, encoder(), tmp_path / machine / "vectors", shard_id=number, shard_num=2)
        shutil.copytree(tmp_path / machine / "vectors", tmp_path / "vectors", dirs_exist_ok=True)
    with pytest.raises(CaiError, match="vectors is unfinished"):
        Vectors(tmp_path / "vectors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage._TextVectors, "get", lambda *arguments: pytest.fail("it encodes"))
        assert_same(whole, encode(collection, encoder(), tmp_path / "vectors"))


def test_a_shard_beyond_the_last_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--collection", "c", "--encoder", "e", "--output", "v", "--shard-id", "2", "--shard-num", "2"])
    assert "--shard-id 2 is not from 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--split", "test"]])
def test_more_tokens_than_positions_are_refused_first(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(
        f"checkpoint: {load_encoder('splade-tiny').checkpoint}\nmax_document_length: 1024\nmax_query_length: 1024\n"
    )
    call = ["--collection", "hpo", "--encoder", str(tmp_path / "long.yaml"), "--output", str(tmp_path / "v")]
    with pytest.raises(CaiError, match=r"has 512 positions, too few for max_(document|query)_length 1024"):
        main([*call, *arguments])
    assert not (tmp_path / "v").exists()


def test_projected_vectors_are_as_if_encoded(collection: BeirFolder, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_file({"weight": torch.eye(128) + 0.1 * torch.randn(128, 128)}, tmp_path / "p.safetensors")
    plain, projecting = encoder("dense"), encoder("dense", projection=str(tmp_path / "p.safetensors"))
    vectors = Vectors(encode(collection, plain, tmp_path / "plain"))
    projected = Vectors(project_vectors(vectors, projecting, tmp_path / "projected"))
    encoded = Vectors(encode(collection, projecting, tmp_path / "encoded"))
    for one, other in zip(projected, encoded, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    assert abs(next(iter(vectors)).vectors - next(iter(projected)).vectors).max() > 0.01
    assert projected.manifest.recipe == encoded.manifest.recipe
    again = encode(collection, projecting, tmp_path / "projected")
    assert artifact.read_manifest(again) == projected.manifest  # nothing to be done
    assert_same(vectors.folder, project_vectors(vectors, plain, tmp_path / "same"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of vectors."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@KINDS
@pytest.mark.parametrize("times", [1.0, 1.5])
def test_vectors_are_not_mixed_with_others_that_the_encoder_made_before(
    kind: str, times: float, collection: BeirFolder, tmp_path: Path, cache: Path
) -> None:
    """The fault: a new library version tokenizes differently, and old vectors are mixed with new ones."""
    opened, documents = encoder(kind), list(collection.documents())
    texts = [document.contents for document in documents[:3]]
    before = opened.load("documents").encode(texts, 256)
    store = stage._open_cache(opened, "documents")
    assert store
    store.put([bytes(key) for key in text_keys(texts)], before * times, 1.0)
    if times == 1:
        encode(collection, opened, tmp_path / "vectors")
        assert artifact.require(tmp_path / "vectors", "encode").stats["found"] == 3
        return
    with pytest.raises(
        CaiError, match=r"no longer makes the vectors that it made before, .* of other library versions"
    ):
        encode(collection, opened, tmp_path / "vectors")


def rewrite(folder: Path, documents: list[dict]) -> BeirFolder:
    """Replace the documents of a collection."""
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    return BeirFolder(folder, "another")


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    """The vectors by id."""
    rows: dict[str, np.ndarray] = {}
    for ids, vectors, _ in Vectors(folder):
        rows |= zip(ids, vectors if isinstance(vectors, np.ndarray) else vectors.toarray(), strict=True)
    return rows


@KINDS
def test_no_text_is_encoded_twice(
    kind: str,
    collection: BeirFolder,
    broken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_shards: None,
    cache: Path,
    encoded: list[int],
) -> None:
    """Whatever its place, its collection and its id; the faults: a text gets the vector of another, or another one
    than without a cache."""
    short = encoder(kind, max_document_length=16)
    first = encode(collection, short, tmp_path / "first")
    assert Vectors(first).manifest.stats["found"] == 0
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        assert_same(encode(collection, short, tmp_path / "without"), first)
    documents = [json.loads(line) for line in (broken / "corpus.jsonl").read_text().splitlines()][::-1]
    documents += [documents[3] | {"_id": "copy"}, {"_id": "blank", "title": "", "text": " "}]
    documents[5] |= {"title": "", "text": "fever"}
    changed = documents[5]["_id"]
    encoded.clear()
    second = encode(rewrite(broken, documents), short, tmp_path / "second")
    assert sum(encoded) == 1
    stats = Vectors(second).manifest.stats
    assert stats["vectors"] == 14 and stats["found"] == 12 and stats["encoding_seconds"] > 0
    before, after = rows_of(first), rows_of(second)
    assert not after["blank"].any() and abs(after[changed] - before[changed]).max() > 0
    before["copy"] = before[documents[3]["_id"]]
    for id in before.keys() - {changed}:
        np.testing.assert_array_equal(before[id], after[id])
    third = encode(BeirFolder(broken, "another"), short, tmp_path / "third")
    assert_same(second, third)
    assert sum(encoded) == 1 and Vectors(third).manifest.digest == Vectors(second).manifest.digest


@KINDS
def test_texts_are_encoded_once_for_each_length(
    kind: str, cache: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch, small_shards: None
) -> None:
    """The fault: a text gets the vector of its first words."""
    texts = [f"fever and {number} other signs of an infection" for number in range(8)]
    model, counts = encoder(kind).load("documents"), list[int]()
    for length, new in ((5, texts), (8, texts), (5, [*texts[:3], texts[1], "fever", ""])):
        encoded.clear()
        found = encode_texts(encoder(kind), new, length, counts.append)
        assert sum(encoded) == (1 if "fever" in new else 8) and sum(counts) == len(new)
        counts.clear()
        assert abs(found - model.encode(new, length)).max() < 1e-5
    monkeypatch.setenv(VARIABLE, "")
    encoded.clear()
    encode_texts(encoder(kind), texts + texts[:2], 5, counts.append)
    assert sum(encoded) == 10  # in two shards


def test_queries_are_found_too_and_their_latency_is_that_of_encoding(
    collection: BeirFolder, tmp_path: Path, cache: Path, encoded: list[int]
) -> None:
    """The fault: a table reports no encoding time, because the queries were in the cache."""
    settings = encoder(expand_queries=False)
    folders = [encode(collection, settings, tmp_path / name, "queries") for name in "ab"]
    assert sum(encoded) == 5
    assert_same(*folders)
    first, second = (Vectors(folder).manifest.stats for folder in folders)
    assert (first["found"], second["found"]) == (0, 5) and second["encoding_seconds"] == first["encoding_seconds"] > 0
    assert Queries(collection.topics("test"), stored=folders[1]).encoded[1] == first["encoding_seconds"]
    encoded.clear()
    encode(collection, encoder(binary_queries=True), tmp_path / "binary", "queries")
    encode(collection, encoder(), tmp_path / "documents")
    assert sum(encoded) == 5 + 12


def test_vectors_of_another_encoding_are_not_found(
    collection: BeirFolder, tmp_path: Path, cache: Path, encoded: list[int]
) -> None:
    encode(collection, encoder(), tmp_path / "first")
    others: list[dict] = [{"max_document_length": 16}, {"document_prompt": "fever: "}]
    others += [{"max_active_dims": 5}, {"kind": "dense"}, {"precision": "bfloat16"}]
    for number, settings in enumerate(others, 1):
        encoded.clear()
        stats = Vectors(encode(collection, encoder(**settings), tmp_path / str(number))).manifest.stats
        assert sum(encoded) >= 12 and stats["found"] == 0, settings
        assert len(list(cache.glob("*.sqlite"))) == 1 + number


@KINDS
def test_an_interrupted_shard_finds_the_batches_it_has_finished(
    kind: str,
    collection: BeirFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_shards: None,
    cache: Path,
    encoded: list[int],
) -> None:
    """The faults: hours of work are lost, or a text gets the vector of another."""
    monkeypatch.setattr(stage, "SAVE_SECONDS", -1)  # after every batch
    put, puts = VectorCache.put, 0

    def interrupted(self: VectorCache, *arguments) -> None:
        nonlocal puts
        put(self, *arguments)
        puts += 1
        if puts == 3:
            raise KeyboardInterrupt

    short = encoder(kind, max_document_length=16)  # so that a shard is several batches of one text
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(VectorCache, "put", interrupted)
        encode(collection, short, tmp_path / "resumed", batch_size=1)
    encoded.clear()
    resumed = encode(collection, short, tmp_path / "resumed", batch_size=1)
    assert 0 < sum(encoded) < 12 and Vectors(resumed).manifest.stats["found"] == 12 - sum(encoded)
    monkeypatch.setenv(VARIABLE, "")
    assert_same(encode(collection, short, tmp_path / "whole", batch_size=1), resumed)


@KINDS
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_vector_does_not_depend_on_the_other_texts(
    kind: str, precision: Precision, collection: BeirFolder, encoded: list[int]
) -> None:
    """The fault: after changes of some documents, the vectors differ from those of a fresh run."""
    if precision == "bfloat16" and device._cpu_has("amx_bf16"):
        pytest.skip("with AMX, rounding depends on the batch")
    texts = [document.contents for document in collection.documents()]
    model = encoder(kind, precision).load("documents")
    together = model.encode(texts, 256)
    assert len(encoded) < len(texts)
    for position in range(0, len(texts), 4):
        assert abs(model.encode(texts[position : position + 1], 256) - together[position : position + 1]).max() == 0
