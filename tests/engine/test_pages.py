"""From a folder of files to hits with pages: run, search and update, as a user calls them."""

import json
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as run
from cai_pyserini.cli.search import main as search
from cai_pyserini.cli.update import main as update
from cai_pyserini.engine.open import Run
from cai_pyserini.engine.search import Engine
from tests.collections.test_file_folder import pdf

FILLER = "zinc " * 8
EMPTY = [""] * 3  # pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.pdf").write_bytes(pdf(f"Fever {FILLER}", *EMPTY, f"{FILLER} bladder infection {FILLER}", "Gout"))
    (folder / "d.pdf").write_bytes(pdf(*EMPTY, "Sprain", *EMPTY, "Ankle"))
    (folder / "b.md").write_text("# Gout\nPainful joints.")
    run([str(folder), "--output", str(folder / "run"), "--systems", "bm25", "--passages", "30"])
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Run(folder / "run")["bm25"]


@pytest.mark.slow
def test_a_hit_is_on_the_page_of_its_match(folder: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The passage begins on page 1, and matches on page 5. The fault: empty pages are not counted."""
    (described,) = engine.describe("bladder")
    assert (described.hit.id, described.hit.page, described.page) == ("a.pdf", 1, 5)
    (hit,) = engine.search("bladder", filter="type:pdf AND pages=6")
    (found,) = engine.find(["bladder"], filter="type:pdf AND pages=6")
    ((described, *_),) = [[*found.describe(found.hits)]]
    assert described.hit == hit and "bladder infection" in "".join(piece for piece, _ in described.snippet)
    assert {one.hit.id: one.page for one in engine.describe("gout")} == {"a.pdf": 6, "b.md": None}
    (described,) = engine.describe("ankle")
    assert (described.hit.id, described.hit.page, described.page) == ("d.pdf", 4, 8)
    search([str(folder / "run"), "bladder"])
    assert "     page 5: Fever zinc" in capsys.readouterr().out
    search([str(folder / "run"), "bladder", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["page"] == 5


@pytest.mark.slow
def test_an_update_adds_and_deletes_files(folder: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    update([str(folder / "run")])
    assert "is up to date" in capsys.readouterr().out
    (folder / "a.pdf").unlink()
    (folder / "c.html").write_text("<title>Colds</title><p>Zinc.")
    update([str(folder / "run")])
    updated = Run(folder / "run")["bm25"]
    assert {hit.id for hit in updated.search("zinc gout")} == {"b.md", "c.html"}
    assert updated.files and updated.files.has("c.html") and not updated.files.has("a.pdf")
