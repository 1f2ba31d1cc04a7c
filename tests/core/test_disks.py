"""Commands on full or read-only disks, mounted for the duration of a command."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Mount a disk, run a command, and print what is on the disk afterwards.
MOUNT = """
mount -t tmpfs -o "$1" tmpfs "$2" || exit 77
disk=$2; shift 2
"$@"
code=$?
find "$disk" -mindepth 1
exit $code
"""

OnDisk = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def on_disk(mounting: list[str], tmp_path: Path) -> OnDisk:
    """Run a command that must fail with --output on a disk, and return its error message and the files left."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(options: str, command: str, *arguments: object) -> tuple[str, list[str]]:
        shell = [*mounting, MOUNT, "sh", options, str(disk)]
        flags = [*command.split(), *map(str, arguments), "--output", str(disk / "out")]
        python = [sys.executable, "-m", "cai_pyserini", *flags]
        done = subprocess.run([*shell, *python], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode == 77:
            pytest.skip("a process may not mount here")
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        left = [Path(line).name for line in done.stdout.splitlines() if line.startswith(str(disk))]
        return done.stderr[done.stderr.index("error: ") :].strip(), left

    return run


@pytest.fixture
def abstracts(tmp_path: Path) -> Path:
    """A file of S2ORC's with 500 kB of abstracts."""
    path = tmp_path / "abstracts.jsonl"
    path.write_text("".join(json.dumps({"corpusid": i, "abstract": "word " * 100}) + "\n" for i in range(1000)))
    return path


def test_converting_onto_a_full_disk(on_disk: OnDisk, abstracts: Path) -> None:
    message, left = on_disk("size=64k", "convert", "s2orc", "--input", abstracts, "--min-words", 1)
    assert message == "error: No space left on device"
    assert left == [".out.files"]


def test_converting_onto_a_read_only_disk(on_disk: OnDisk, abstracts: Path, tmp_path: Path) -> None:
    message, _ = on_disk("ro", "convert", "s2orc", "--input", abstracts, "--min-words", 1)
    disk = tmp_path / "disk"
    assert message == f"error: {disk / 'out'} cannot be written: {disk} is read-only; choose another output"


@pytest.mark.slow
def test_encoding_onto_a_full_disk(on_disk: OnDisk, tiny: Path) -> None:
    model = ["--encoder", "splade-tiny", "--device", "cpu", "--precision", "float32"]
    message, left = on_disk("size=8k", "stage encode", "--collection", tiny, *model)  # no room for the manifest
    assert "No space left on device" in message
    assert set(left) <= {"out", ".unfinished", "00000.npz"}  # the next run uses the shard, if it is complete


@pytest.mark.slow
@pytest.mark.parametrize("size", ["900k", "1200k"])
def test_a_forward_index_onto_a_full_disk(size: str, on_disk: OnDisk, tmp_path: Path) -> None:
    """The disk is full when a process writes its part (880 kB), or when these are merged."""
    vectors = tmp_path / "vectors"
    vectors.mkdir()
    vector = {f"t{term}": 9 for term in range(50)}  # equal documents take little space in Lucene
    lines = (json.dumps({"id": f"d{number}", "vector": vector}) for number in range(2000))
    (vectors / "0.jsonl").write_text("".join(f"{line}\n" for line in lines))
    message, left = on_disk(f"size={size}", "stage index", "impact", "--forward-index", "--input", vectors)
    assert re.search("(?i)no space left on (the )?device", message)
    assert left == []
