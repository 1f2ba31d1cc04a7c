"""A run folder with only runs and an index, and queries to judge."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.engine.open import open_systems
from cai_pyserini.runs.trec import run_of, write_run

SYSTEMS = ["bm25", "joint"]
RELEVANT = {  # query -> the relevant document
    "bran of cereals against tumours": "d1",
    "does fiber lower the risk of cancer?": "d2",
    "which chemicals prevent breast cancer?": "d3",
    "bladder infection": "d4",
    "salt and blood pressure": "d5",
    "heart attack of a runner": "d6",
    "taking out the tonsils": "d7",
    "mosquitoes and parasites": "d8",
    "sugar in the blood": "d9",
    "sleep and obesity": "d10",
    "lozenges against a cold": "d11",
    "insulin and diabetes": "d9",
}


@pytest.fixture(scope="package")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("topics") / "topics.jsonl"
    records = ({"_id": f"q/{number}", "text": text} for number, text in enumerate(RELEVANT, 1))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="package")
def judged_run(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index and the runs of two systems for these queries."""
    folder = tmp_path_factory.mktemp("judged")
    shutil.copytree(run_folder / "indexes" / "bm25", folder / "indexes" / "bm25")
    engines = open_systems([run_folder], SYSTEMS)
    for name, engine in engines.items():
        rankings = engine.search(list(RELEVANT), 4)
        hits = {f"q/{n}": [(hit.id, hit.score) for hit in ranking] for n, ranking in enumerate(rankings, 1)}
        write_run(run_of(hits), folder / "runs" / f"{name}.trec", name)
    for engine in engines.values():
        engine.close()
    return folder
