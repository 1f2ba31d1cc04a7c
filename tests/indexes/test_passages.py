"""Searches of passages find as many documents as asked for, in every engine, and search no deeper than they have to."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.faiss import FaissSearcher
from cai_pyserini.indexes.filters import parse_filter
from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
from cai_pyserini.indexes.lucene_text import LuceneText
from cai_pyserini.indexes.passages import best_documents, fold_passages, search_many
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.runs.trec import NO_HITS, Ranking
from cai_pyserini.vectors.queries import Query, TwoStep
from tests.conftest import stored_vectors
from tests.indexes.test_searcher import bm25_of, impacts_of

pytestmark = pytest.mark.slow

PASSAGES = [200, 70, *[1, 2, 3] * 12, 30]  # of each document: a few hide the others
WORDS = ("fever", "cold", "zinc")


def frequencies() -> dict[str, dict[str, int]]:
    """Impacts by passage, most of which are those of others too; every document has the first word."""
    draw = random.Random(1)
    return {
        f"d{document}#{number}": {"fever": draw.choice([1, 2, 3, 9 if count > 50 else 4])}
        | {word: draw.randint(1, 3) for word in WORDS[1:] if draw.random() < 0.5}
        for document, count in enumerate(PASSAGES)
        for number in range(count)
    }


@pytest.fixture(scope="module")
def engines(java: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Searcher, list[Query]]]:
    """The same passages in several engines, with queries."""
    vectors, folder = frequencies(), tmp_path_factory.mktemp("passages")
    terms = [{"fever": 1}, {"fever": 1, "zinc": 1}, {"cold": 2, "zinc": 1}, {}]
    rows = np.array([[vector.get(word, 0) for word in WORDS] for vector in vectors.values()], np.float32)
    texts = {id: " ".join(word for word in WORDS for _ in range(of.get(word, 0))) for id, of in vectors.items()}
    for name in ("exact", "forward", "text"):
        (folder / name).mkdir()
    exact = impacts_of(folder / "exact", vectors)
    forward = impacts_of(folder / "forward", vectors, forward_index=True)
    dense = stored_vectors(folder / "vectors", rows, ids=[[*vectors]], kind="dense")
    dense_queries = [np.array([query.get(word, 0) for word in WORDS], np.float32) for query in terms]
    return {
        "impacts": (LuceneImpacts(exact), [*terms]),
        "two steps": (LuceneImpacts(forward, TwoStep(0.9, 10)), [*terms]),
        "bm25": (LuceneText(bm25_of(folder / "text", texts)), [" ".join(query) for query in terms]),
        "dense": (FaissSearcher(index_dense(dense, folder / "dense")), [*dense_queries]),
    }


@pytest.mark.parametrize("engine", ["impacts", "two steps", "bm25", "dense"])
def test_all_documents_are_found_and_longer_lists_begin_with_shorter_ones(
    engine: str, engines: dict[str, tuple[Searcher, list[Query]]]
) -> None:
    """The fault: the passages of two documents are all that is looked at, so that ranks 4 to 10 are on no page."""
    searcher, queries = engines[engine]
    every = [fold_passages(ranking, 1000) for ranking in searcher.search_all(queries, 1000)]
    assert [len(found.ranking) for found in every[:2]] == [len(PASSAGES)] * 2 and not every[3].ranking
    for hits in (1, 2, 3, 5, 12, 13, 38, 39, 40, 1000):
        found = best_documents(searcher, queries, hits)
        assert [each.ranking for each in found] == [each.ranking[:hits] for each in every]
        assert all([*one.passages] == [*one.ranking.ids] for one in found)
        assert all(each.passages.items() >= one.passages.items() for one, each in zip(found, every, strict=True))
    many = {id: ranking for batch in search_many(searcher, dict(zip("dbca", queries, strict=True)), 12, 2)
            for id, ranking in batch.items()}  # fmt: skip
    assert many == {id: each.ranking[:12] for id, each in zip("dbca", every, strict=True)}


class Counting(Searcher):
    """An engine that has rankings in memory, and counts the passages that it gives."""

    def __init__(self, rankings: Mapping[str, Ranking], **settings: Any):
        self.rankings, self.given = rankings, dict.fromkeys(rankings, 0)
        self.documents = max(map(len, rankings.values()))
        vars(self).update(settings)

    def search_all(self, queries: Sequence[Query], hits: int, threads: int = 1) -> list[Ranking]:
        for query in queries:
            self.given[str(query)] += len(self.rankings[str(query)][:hits])
        return [self.rankings[str(query)][:hits] for query in queries]


def ranking_of(*counts: int, scores: Sequence[float] = ()) -> Ranking:
    """A ranking that has so many passages of each document in succession."""
    ids = [f"d{document}#{number}" for document, count in enumerate(counts) for number in range(count)]
    return Ranking(ids, [*scores] or [-float(rank) for rank in range(len(ids))])


def test_only_queries_that_lack_documents_are_searched_for_more_deeply() -> None:
    """The fault: every query reads ten passages per document, so that a search takes ten times as long."""
    usual, hidden, few = ranking_of(*[3] * 100), ranking_of(200, *[1] * 100), ranking_of(1, 4)
    searcher = Counting({"usual": usual, "hidden": hidden, "few": few})
    found = best_documents(searcher, ["usual", "hidden", "few"], 10)
    assert [len(each.ranking) for each in found] == [10, 10, 2]
    assert searcher.given == {"usual": 30, "hidden": 30 + 120 + 300, "few": 5}


def test_documents_whose_best_passage_may_be_missing_are_not_ranked() -> None:
    """The fault: of equal passages, an engine that orders them by chance gives others at another depth."""
    scores = [5.0] * 4 + [4.0] * 60
    ranking = ranking_of(*[1] * 64, scores=scores)
    for cuts_ties, given in ((False, 15), (True, 15 + 60 + 64)):
        searcher = Counting({"q": ranking}, cuts_ties=cuts_ties)
        assert len(best_documents(searcher, ["q"], 5)[0].ranking) == 5 and searcher.given == {"q": given}


def test_an_engine_is_not_asked_for_more_than_it_returns() -> None:
    """The fault: the search of a fourth depth is an error of Milvus."""
    searcher = Counting({"q": ranking_of(500, 1)}, most_hits=100)
    assert [*best_documents(searcher, ["q"], 30)[0].ranking.ids] == ["d0"] and searcher.given == {"q": 90 + 100}


def test_filtered_searches_find_all_documents_too(java: None, tmp_path: Path) -> None:
    texts = {id: f"{'old ' * (number % 2)}fever" for number, id in enumerate(frequencies())}
    searcher = LuceneText(bm25_of(tmp_path, texts)).filtered(parse_filter("contents:old", {}))
    (every,), (found,) = (best_documents(searcher, ["fever"], hits) for hits in (1000, 12))
    assert found.ranking == every.ranking[:12] and 20 < len(every.ranking) < len(PASSAGES)


def test_passages_are_folded_to_documents() -> None:
    passages = [("a#1", 3.0), ("b#12", 2.0), ("a!#0", 2.0), ("a#b#7", 2.0), ("a#0", 1.5), ("b#0", 1.0), ("c", -1.0)]
    ranking, best = fold_passages(Ranking.of(passages), 9)
    assert ranking == [("a", 3), ("b", 2), ("a!", 2), ("a#b", 2), ("c", -1)]
    assert best == {"a": "a#1", "b": "b#12", "a!": "a!#0", "a#b": "a#b#7", "c": "c"}
    assert fold_passages(Ranking.of(passages), 2).ranking == ranking[:2]
    assert fold_passages(ranking, 9).ranking == ranking and fold_passages(NO_HITS, 9).ranking == []
