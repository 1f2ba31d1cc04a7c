"""Indexes with metadata: the same to stock Pyserini as without, and made again when it changes, unlike vectors."""

import json
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as beir
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.engine.open import open_index
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.text_index import index_bm25
from tests.indexes.stock import bm25, everything, reader, search
from tests.metadata import QUERIES, metadata

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture
def untagged(metadata_run: Path) -> BeirFolder:
    return BeirFolder(metadata_run.parent / "corpus.jsonl", "papers")


def test_bm25_is_the_same_to_stock_pyserini(metadata_run: Path, untagged: BeirFolder, tmp_path: Path) -> None:
    tagged, plain = metadata_run / "indexes" / "bm25", index_bm25(untagged, tmp_path / "plain")
    queries = [*QUERIES, "fever", "rat trial"]
    assert bm25(tagged, queries) == bm25(plain, queries) and all(bm25(tagged, queries))
    assert reader(tagged).stats() == reader(plain).stats()
    assert reader(tagged).get_document_vector("d7") == reader(plain).get_document_vector("d7")
    assert reader(tagged).get_term_positions("d7") == reader(plain).get_term_positions("d7")
    assert json.loads(reader(tagged).doc_raw("d7"))["metadata"] == metadata()["d7"]
    assert json.loads(reader(tagged).doc_raw("d10")) == json.loads(reader(plain).doc_raw("d10"))  # which has none
    assert [path.name for path in tagged.glob("segments_*")] and not [
        path for path in tagged.iterdir() if path.is_dir()
    ]


def test_impacts_are_the_same_to_stock_pyserini(metadata_run: Path, untagged: BeirFolder, tmp_path: Path) -> None:
    tagged = metadata_run / "indexes" / "joint-splade-idf"
    plain = index_impacts(metadata_run / "impacts" / "joint-splade-idf", tmp_path / "plain", untagged)
    assert [(id, terms) for id, _, terms in everything(tagged)] == [(id, terms) for id, _, terms in everything(plain)]
    queries = [{"bm25:infect": 3, "bladder": 50}, {"cancer": 80, "risk": 20, "the": 1}]
    assert search(tagged, *queries) == search(plain, *queries) and all(search(tagged, *queries))
    assert artifact.require(plain, "index").recipe["inputs"].keys() == {"impacts", "documents"}


def test_a_corrected_year_makes_indexes_again_and_no_vectors(
    metadata_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, config = metadata_run.parent / "corpus.jsonl", tmp_path / "papers.yaml"
    text = (metadata_run.parent / "papers.yaml").read_text().replace(str(metadata_run.parent), str(tmp_path))
    config.write_text(text)
    lines = corpus.read_text().splitlines()[:20]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    flags = [str(config), "--output", str(tmp_path / "run"), "--systems", "splade-idf", "bm25"]
    beir(flags)
    changed = lines[1].replace(f'"year": {metadata()["d1"]["year"]}', '"year": 1066')
    assert changed != lines[1]
    (tmp_path / "corpus.jsonl").write_text("\n".join([lines[0], changed, *lines[2:]]))
    capsys.readouterr()
    beir([*flags, "--dry-run"])
    steps = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.replace("index ", "index-").splitlines() if line
    )
    outdated = {name for name, why in steps.items() if "metadata changed" in why}
    assert outdated == {"index-splade-idf", "index-bm25"}
    beir(flags)
    assert [
        hit.id for hit in open_index(tmp_path / "run" / "indexes" / "bm25").search(["Title"], filter="year:1066")[0]
    ] == ["d1"]
