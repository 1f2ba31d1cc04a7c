"""From vectors to a search, with every artifact in an object store; the same as on this machine."""

from pathlib import Path

import pytest

from cai_pyserini.cli.search import main as search
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath
from tests.conftest import stage_command

encode = stage_command("encode")
idf = stage_command("idf")
impact = stage_command("impact")
index = stage_command("index")
near = stage_command("near")
write_run = stage_command("search")
smooth = stage_command("near-documents")
words = stage_command("words")

pytestmark = pytest.mark.slow


def pipeline(collection: Path, root: Path, run: Path) -> None:
    """Search an index of the collection, with all artifacts in the folder `root`."""
    what = ["--collection", str(collection)]
    encoder = ["--encoder", "splade-tiny"]
    encode([*what, *encoder, "--output", f"{root}/vectors", "--precision", "float32", "--device", "cpu"])
    idf([*what, *encoder, "--output", f"{root}/idf"])
    impact(["--vectors", f"{root}/vectors", "--idf", f"{root}/idf", *encoder, "--output", f"{root}/impacts"])
    index(["impact", "--input", f"{root}/impacts", *what, "--output", f"{root}/index"])
    write_run(["--index", f"{root}/index", *what, "--output", str(run)])
    encode([*what, "--encoder", "minilm", "--output", f"{root}/dense", "--device", "cpu"])
    index(["dense", "--vectors", f"{root}/dense", "--output", f"{root}/dense-index"])
    dense_run = ["--encoder", "minilm", "--output", str(run.with_suffix(".dense"))]
    write_run(["--index", f"{root}/dense-index", *what, *dense_run])


def test_all_stages_in_a_store(
    tiny: Path,
    bucket: StorePath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    java: None,
) -> None:
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    runs = [tmp_path / name for name in ("here.trec", "there.trec")]
    for root, run in zip((tmp_path, bucket), runs, strict=True):
        pipeline(tiny, root, run)
    for suffix in (".trec", ".dense"):
        here, there = (run.with_suffix(suffix).read_text() for run in runs)
        assert here == there != ""
    for file in ("impacts/00000.jsonl", "vectors/00000.npz", "idf/idf.npz"):
        here, there = ((root / file).open("rb").read() for root in (tmp_path, bucket))
        assert here == there or file.startswith("vectors")  # whose statistics have the time
    for stage in ("idf", "impacts"):
        assert artifact.read_manifest(bucket / stage).digest == artifact.read_manifest(tmp_path / stage).digest
    assert load_encoder(f"{bucket}/impacts").idf == f"{bucket}/idf"

    (downloaded,) = (tmp_path / "cache" / "indexes").glob("*/index")
    assert load_encoder(str(downloaded)).idf == f"{bucket}/idf"
    written = downloaded.stat().st_ctime_ns
    capsys.readouterr()
    search(["short fingers", "--index", f"{bucket}/index", "--format", "json"])
    there = capsys.readouterr().out
    search(["short fingers", "--index", f"{tmp_path}/index", "--format", "json"])
    assert there == capsys.readouterr().out != ""
    assert downloaded.stat().st_ctime_ns == written

    assert not any(path.name.startswith("s3:") for path in tmp_path.iterdir())


def test_what_is_refused(
    tiny: Path, bucket: StorePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    what = ["--collection", str(tiny)]
    with pytest.raises(CaiError, match=r"^s3://nowhere/vectors/.unfinished cannot be written .The specified bucket"):
        encode([*what, "--encoder", "splade-tiny", "--output", "s3://nowhere/vectors"])
    with pytest.raises(SystemExit, match="2"):
        words([*what, "--output", f"{bucket}/words"])
    out, err = capsys.readouterr()
    assert out == "" and f"--output: '{bucket}/words' is in an object store, which is not supported here" in err
    with pytest.raises(CaiError, match=rf"^{bucket}/impacts: no \*.jsonl; make JSON vectors"):
        index(["impact", "--input", f"{bucket}/impacts", "--output", "index"])
    with pytest.raises(CaiError, match=f"{bucket}/index is missing"):
        search(["fingers", "--index", f"{bucket}/index"])
    assert not list(tmp_path.iterdir())
