"""Lucene searchers: hits, their scale, and batches."""

import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes import searcher as searching
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.indexes.writer import DocumentAdder, writing
from cai_pyserini.vectors.json_vectors import DELIMITER
from cai_pyserini.vectors.queries import TwoStep
from tests.conftest import corpus_of
from tests.indexes.stock import bm25
from tests.vectors.test_json_vectors import vector_line

pytestmark = pytest.mark.slow

VECTORS = {
    "d1": {"fever": 3, "cold": 5},
    "d2": {"fever": 1},
    "d3": {"cold": 2, "##s": 7, "fever": 100},
    "d4": {"zinc": 1, "fever": 2, "|": 3},
}


def bm25_of(folder: Path, texts: Mapping[str, str]) -> Path:
    """An index of texts by document id."""
    return index_bm25(corpus_of(folder, texts), folder / "index", threads=1, raw=True)


def impacts_of(folder: Path, vectors: Mapping[str, Mapping[str, int]], forward_index: bool = False) -> Path:
    """An index of impacts by document id."""
    source = folder / "vectors"
    source.mkdir()
    (source / "0.jsonl").write_text("".join(f"{vector_line(id, dict(vector))}\n" for id, vector in vectors.items()))
    return index_impacts(source, folder / "index", forward_index=forward_index)


