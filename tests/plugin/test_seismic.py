"""An index of Seismic."""

from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.plugin.seismic import write_seismic
from cai_pyserini.plugin.source import Source
from tests.conftest import json_lines
from tests.plugin.conftest import Rankings


@pytest.mark.slow
def test_seismic_finds_the_best_documents_of_lucene(
    java: None, impacts: Path, queries: dict[str, str], expected: Rankings, tmp_path: Path
) -> None:
    seismic = pytest.importorskip("seismic")
    Source(impacts, queries).export(tmp_path / "seismic", write_seismic, "seismic")
    index = seismic.SeismicIndex.build(str(tmp_path / "seismic" / "documents.jsonl"), summary_energy=1.0)
    for record in json_lines(tmp_path / "seismic" / "queries.jsonl"):
        terms, weights = zip(*record["vector"].items(), strict=True)
        best = sorted(expected[record["id"]].values(), reverse=True)[:5]
        arguments = np.array(terms, seismic.get_seismic_string()), np.array(weights, np.float32)
        hits = index.search(record["id"], *arguments, k=5, query_cut=len(terms), heap_factor=1.0)
        assert [score for _, score, _ in hits][: len(best)] == pytest.approx(best, rel=2e-3)  # float16
        for _, score, id in hits[: len(best)]:
            assert score == pytest.approx(expected[record["id"]][id], rel=2e-3)


def test_seismic_gets_no_documents_without_impacts(impacts_by_hand: Path, tmp_path: Path) -> None:
    manifest = Source(impacts_by_hand).export(tmp_path / "seismic", write_seismic, "seismic")
    assert json_lines(tmp_path / "seismic" / "documents.jsonl")[3] == {"id": "d5", "content": "", "vector": {"é": 300}}
    assert "documents without any impact: 1; none of them matches a query" in manifest.stats["loses"]
