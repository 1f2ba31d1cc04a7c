"""Exports for Pyserini without this package."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.cli.plugin import main
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin.encoder import ship_encoder
from cai_pyserini.plugin.export import export_encoder
from tests.conftest import json_lines
from tests.plugin.conftest import scores, search_topics


def test_topics_are_written_as_text_and_encoded(topics: Path) -> None:
    written = json.loads((topics / "topics.json").read_text())
    assert list(written) == ["q1", "q2", "q3", "q4", "d8"] and written["q2"] == {"title": "bladder infection"}
    bags = {record["id"]: record for record in json_lines(topics / "splade-doc.jsonl")}
    assert bags["q2"] == {"id": "q2", "contents": "bladder infection", "vector": {"bladder": 100, "infection": 100}}
    splade = json_lines(topics / "splade.jsonl")
    assert [record["contents"] for record in splade] == [topic["title"] for topic in written.values()]
    assert all(len(record["vector"]) > 2 for record in splade)


@pytest.mark.slow
def test_exports_that_pyserini_cannot_use_are_refused(java: None, joint: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="knows a SPLADE encoder by `splade` in its name; rename the folder"):
        export_encoder(load_encoder("splade-tiny"), tmp_path / "SPLAT")
    with pytest.raises(CaiError, match="would leave the words of BM25 out of queries; use `export-topics` instead"):
        export_encoder(load_encoder(str(joint)), tmp_path / "splade")
    assert not (tmp_path / "SPLAT").exists() and not (tmp_path / "splade").exists()


def test_a_checkpoint_without_a_tokenizer_is_not_written(checkpoint: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "vocab*")))
    for write in (export_encoder, lambda config, output: ship_encoder(str(bare), output, "mit")):
        with pytest.raises(CaiError, match=r"bare: no tokenizer \(tokenizer\.json\) in this folder"):
            write(load_encoder(str(bare)), tmp_path / "splade")
    assert not (tmp_path / "splade").exists()


def test_commands(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, output = ["--encoder", "splade-tiny"], tmp_path / "a-splade"
    main(["export-encoder", *encoder, "--output", str(output)])
    assert {"pytorch_model.bin", "config.json", "tokenizer.json"} <= {path.name for path in output.iterdir()}
    assert not list(output.glob("*.safetensors"))
    collection = ["--collection", str(tiny), "--split", "train", "--device", "cpu"]
    main(["export-topics", *encoder, *collection, "--output", str(tmp_path / "topics")])
    assert capsys.readouterr().out == f"{output}\n{tmp_path / 'topics'}\n"
    assert set(json.loads((tmp_path / "topics" / "topics.json").read_text())) == {"t1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "index, file, name",
    [
        ("joint-splade-idf", "splade.jsonl", "joint-splade-idf"),
        ("joint-splade-idf", "splade-doc.jsonl", "joint-splade-doc-idf"),
    ],
)
def test_stock_pyserinis_searcher_with_exported_topics(
    index: str, file: str, name: str, java: None, run_folder: Path, tiny: Path, tmp_path: Path
) -> None:
    from pyserini.encode import CachedDataQueryEncoder

    folder = run_folder / "indexes" / index
    main(["export-topics", "--encoder", str(folder), "--collection", str(tiny), "--output", str(tmp_path / "topics")])
    encoder = CachedDataQueryEncoder(str(tmp_path / "topics" / file))
    assert type(encoder).__module__.startswith("pyserini.")
    found = search_topics(folder, encoder, tiny, min_idf=-1)
    assert found == pytest.approx(scores(run_folder / "runs" / f"{name}.trec"), abs=2e-6)


@pytest.mark.slow
def test_stock_pyserini_with_an_exported_encoder(java: None, tmp_path: Path) -> None:
    from pyserini.encode import SpladeQueryEncoder

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    stock = SpladeQueryEncoder(str(export_encoder(load_encoder("splade-tiny"), tmp_path / "splade-tiny-stock")))
    assert type(stock).__module__ == "pyserini.encode._splade"
    ours = CaiQueryEncoder("splade-tiny").encode("infection of the bladder")
    theirs = {term: weight for term, weight in stock.encode("infection of the bladder").items() if weight}
    assert set(ours) >= set(theirs) and len(theirs) > 3
    for term, weight in theirs.items():  # Pyserini's weights are round(w / 5 * 256), ours round(w * 100)
        assert weight / 51.2 == pytest.approx(ours[term] / 100, abs=0.5 / 51.2 + 0.5 / 100 + 1e-4)
