"""What exports start from."""

import shutil
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.export.source import Source


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
    assert len(list(Source(impacts_by_hand).documents())) == 5
    encoder = impacts_by_hand / "encoder.yaml"
    lines = encoder.read_text(encoding="utf-8").splitlines()
    changed = [f"checkpoint: {other}" if line.startswith("checkpoint:") else line for line in lines]
    encoder.write_text("\n".join(changed), encoding="utf-8")
    with pytest.raises(CaiError, match=f"impacts was made with another checkpoint than {other}: make it again"):
        Source(impacts_by_hand)
