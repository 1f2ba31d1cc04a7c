"""The check step: counts, and truncation of long documents."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.check import Reading, check
from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import MIN_LOST


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) + 2 for text in texts]


def checked(collection: Collection, output: Path, *reading: object) -> artifact.Stats:
    path = check(collection, "test", output, Reading(words, *reading) if reading else None)
    stats = artifact.require(path, "beir").stats
    assert json.loads(path.read_text()) == {key: value for key, value in stats.items() if key != "seconds"}
    return stats


def test_truncation_is_counted_and_warned_of(tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collection = BeirFolder(tiny, "tiny")
    lengths = words([document.contents for document in collection.documents()])
    with caplog.at_level(logging.WARNING):
        checked(collection, tmp_path / "all.json")
        stats = checked(collection, tmp_path / "whole.json", max(lengths), "digest")
        assert (stats["documents"], stats["cut"], stats["lost"]) == (12, 0, 0)
        stats = checked(collection, tmp_path / "most.json", max(lengths) - 1, "digest")
        assert 0 < stats["lost"] < MIN_LOST and not caplog.records
        stats = checked(collection, tmp_path / "check.json", 10, "digest")
    cut = [length - 10 for length in lengths if length > 10]
    assert 2 < stats["cut"] == len(cut) < 12
    assert stats["lost"] == pytest.approx(sum(cut) / sum(lengths))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        f"{len(cut)} of 12 documents ({100 * len(cut) / 12:.0f}%) are cut off after 10 word pieces; "
        f"{100 * stats['lost']:.1f}% of the text is lost: choose shorter ones"
    )


def test_large_collections_are_sampled_evenly(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting all tokens of half a million documents takes as long as IDF."""
    monkeypatch.setattr("cai_pyserini.collections.check.SAMPLE_SIZE", 5)
    collection = BeirFolder(tiny, "tiny")
    lengths = words([document.contents for document in collection.documents()])[::3]
    cut = [length - 10 for length in lengths if length > 10]
    with caplog.at_level(logging.WARNING):
        stats = checked(collection, tmp_path / "check.json", 10, "digest")
    assert stats["cut"] == 3 * len(cut) > 0
    assert stats["lost"] == pytest.approx(sum(cut) / sum(lengths))
    assert caplog.records[-1].getMessage().startswith(f"about {stats['cut']} of 12 documents (")


def test_passages_that_are_too_long_are_counted(tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stats = checked(BeirFolder(tiny, "tiny", ["text"]).in_passages(6, 0), tmp_path / "check.json", 7, "digest")
    assert (stats["documents"], stats["cut"], stats["passages"]) == (12, 24, 26)
    assert caplog.records[-1].getMessage().startswith(f"{stats['cut']} of {stats['passages']} passages (")


def test_another_encoder_counts_again(tiny: Path, tmp_path: Path) -> None:
    digests = {
        artifact.require(check(BeirFolder(tiny, "tiny"), "test", tmp_path / "check.json", reading), "beir").digest
        for reading in (None, Reading(words, 10, "a"), Reading(words, 11, "a"), Reading(words, 10, "b"))
    }
    assert len(digests) == 4
