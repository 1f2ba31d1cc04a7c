"""The command: what it prints, what it needs, and what it refuses."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from cai_pyserini.cli.export import FORMATS, main
from cai_pyserini.core import packages
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin.source import Source
from tests.plugin.conftest import BY_HAND, stored_impacts


def test_ciff_by_command(impacts_by_hand: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "ciff"
    for _ in range(2):
        main(["ciff", "--impacts", str(impacts_by_hand), "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{output}: 5 documents, 7 impacts, 0.00 MB")
    assert lines[1] == "not in this format:"
    assert lines[2].startswith("  quantization of the impacts: relative error 0.00%")
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_a_folder_without_impacts_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"has no manifest: name a finished output of `cai-pyserini stage impact`"):
        main(["ciff", "--impacts", str(tiny), "--output", str(tmp_path / "ciff")])


def test_a_broken_line_is_named_and_nothing_is_left(impacts_by_hand: Path, tmp_path: Path) -> None:
    file = impacts_by_hand / "00001.jsonl"
    file.write_text(file.read_text().replace("300", "  0"))
    for format in ("ciff", "seismic"):
        with pytest.raises(CaiError, match=r"00001.jsonl:1: the impact of 'é' is 0"):
            main([format, "--impacts", str(impacts_by_hand), "--output", str(tmp_path / format)])
    assert {path.name for path in tmp_path.iterdir()} == {"impacts"}


@pytest.mark.parametrize("format", [name for name, format in FORMATS.items() if format.needs])
def test_a_missing_package_is_named_with_the_extra(
    format: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = FORMATS[format].needs[0]
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(CaiError, match=rf"{missing}.* not installed: .*\[export\]"):
        main([format, "--impacts", str(tmp_path), "--uri", "x.db", "--output", str(tmp_path / "x")])


def test_a_concurrent_update_changes_nothing(impacts_by_hand: Path, checkpoint: Path, tmp_path: Path) -> None:
    """The fault: the files are of the new version, but the encoder and the counts of the old one."""
    changed = stored_impacts(checkpoint, tmp_path / "changed", [BY_HAND], version=2)
    (tmp_path / "now").symlink_to(impacts_by_hand)
    source = Source(tmp_path / "now")
    (tmp_path / "next").symlink_to(changed)
    (tmp_path / "next").replace(tmp_path / "now")
    assert [id for id, _ in source.documents()] == [*BY_HAND, "d5"]


def test_fewer_documents_than_the_manifest_says_are_refused(impacts_by_hand: Path) -> None:
    manifest = impacts_by_hand / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"vectors": 5', '"vectors": 6'))
    with pytest.raises(CaiError, match="impacts has 5 documents, its manifest says 6"):
        list(Source(impacts_by_hand).documents())


def test_impacts_of_a_checkpoint_that_has_changed_are_refused(
    impacts_by_hand: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    (other / "config.json").write_text((other / "config.json").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    (impacts_by_hand / "encoder.yaml").write_text(f"checkpoint: {other}\nrange: 10.0\n")
    with pytest.raises(
        CaiError, match=r"impacts was not encoded as impacts encodes documents \(the checkpoint changed\): make"
    ):
        Source(impacts_by_hand)
