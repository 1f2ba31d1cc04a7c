"""The list of analyses and their help."""

from importlib import import_module
from pathlib import Path

import pytest

from cai_pyserini.cli.analyse import ANALYSES as KINDS
from cai_pyserini.cli.analyse import main
from cai_pyserini.core.errors import CaiError


@pytest.mark.parametrize("name", KINDS)
def test_each_analysis_is_a_function_of_its_module(name: str) -> None:
    assert callable(getattr(import_module(f"cai_pyserini.analysis.{name}"), name))


@pytest.mark.parametrize("name", ["cost", "efficiency"])
def test_a_folder_without_runs_is_named(name: str, run_folder: Path, tmp_path: Path) -> None:
    """The faults: an empty table; a missing run folder is treated as one without runs; after an update without
    --evaluate, no remedy."""
    (tmp_path / "file").touch()
    (tmp_path / "updated").mkdir()
    for part in ("indexes", "results.json", "collection.json", "collection.json.manifest.json"):
        (tmp_path / "updated" / part).symlink_to(run_folder / part)
    messages = {"file": "`cai-pyserini run` makes a run", "updated": "has no (run|scores)"}
    for folder, message in messages.items():
        with pytest.raises(CaiError, match=rf"{folder}:? {message}"):
            main([name, str(tmp_path / folder), "--output", str(tmp_path / "out")])
    with pytest.raises(CaiError, match=r"no folder .*/nothing: "):
        main([name, str(tmp_path / "nothing"), "--output", "out"])
    with pytest.raises(CaiError, match="file is a file: choose a folder for the output"):
        main([name, str(tmp_path / "updated"), "--output", str(tmp_path / "file")])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_runs_of_documents_that_have_changed_are_refused(
    run_folder: Path, tiny: Path, broken: Path, tmp_path: Path
) -> None:
    """The fault: runs are analysed with documents or grades other than those they were searched in."""
    runs = [str(run_folder / "runs" / f"{system}.trec") for system in ("bm25", "splade-idf")]
    main(["rsj", "--collection", str(tiny), "--trec", *runs, "--output", str(tmp_path / "out")])
    corpus = broken / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("Aromatase", "Estrogen synthase"))
    with pytest.raises(CaiError, match=r"bm25\.trec is of other documents than the current ones: search again"):
        main(["rsj", "--collection", str(broken), "--trec", *runs, "--output", str(tmp_path / "out")])