@pytest.fixture(scope="module")
def index(java: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of VECTORS."""
    return impacts_of(tmp_path_factory.mktemp("impacts"), VECTORS)


def test_scores_are_dot_products(index: Path) -> None:
    searcher = open_searcher(index)
    assert searcher.search({"fever": 2, "cold": 10}, 10) == [("d3", 220), ("d1", 56), ("d4", 4), ("d2", 2)]
    assert searcher.search({"fever": 2, "cold": 10}, 1) == [("d3", 220)]
    assert searcher.search({"|": 5}, 10) == [("d4", 15)]
    assert searcher.search({"absent": 5}, 10) == searcher.search({}, 10) == []
    searcher.close()


@pytest.fixture(scope="module")
def with_forward(java: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of VECTORS with a forward index."""
    return impacts_of(tmp_path_factory.mktemp("forward"), VECTORS, forward_index=True)


def test_two_steps_find_documents_by_some_terms_and_score_them_by_all(index: Path, with_forward: Path) -> None:
    query = {"fever": 9, "cold": 10, "zinc": 1}
    searcher = LuceneImpacts(with_forward, two_step=TwoStep(0.5, 2))  # "cold" finds d1 before d3
    assert searcher.search(query, 1) == [("d3", 920)]  # of two that are scored
    assert searcher.search(query, 2) == [("d3", 920), ("d1", 77)]
    whole = [("d3", 920), ("d1", 77), ("d4", 19), ("d2", 9)]  # "cold" alone finds no third
    assert searcher.search(query, 3) == whole[:3] and searcher.search(query, 10) == whole
    assert searcher.search({"fever": 2}, 10) == [("d3", 200), ("d1", 6), ("d4", 4), ("d2", 2)]  # nothing to leave out
    assert searcher.search({"absent": 5, "zinc": 2}, 10) == [("d4", 2)] and searcher.search({}, 10) == []
    equal = {"fever": 100, "cold": 3, "zinc": 115}  # without "cold", d4 is before d1
    assert LuceneImpacts(with_forward, two_step=TwoStep(0.9, 4)).search(equal, 4)[1:3] == [("d1", 315), ("d4", 315)]
    queries = {str(n): {"fever": 9 + n % 7, "cold": 10 + n % 5, "zinc": 1 + n % 3} for n in range(400)}
    (found,) = searcher.search_many(queries, 2, 4)
    assert found == {id: searcher.search(query, 2) for id, query in queries.items()}
    exact = LuceneImpacts(index, two_step=TwoStep(0.5, 1))  # without a forward index
    assert exact.search({"fever": 100, "cold": 101}, 1) == open_searcher(index).search({"fever": 100, "cold": 101}, 1)


def test_documents_that_the_first_step_ranks_too_low_are_missed(java: None, tmp_path: Path) -> None:
    vectors = {"a": {"x": 9, "y": 1}, "b": {"x": 8, "y": 1}, "c": {"x": 7, "y": 900}, "d": {"x": 6, "y": 800}}
    index = impacts_of(tmp_path, vectors | {"e": {"y": 700}}, forward_index=True)
    query = {"x": 2, "y": 1}  # "x" alone finds a, b, c, d
    for rescored, best in ((1, ("a", 19)), (2, ("a", 19)), (3, ("c", 914))):
        assert LuceneImpacts(index, two_step=TwoStep(0.5, rescored)).search(query, 1) == [best]
    # twice as many as are requested are scored, if that is more
    assert LuceneImpacts(index, two_step=TwoStep(0.5, 1)).search(query, 2) == [("c", 914), ("d", 812)]
    # if it finds fewer, all terms are searched for
    assert LuceneImpacts(index, two_step=TwoStep(0.5, 5)).search(query, 3) == [("c", 914), ("d", 812), ("e", 700)]


@pytest.mark.parametrize(("hits_per_crossing", "characters"), [(1, 1 << 23), (6, 1), (1 << 16, 20), (1 << 16, 1 << 23)])
def test_many_queries_at_a_time(
    index: Path, hits_per_crossing: int, characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "HITS", hits_per_crossing)
    monkeypatch.setattr(batch, "CHARACTERS", characters)
    searcher = open_searcher(index)
    queries = {"b": {"fever": 1}, "a": {"zinc": 7}, "none": {"absent": 1}, "empty": {}}
    batches = list(searcher.search_many(queries, 3, 2))
    assert len(batches) == {1: 4, 6: 2, 1 << 16: 1}[hits_per_crossing]
    found = {id: hits for batch in batches for id, hits in batch.items()}
    assert list(found) == sorted(queries)
    assert found == {"b": [("d3", 100), ("d1", 3), ("d4", 2)], "a": [("d4", 7)], "none": [], "empty": []}


def test_bm25_scores_are_pyserinis_own_with_ties_and_near_ties(java: None, tmp_path: Path) -> None:
    texts = ["fever " * (1 + n % 5) + "cold " * (n % 7) + "zinc " * (n % 45) for n in range(600)]
    index = bm25_of(tmp_path, {f"d{n}": text for n, text in enumerate(texts)})
    (own,) = bm25(index, ["fever cold"])
    scores = [score for _, score in own]
    assert sum(0 < before - after <= 1e-4 for before, after in pairwise(scores)) > 30
    searcher = open_searcher(index)
    assert [(id, np.float32(score)) for id, score in searcher.search("fever cold", 100)] == own


def test_bm25_scores_are_anserinis_where_hits_end_among_equal_scores(java: None, tmp_path: Path) -> None:
    draw = random.Random(3)
    words = [f"word{number}" for number in range(20)]
    texts = [" ".join(draw.choices(words, k=draw.choice([3, 4, 8]))) for _ in range(150)]
    index = bm25_of(tmp_path, {f"d{number}": draw.choice(texts) for number in range(600)})
    queries = {str(number): " ".join(draw.choices(words, k=draw.choice([1, 2, 3]))) for number in range(200)}
    ours, ties = open_searcher(index), 0
    for hits in (3, 20):
        found = {id: of_query for batch in ours.search_many(queries, hits, 2) for id, of_query in batch.items()}
        for id, own in zip(queries, bm25(index, queries.values(), hits=hits), strict=True):
            assert [(document, np.float32(score)) for document, score in found[id]] == own
            ties += sum(before - after < 2e-6 for (_, before), (_, after) in pairwise(own))
    assert ties > 2_000


PROCESS = """
import sys, torch
from pathlib import Path
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.engines import open_searcher
words = ["fever", *(f"word{number}" for number in range(3_000))]
searcher = open_searcher(Path(sys.argv[1]))
assert searcher.search(" ".join(words), 1) == searcher.search("fever", 1) != []
assert searcher.explain(" ".join(words), ["d10"]) == searcher.explain("fever", ["d10"])
assert searcher.impacts(["d10"], Analyzer()(" ".join(words))) == {"d10": {"fever": 1}}
jvm.java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(2_000)
try:
    searcher.search(" ".join(words), 1)
except CaiError as error:
    print(error, flush=True)
searcher = open_searcher(Path(sys.argv[2]))
for _ in searcher.search_many(dict.fromkeys(map(str, range(1 << 22)), {"fever": 1}), 1 << 12, 2):
    print("searching", flush=True)
"""


def test_long_queries_do_not_depend_on_which_indexes_are_open_and_sigterm_ends_a_search_beside_pytorch(
    index: Path, tmp_path: Path
) -> None:
    """Lucene takes 1,024 words by default, of all indexes of a process; first only one of text is open."""
    text = bm25_of(tmp_path, {"d10": "fever"})
    with subprocess.Popen([sys.executable, "-c", PROCESS, text, index], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = [process.stdout.readline() for _ in range(2)]
        process.terminate()
        try:
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()
    assert said == ["searching: the query has more than 1,048,576 different terms; shorten it\n", "searching\n"]


def test_hits_that_cannot_be_read_are_an_error(java: None, tmp_path: Path) -> None:
    """As those without ids in doc values, which another tool may have written."""

    def write(folder: Path) -> artifact.Stats:
        java = jvm.java_class
        kind = java("org.apache.lucene.document.FieldType")()
        kind.setIndexOptions(java("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
        kind.setOmitNorms(True)
        text = jvm.start().cast("java.lang.CharSequence", java("java.lang.String")(f"fever{DELIMITER}5"))
        document = java("org.apache.lucene.document.Document")()
        document.add(java("org.apache.lucene.document.Field")("contents", text, kind))
        with writing(folder) as writer:
            DocumentAdder(writer, {}, is_text=False, stores_raw=False)("d1", f"fever{DELIMITER}3", "")
            writer.addDocument(document)
        return {"documents": 2, "kind": "impact", "raw": False}

    searcher = open_searcher(artifact.make(tmp_path / "index", artifact.recipe("index", {}, kind="impact"), write))
    with pytest.raises(
        CaiError, match="index: Lucene found 2 documents, but of the best 2, 1 could be read; every doc"
    ):
        searcher.search({"fever": 1}, 10)


def test_an_index_that_cannot_be_opened_is_named(run_folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(run_folder / "indexes" / "bm25", tmp_path / "broken"))
    segments = next(broken.glob("segments_*"))
    segments.write_bytes(bytes(segments.stat().st_size))
    with pytest.raises(CaiError, match=f"opening {broken}: "):
        open_searcher(broken)


def test_an_index_of_a_later_pyserini(run_folder: Path, tmp_path: Path) -> None:
    """Whose Lucene writes another version of the format: the number after the name of a file's format."""
    later = Path(shutil.copytree(run_folder / "indexes" / "bm25", tmp_path / "later"))
    for path in later.glob("*.dvm"):
        data = re.sub(rb"(?<=DocValuesMetadata)....", b"\0\0\0\t", path.read_bytes()[:-8], flags=re.DOTALL)
        path.write_bytes(data + crc32(data).to_bytes(8))
    with pytest.raises(CaiError, match=f"opening {later}: made with another Pyserini, probably a later one; upgrade "):
        open_searcher(later)
