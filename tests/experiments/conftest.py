"""A finished run on a collection that may be changed."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.conftest import json_lines

SYSTEMS = ["bm25", "splade-idf", "joint", "hybrid-splade-idf-minmax"]


def on_collection(run: Path, collection: Path, copy: Path, systems: Collection[str] = ()) -> Path:
    """A copy of a run, as if it had been made on a copy of its collection, and of these systems only."""
    shutil.copytree(run, copy)
    results = json.loads((copy / "results.json").read_text())
    results["settings"]["collection"]["source"] = str(collection)
    if systems:
        results["systems"] = {name: results["systems"][name] for name in systems}
        results["searches"] = {index: name for index, name in results["searches"].items() if name in systems}
    (copy / "results.json").write_text(json.dumps(results))
    return copy


def change(collection: Path) -> None:
    """Delete a document, change one, and add one in their midst."""
    documents = json_lines(collection / "corpus.jsonl")
    documents[1]["text"] += " Resistant starch does as well."
    documents[5:5] = [{"_id": "new", "title": "Bladder infection", "text": "Cranberries do not cure an infection."}]
    del documents[-1]
    (collection / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))


@pytest.fixture
def run(run_folder: Path, broken: Path, tmp_path: Path) -> Path:
    """A finished run of some systems on the collection `broken`."""
    return on_collection(run_folder, broken, tmp_path / "runs" / "tiny", SYSTEMS)
