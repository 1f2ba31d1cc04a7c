"""Feedback by hand, and in the search stage."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import Hits, read_run, scores_by_query
from cai_pyserini.encode.queries import Query
from cai_pyserini.impact.impacts import impacts_of_index
from cai_pyserini.retrieval.feedback import Feedback, largest
from cai_pyserini.retrieval.search import queries_for, search
from cai_pyserini.search.__main__ import main
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stored_vectors

slow = pytest.mark.slow

# Documents a, b and c; of length 5, 10 and 2.
ROWS = [[3, 4, 0, 0], [0, 0, 10, 0], [0, 0, 0, 2]]


def sparse(rows: Sequence[Sequence[float]]) -> csr_matrix:
    return csr_matrix(np.array(rows, np.float32))


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """ROWS in two shards."""
    return stored_vectors(tmp_path / "vectors", sparse(ROWS[:2]), sparse(ROWS[2:])).folder


def test_worked_example(vectors: Path) -> None:
    queries = sparse([[6, 0, 0, 8], [0, 1, 0, 0]])  # of length 10 and 1
    found: list[Hits] = [[("a", 9.0), ("b", 8.0), ("c", 7.0)], [("c", 2.0)]]
    # 3/4 of the query, and 1/4 of its length in the direction of the documents, of which each counts as much:
    # a/5 = (.6, .8, 0, 0), b/10 = (0, 0, 1, 0); c is beyond the second.
    assert Feedback(vectors, documents=2).expand(queries, found).toarray() == pytest.approx(
        np.array([[4.5 + 2.5 * 0.3, 2.5 * 0.4, 2.5 * 0.5, 6], [0, 0.75, 0, 0.25]])
    )


def test_a_query_stays_as_it_is_where_nothing_is_found(vectors: Path) -> None:
    queries = sparse([[6, 0, 0, 8], [0, 1, 0, 0], [0, 0, 0, 0]])
    settings = Feedback(vectors, terms=1)
    assert settings.expand(queries, [[], [("a", 1.0)], [("b", 1.0)]]).toarray()[[0, 2]].tolist() == [
        [6, 0, 0, 8],
        [0, 0, 0, 0],
    ]
    assert (settings.expand(queries, [[], [], []]) != queries).nnz == 0


def test_no_more_terms_than_the_budget_or_the_query_has(vectors: Path) -> None:
    queries = sparse([[1, 0, 0, 0], [1, 1, 1, 0]])
    hits: list[Hits] = [[("a", 2.0), ("b", 1.0), ("c", 0.5)]] * 2
    for terms, expected in ((1, [1, 3]), (2, [2, 3]), (64, [4, 4])):
        assert np.diff(Feedback(vectors, terms=terms).expand(queries, hits).indptr).tolist() == expected
    (first,) = Feedback(vectors, terms=1).expand(queries[:1], hits[:1]).toarray()
    assert first.tolist() == [pytest.approx(0.75 + 0.25 * 0.6 / 3), 0, 0, 0]


def test_the_largest_entries() -> None:
    matrix = sparse([[1, 5, 3, 2], [0, 0, 0, 0], [4, 0, 7, 0], [2, 2, 0, 9]])
    assert largest(matrix, np.array([2, 3, 9, 1])).toarray().tolist() == [
        [0, 5, 3, 0],
        [0, 0, 0, 0],
        [4, 0, 7, 0],
        [0, 0, 0, 9],
    ]
    assert largest(matrix, np.zeros(4, int)).nnz == 0


def test_a_document_without_a_vector_is_named(vectors: Path) -> None:
    with pytest.raises(CaiError, match=f"{vectors} has no vector of document 'x': give those of the index"):
        Feedback(vectors).expand(sparse([[1, 0, 0, 0]]), [[("a", 1.0), ("x", 0.5)]])


def test_a_recipe_has_the_settings_and_the_vectors(vectors: Path, tmp_path: Path) -> None:
    other = stored_vectors(tmp_path / "other", sparse(ROWS), checkpoint="another").folder
    settings = [Feedback(vectors), Feedback(vectors, 5), Feedback(vectors, weight=0.5), Feedback(vectors, terms=9)]
    digests = [artifact.digest(feedback.recipe) for feedback in (*settings, Feedback(other))]
    assert len(set(digests)) == 5


@dataclass(frozen=True)
class Recorded(Feedback):
    """Feedback that keeps the hits of the first search."""

    found: list[list[str]] = field(default_factory=list)

    def expand(self, queries: csr_matrix, found: list[Hits]) -> csr_matrix:
        self.found.extend([id for id, _ in hits] for hits in found)
        return super().expand(queries, found)


@slow
@pytest.mark.parametrize("remove_query", [True, False])
def test_a_query_that_is_a_document_gives_itself_no_feedback(
    remove_query: bool, run_folder: Path, tiny: Path, tmp_path: Path
) -> None:
    index = run_folder / "indexes" / "joint-splade-idf"
    queries = queries_for(index, BeirFolder(tiny, "tiny").topics("test"))
    feedback = Recorded(run_folder / "vectors" / "documents", documents=2)
    search(index, queries, tmp_path / "run.trec", remove_query=remove_query, feedback=feedback)
    # The best of the first search are those of the search without feedback.
    whole = scores_by_query(read_run(run_folder / "runs" / "joint-splade-idf.trec"))
    expected = {query: list(hits)[:2] for query, hits in whole.items()}
    for query, found in zip(queries.topics, feedback.found, strict=True):
        if query == "d8" and not remove_query:
            assert found[0] == "d8" and found[1:2] == expected["d8"][:1]
        else:
            assert found[:2] == expected[query]


@slow
@pytest.mark.parametrize("kind", ["splade", "bow"])
@pytest.mark.parametrize("name", ["splade-idf", "joint-splade-idf"])
def test_the_run_has_the_scores_of_the_moved_queries(
    kind: str, name: str, run_folder: Path, tiny: Path, tmp_path: Path
) -> None:
    """The words of BM25 stay as they are."""
    index, vectors = run_folder / "indexes" / name, run_folder / "vectors" / "documents"
    queries = queries_for(index, BeirFolder(tiny, "tiny").topics("test"), query=kind)
    feedback = Recorded(vectors, documents=3, weight=0.5)
    run = scores_by_query(read_run(search(index, queries, tmp_path / "run.trec", feedback=feedback)))
    (documents,) = impacts_of_index(index, vectors, run_folder / "words", run_folder / "expansion")
    terms = impacts_of_index(index, vectors, run_folder / "words", run_folder / "expansion").terms
    hits: list[Hits] = [[(id, 0.0) for id in found] for found in feedback.found]
    moved = Feedback(vectors, documents=3, weight=0.5).expand(queries.encoded.vectors, hits)
    plain, expanded = queries.for_search(100)[0], queries.for_search(100, moved)[0]
    stats = artifact.require(index, "index").stats
    for id, query in expanded.items():
        assert isinstance(query, dict) and words(query) == words(plain[id])
        weights = np.array([query.get(term, 0) for term in terms])
        scores = documents.vectors @ weights / (stats["document_scale"] * 100)
        expected = {d: score for d, score in zip(documents.ids, scores.tolist(), strict=True) if score}
        assert run.get(id, {}) == pytest.approx(expected, abs=2e-6)
    assert run != scores_by_query(read_run(run_folder / "runs" / f"{name}.trec"))


def words(query: Query) -> dict[str, int]:
    assert isinstance(query, dict)
    return {term: weight for term, weight in query.items() if term.startswith("bm25:")}


@slow
def test_searched_again_only_where_a_setting_of_feedback_changes(run_folder: Path, tiny: Path, tmp_path: Path) -> None:
    index, vectors = run_folder / "indexes" / "splade", run_folder / "vectors" / "documents"
    queries = queries_for(index, BeirFolder(tiny, "tiny").topics("test"), query="bow")

    def digest(feedback: Feedback | None) -> str:
        run = search(index, queries, tmp_path / "run.trec", feedback=feedback)
        return artifact.require(run, "search").digest

    settings = [None, Feedback(vectors), Feedback(vectors, 5), Feedback(vectors, weight=0.5), Feedback(vectors)]
    digests = [digest(feedback) for feedback in settings]
    assert len(set(digests)) == 4 and digests[1] == digests[4]


@slow
@pytest.mark.parametrize("name, vectors", [("bm25", "documents"), ("splade", "other"), ("splade", "dense")])
def test_vectors_that_do_not_suit_the_index_are_refused(
    name: str, vectors: str, run_folder: Path, tmp_path: Path
) -> None:
    index = run_folder / "indexes" / name
    documents = run_folder / "vectors" / "documents"
    checkpoint = Vectors(documents).manifest.recipe["checkpoint"]
    folder = {
        "documents": documents,
        "other": stored_vectors(tmp_path / "other", sparse(ROWS)).folder,
        "dense": stored_vectors(tmp_path / "dense", np.eye(2), kind="dense", checkpoint=checkpoint).folder,
    }[vectors]
    with pytest.raises(CaiError, match=f"feedback takes the raw SPLADE vectors that {index} was made from"):
        search(
            index, queries_for(index, {"q": "cancer"}, query="bow"), tmp_path / "run.trec", feedback=Feedback(folder)
        )


@slow
def test_command(run_folder: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run.trec"
    paths = ["--index", run_folder / "indexes" / "splade-idf", "--collection", tiny, "--output", output]
    settings = ["--feedback-documents", 3, "--feedback-weight", 0.5, "--feedback-terms", 9, "--query", "bow"]
    main([*map(str, [*paths, "--feedback", run_folder / "vectors" / "documents", *settings])])
    assert capsys.readouterr().out.startswith(f"{output}: 5 queries, ")
    assert artifact.require(output, "search").recipe["feedback"]["settings"] == [3, 0.5, 9]
