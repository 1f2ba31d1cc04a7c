"""JSONL for Seismic, which builds its index from it."""

from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.export.seismic import export_seismic
from cai_pyserini.export.source import Source
from tests.conftest import json_lines
from tests.export.conftest import Found


@pytest.mark.slow
def test_seismic_finds_the_best_documents_of_lucene(
    java: None, impacts: Path, topics: dict[str, str], expected: Found, tmp_path: Path
) -> None:
    seismic = pytest.importorskip("seismic")
    export_seismic(Source(impacts, topics), tmp_path / "seismic")
    index = seismic.SeismicIndex.build(str(tmp_path / "seismic" / "documents.jsonl"), summary_energy=1.0)
    for record in json_lines(tmp_path / "seismic" / "queries.jsonl"):
        terms, weights = zip(*record["vector"].items(), strict=True)
        best = sorted(expected[record["id"]].values(), reverse=True)[:5]
        arguments = np.array(terms, seismic.get_seismic_string()), np.array(weights, np.float32)
        hits = index.search(record["id"], *arguments, k=5, query_cut=len(terms), heap_factor=1.0)
        assert [score for _, score, _ in hits][: len(best)] == pytest.approx(best, rel=2e-3)  # it has float16
        for _, score, id in hits[: len(best)]:
            assert score == pytest.approx(expected[record["id"]][id], rel=2e-3)


def test_documents_without_impacts_are_left_out(impacts_by_hand: Path, tmp_path: Path) -> None:
    manifest = export_seismic(Source(impacts_by_hand), tmp_path / "seismic")
    assert json_lines(tmp_path / "seismic" / "documents.jsonl")[3] == {"id": "d5", "content": "", "vector": {"é": 300}}
    assert "documents without any impact: 1; none of them matches a query" in manifest.stats["loses"]
