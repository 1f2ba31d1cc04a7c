"""Shards of an index: together they are searched as the whole index is."""

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as beir
from cai_pyserini.cli.search import main
from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.open import open_index, open_systems
from cai_pyserini.engine.retriever import Retriever
from cai_pyserini.indexes import index_shards, words
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.index_shards import require_index
from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
from cai_pyserini.indexes.retrieve import queries_for
from cai_pyserini.vectors import encode
from cai_pyserini.vectors.queries import TwoStep
from tests.conftest import stage_command
from tests.vectors.test_json_vectors import vector_line

impact_main = stage_command("impact")
index_main = stage_command("index")
write_run = stage_command("search")

pytestmark = pytest.mark.slow

SYSTEMS = ["bm25", "joint-splade-idf"]
QUERIES = [
    "abnormal kidney",
    "urinary tract infection",
    "The presence of cysts in both kidneys, or an abnormality of the bladder, the ureter or the genital system",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 90 documents of hpo, some of them twice under other ids, with 13 shards of vectors."""
    folder = tmp_path_factory.mktemp("shards")
    hpo = Hpo("hpo")
    documents = [record._asdict() for record in islice(hpo.records(), 70)]
    documents += [document | {"id": f"{document['id']}-again"} for document in documents[:20]]
    corpus = [{"_id": d["id"], "title": d["title"], "text": d["text"]} for d in documents]
    topics = [{"_id": id, "text": text} for id, text in islice(hpo.topics("test").items(), 20)]
    (folder / "hpo").mkdir()
    for name, records in (("corpus", corpus), ("queries", topics)):
        (folder / "hpo" / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "SHARD", 7)
        patch.setattr(words, "SHARD", 7)
        beir([str(folder / "hpo"), "--output", str(folder / "run"), "--systems", *SYSTEMS])
    for name in SYSTEMS:
        for number in range(3):
            make_shard(folder, name, folder / f"{name}-{number}", number, 3)
    return folder


def make_shard(folder: Path, name: str, output: Path, number: int, count: int) -> Path:
    """Index a shard of a system, as the command does."""
    collection = ["--collection", str(folder / "hpo")]
    source = ["impact", "--input", str(folder / "run" / "impacts" / name)] if name != "bm25" else ["bm25"]
    shard = ["--shard-id", str(number), "--shard-num", str(count)]
    index_main([*source, *collection, *shard, "--output", str(output)])
    return output


def whole_index(folder: Path, name: str) -> Path:
    return folder / "run" / "indexes" / name


def shards(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}-{number}" for number in (2, 0, 1)]


def run_text(collection: Path, output: Path, *indexes: Path, hits: int = 1000) -> str:
    """The run that the command writes."""
    paths = [word for index in indexes for word in ("--index", str(index))]
    write_run([*paths, "--collection", str(collection), "--output", str(output), "--hits", str(hits)])
    text = output.read_text()
    files.remove(output)
    files.remove(artifact.manifest_path(output))
    return text


@pytest.mark.parametrize("name", SYSTEMS)
def test_shards_have_the_run_scores_and_explanations_of_the_whole_index(
    folder: Path, name: str, tmp_path: Path
) -> None:
    sizes = [artifact.require(shard, "index").stats["documents"] for shard in shards(folder, name)]
    assert sum(sizes) == 90 and max(sizes) < 45
    assert require_index(shards(folder, name)).digest == artifact.require(whole_index(folder, name), "index").digest
    for hits in (10, 1000):
        expected = run_text(folder / "hpo", tmp_path / "run.trec", whole_index(folder, name), hits=hits)
        assert run_text(folder / "hpo", tmp_path / "run.trec", *shards(folder, name), hits=hits) == expected
        assert expected.count("\n") > 100 and "-again" in expected
    one, several = Retriever(whole_index(folder, name)), Retriever(shards(folder, name))
    assert several.search(QUERIES, 1000) == one.search(QUERIES, 1000)  # the same bits
    for query, ranking in several.search(QUERIES, 1000):
        assert len(ranking) > 3
        ids = [id for id, _ in ranking]
        whole, parts = one.searcher, several.searcher
        assert parts.explain(query, ids) == whole.explain(query, ids)
        assert [parts.document(id) for id in ids] == [whole.document(id) for id in ids]
        assert parts.document(ids[0]) is not None
    assert open_index(shards(folder, name)).name == f"{name}-2"


def test_two_steps_over_shards_find_what_they_find_in_the_whole_index(folder: Path, tmp_path: Path) -> None:
    """With forward indexes, whose documents are numbered in each shard from 0."""
    impacts = folder / "run" / "impacts" / "joint-splade-idf"
    whole = index_impacts(impacts, tmp_path / "whole", forward_index=True)
    parts = [
        index_impacts(impacts, tmp_path / str(number), shard_id=number, shard_num=2, forward_index=True)
        for number in (1, 0)
    ]
    topics, config = dict(zip("abc", QUERIES, strict=True)), load_encoder(str(whole))
    queries, _ = queries_for(whole, topics, config, device="cpu").for_search(config.query_scale)
    one, several = (LuceneImpacts(index, two_step=TwoStep(0.5, 30)) for index in (whole, parts))
    exact = open_searcher(whole)
    for query in queries.values():
        found = one.search(query, 10)
        assert found == several.search(query, 10) and len(found) == 10
        assert found == [(id, dict(exact.search(query, 500))[id]) for id, _ in found]


def test_all_shards_of_an_index_are_served_as_one(folder: Path) -> None:
    others = [whole_index(folder, "bm25"), shards(folder, "bm25")[0]]  # a shard alone is an index of its own
    engines = open_systems([others[0], *shards(folder, "joint-splade-idf"), others[1]])
    assert [*engines] == ["bm25", "joint-splade-idf-2", "bm25-2"]
    whole = open_index(whole_index(folder, "joint-splade-idf"))
    found, expected = (
        [hit.id for hit in engine.search(QUERIES[0], k=100)] for engine in (engines["joint-splade-idf-2"], whole)
    )
    assert found == expected and len(found) > 3
    with pytest.raises(CaiError, match="shard 0 is missing"):
        open_systems([shards(folder, "bm25")[number] for number in (0, 2)])


def test_what_is_not_all_shards_of_one_index_is_refused(folder: Path, tmp_path: Path) -> None:
    first, second, _ = shards(folder, "bm25")
    index = whole_index(folder, "bm25")
    joint = shards(folder, "joint-splade-idf")
    of_two = make_shard(folder, "bm25", tmp_path / "of two", 1, 2)
    for indexes, message in (
        ([index, index], f"{index} is a whole index: only the shards"),
        ([first, index], f"{index} is a whole index: only the shards"),
        ([first, second, second], f"{second} and {second} are the same shard: give each"),
        ([first, second], "shard 1 is missing: give all 3 shards"),
        ([first, of_two], f"{of_two} and {first} are not shards of one index: they were made of different documents"),
        ([joint[0], first], "are not shards of one index: .* different encoders, statistics"),
        ([first, tmp_path], f"{tmp_path} has no manifest"),
    ):
        with pytest.raises(CaiError, match=message):
            open_index(indexes)
    lone = open_index(first)  # an index like any other
    assert lone.search(["abnormal kidney"])[0]


def test_impacts_with_other_statistics_are_refused(folder: Path, tmp_path: Path) -> None:
    """Another quantization: of 8 bits."""
    run = tmp_path / "run"
    settings = ["--vectors", folder / "run" / "vectors" / "documents", "--idf", folder / "run" / "idf", "--bits", "8"]
    impact_main([*map(str, settings), "--encoder", "splade-tiny", "--output", str(run / "impacts" / "other")])
    shutil.copytree(folder / "hpo", tmp_path / "hpo")
    other = make_shard(tmp_path, "other", tmp_path / "other-1", 1, 3)
    first, second, _ = shards(folder, "joint-splade-idf")
    with pytest.raises(CaiError, match=f"{other} and {first} are not shards of one index"):
        main(["seizures", *(word for shard in (first, second, other) for word in ("--index", str(shard)))])


def test_a_document_in_two_shards_is_found_when_they_are_made(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "hpo", tmp_path / "hpo")
    corpus = tmp_path / "hpo" / "corpus.jsonl"
    lines = corpus.read_text().splitlines()
    corpus.write_text("\n".join([*lines, lines[0]]))
    for number in range(3):
        with pytest.raises(CaiError, match=r"corpus.jsonl:91: document id .* occurs twice"):
            make_shard(tmp_path, "bm25", tmp_path / "index", number, 3)


def test_more_documents_than_lucene_can_hold_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_shards, "MOST_DOCUMENTS", 44)
    for system, place in (("joint-splade-idf", "impacts/joint-splade-idf"), ("bm25", "collection hpo")):
        with pytest.raises(CaiError, match=f"{place} has 4[56] documents for one Lucene index, which can hold 44: "):
            make_shard(folder, system, tmp_path / "index", 0, 2)


def test_what_cannot_be_divided_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="joint-splade-idf has 13 files, too few for 14 shards"):
        make_shard(folder, "joint-splade-idf", tmp_path / "index", 0, 14)
    with pytest.raises(CaiError, match="collection hpo has too few documents for 91 shards"):
        make_shard(folder, "bm25", tmp_path / "index", 90, 91)
    shutil.copytree(folder / "hpo", tmp_path / "hpo")
    impacts = tmp_path / "run" / "impacts"
    copied = Path(shutil.copytree(folder / "run" / "impacts" / "joint-splade-idf", impacts / "copied"))
    (copied / "00012.jsonl").unlink()
    with pytest.raises(CaiError, match=r"copied is damaged \(00012.jsonl is missing\): make it again with"):
        make_shard(tmp_path, "copied", tmp_path / "index", 0, 3)
    vectors = impacts / "of another tool"
    vectors.mkdir()
    for number in range(3):
        (vectors / f"{number}.jsonl").write_text(vector_line("a", {"x": 1}))
    with pytest.raises(
        CaiError, match=r"of another tool was not made by `cai-pyserini stage impact`, and cannot be indexed in shards"
    ):
        make_shard(tmp_path, "of another tool", tmp_path / "index", 0, 3)
