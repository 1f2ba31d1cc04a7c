"""Another engine is one class and one entry of a table: it is searched, explained and served as Lucene is."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.engine.open import open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.engines import ENGINES
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.service.app import create_app
from cai_pyserini.service.queue import Service
from cai_pyserini.vectors.queries import Query

pytestmark = pytest.mark.slow
QUERIES = ["bladder infection", "dietary phytate and cancer", "high blood pressure", "quux"]


class SparseProduct(Searcher):
    """Impacts in memory, scored by the product of a sparse matrix."""

    engine = "SciPy"

    def __init__(self, index: Path):
        super().__init__(index)
        records = [json.loads(line) for path in sorted(self.name.glob("*.jsonl")) for line in path.open()]
        self._rows = {record["id"]: record["vector"] for record in records}
        self._columns: dict[str, int] = {}
        cells = [
            (row, self._columns.setdefault(term, len(self._columns)), impact)
            for row, vector in enumerate(self._rows.values())
            for term, impact in vector.items()
        ]
        rows, columns, impacts = zip(*cells, strict=True)
        self._matrix = csr_matrix((impacts, (rows, columns)), shape=(len(self._rows), len(self._columns)))

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Iterator[Ranking]:
        ids = np.array([*self._rows], object)
        for query in queries:
            assert isinstance(query, Mapping)
            weights = np.zeros(len(self._columns))
            for term in query.keys() & self._columns.keys():
                weights[self._columns[term]] = query[term]
            scores = self._matrix @ weights
            best = [row for row in np.lexsort([ids.astype(str), -scores]) if scores[row] > 0][:hits]
            yield Ranking(ids[best], scores[best] / (self.query_scale * self.document_scale))

    def impacts(self, ids: Sequence[str], terms: Sequence[str]) -> dict[str, dict[str, int]]:  # type: ignore[override]
        rows = {id: self._rows[id] for id in ids if id in self._rows}
        return {id: {term: row[term] for term in terms if term in row} for id, row in rows.items()}


@pytest.fixture(scope="module")
def engines(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """The joint index of a run in Lucene, and the same impacts in the other engine."""
    lucene, impacts = (run_folder / kind / "joint-splade-idf" for kind in ("indexes", "impacts"))

    def write(folder: Path) -> artifact.Stats:
        for path in (lucene / "encoder.yaml", *impacts.glob("*.jsonl")):
            shutil.copy(path, folder)
        return artifact.require(lucene, "index").stats | {"kind": "scipy", "metadata": {}}

    index = tmp_path_factory.mktemp("third") / "joint"
    artifact.make(index, artifact.recipe("index", {"impacts": "joint"}, "impact", kind="scipy"), write)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINES, "scipy", lambda index, options: SparseProduct(index))
        yield {"lucene": open_index(lucene), "scipy": open_index(index)}


def test_it_finds_and_explains_what_lucene_does(engines: dict[str, Engine]) -> None:
    for query in QUERIES:
        lucenes, ours = ([(hit.id, hit.score) for hit in engine.search(query, k=20)] for engine in engines.values())
        assert ours == [(id, pytest.approx(score, rel=1e-6)) for id, score in lucenes]
        for one, other in zip(*(engine.describe(query) for engine in engines.values()), strict=True):
            assert one.explanation.terms == other.explanation.terms


def test_it_is_served(engines: dict[str, Engine]) -> None:
    """What it cannot do is refused, and everything else does without."""
    with TestClient(create_app(Service(lambda: engines))) as client:
        answers = [client.get(f"/v1/{name}/search?query=bladder infection").json() for name in engines]
        lucenes, ours = ([(hit["docid"], hit["score"]) for hit in answer["candidates"]] for answer in answers)
        assert ours == [(id, pytest.approx(score, rel=1e-6)) for id, score in lucenes] != []
        answers = [client.get(f"/v1/{name}/explain?query=cancer&docid=d1").json() for name in engines]
        assert answers[0]["explanation"]["terms"] == answers[1]["explanation"]["terms"] != []
        assert client.get("/?a=scipy&q=cancer").status_code == 200
        assert client.get("/v1/scipy/search?query=cancer&snippets=true").json()["candidates"]
        refused = client.get("/v1/scipy/search?query=cancer&filter=year>2000")
        assert refused.status_code == 400 and "cannot be filtered" in refused.json()["error"]
