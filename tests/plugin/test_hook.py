"""Our encoders inside Pyserini, and Pyserini's modules with them; all of it Pyserini's own, unmodified code."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from cai_pyserini import jvm, plugin
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from cai_pyserini.encoder import CaiDocumentEncoder, CaiQueryEncoder
from cai_pyserini.export import export_encoder, export_topics
from tests.conftest import Command, json_lines


@pytest.fixture(scope="module")
def topics(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test topics of the tiny collection in Pyserini's forms."""
    from cai_pyserini.config import load_encoder

    folder = tmp_path_factory.mktemp("export") / "topics"
    return export_topics(BeirFolder(tiny, "tiny").topics("test"), load_encoder("splade-tiny"), folder, "cpu")


def ranking(run: Path) -> list[tuple[str, str, str]]:
    """Query, document and rank of every hit, by query."""
    rows = [row.split() for row in run.read_text().splitlines()]
    return sorted(((r[0], r[2], r[3]) for r in rows), key=lambda row: (row[0], int(row[2])))


def search_arguments(index: Path, topics: Path, encoder: object, output: Path) -> list[object]:
    settings = ["--impact", "--hits", 1000, "--remove-query", "--output", output]
    return ["--index", index, "--topics", topics / "topics.json", "--encoder", encoder, *settings]


@pytest.mark.parametrize("name", ["splade", "splade-idf"])
def test_pyserinis_run_equals_ours(name: str, line: Path, topics: Path, tmp_path: Path, command: Command) -> None:
    arguments = search_arguments(line / "indexes" / name, topics, "splade-tiny", tmp_path / "run.trec")
    done = command("cai_pyserini", "-m", "pyserini.search.lucene", *arguments)
    assert done.returncode == 0, done.stderr
    assert ranking(tmp_path / "run.trec") == ranking(line / "runs" / f"{name}.trec")


def test_an_index_names_its_own_encoder(line: Path) -> None:
    jvm.start()
    from pyserini.search.lucene import LuceneImpactSearcher

    index = line / "indexes" / "splade-idf"
    by_name = LuceneImpactSearcher(str(index), "splade-tiny").search("bladder infection", 5)
    by_index = LuceneImpactSearcher(str(index), str(index)).search("bladder infection", 5)
    by_object = LuceneImpactSearcher(str(index), CaiQueryEncoder("splade-tiny")).search("bladder infection", 5)
    assert [(h.docid, h.score) for h in by_name] == [(h.docid, h.score) for h in by_index]
    assert [(h.docid, h.score) for h in by_name] == [(h.docid, h.score) for h in by_object]
    assert by_name[0].docid == "d4"


def test_an_index_of_another_encoder_is_refused(line: Path, checkpoint: Path, tmp_path: Path) -> None:
    import shutil

    from pyserini.search.lucene import LuceneImpactSearcher

    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    (tmp_path / "other.yaml").write_text("checkpoint: other\n")
    with pytest.raises(CaiError, match="built with another checkpoint"):
        LuceneImpactSearcher(str(line / "indexes" / "splade"), CaiQueryEncoder(str(tmp_path / "other.yaml")))
    with pytest.raises(CaiError, match="is no index of an encoder of ours"):
        LuceneImpactSearcher(str(line / "indexes" / "bm25"), CaiQueryEncoder("splade-tiny", query="bow"))


def test_our_search_refuses_it_too(line: Path, tiny: Path, checkpoint: Path, tmp_path: Path, command: Command) -> None:
    import shutil

    shutil.copytree(checkpoint, tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text((checkpoint / "config.json").read_text() + "\n")
    arguments = ["--index", line / "indexes" / "splade", "--collection", tiny, "--encoder", tmp_path / "other"]
    done = command("cai_pyserini.search", *arguments, "--output", tmp_path / "run.trec")
    assert done.returncode == 1 and "built with another checkpoint" in done.stderr
    assert not (tmp_path / "run.trec").exists()


def test_query_encoder() -> None:
    splade, bow = CaiQueryEncoder("splade-tiny"), CaiQueryEncoder("splade-tiny", query="bow")
    assert bow.encode("Cancer, cancer of the colon") == {"cancer": 200, ",": 100, "of": 100, "the": 100, "colon": 100}
    assert bow.model is None
    encoded = splade.encode("colon cancer")
    assert all(isinstance(weight, int) and weight > 0 for weight in encoded.values())
    assert {"colon", "cancer"} < set(encoded)
    assert splade.encode("cancer of the colon", max_length=3) == splade.encode("cancer")


def test_document_encoder_gives_what_the_collection_got(line: Path, tiny: Path) -> None:
    records = json_lines(tiny / "corpus.jsonl")
    impacts = {r["id"]: r["vector"] for r in json_lines(line / "impacts" / "splade-idf" / "00000.jsonl")}
    encoder = CaiDocumentEncoder(str(line / "impacts" / "splade-idf"))
    encoded = encoder.encode([r["text"] for r in records], titles=[r["title"] for r in records], max_length=256)
    assert encoded == [impacts[r["_id"]] for r in records]
    with pytest.raises(CaiError, match="add_sep"):
        encoder.encode(["text"], add_sep=True)


def test_pyserini_encodes_and_indexes_with_our_encoder(
    line: Path, tiny: Path, tmp_path: Path, command: Command
) -> None:
    encode = ["input", "--corpus", tiny / "corpus.jsonl", "--fields", "title", "text"]
    encode += ["output", "--embeddings", tmp_path / "vectors"]
    encode += ["encoder", "--encoder", line / "impacts" / "splade-idf" / "encoder.yaml", "--fields", "title", "text"]
    done = command("cai_pyserini", "-m", "pyserini.encode", *encode, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    ours = {r["id"]: r["vector"] for r in json_lines(line / "impacts" / "splade-idf" / "00000.jsonl")}
    theirs = {r["id"]: r["vector"] for r in json_lines(tmp_path / "vectors" / "embeddings.jsonl")}
    assert theirs == ours
    index = ["--collection", "JsonVectorCollection", "--input", tmp_path / "vectors", "--index", tmp_path / "index"]
    index += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", 1, "--impact", "--pretokenized"]
    done = command("cai_pyserini", "-m", "pyserini.index.lucene", *index)
    assert done.returncode == 0 and "Total 12 documents indexed" in done.stdout


def test_other_modules_of_pyserini(line: Path, tiny: Path, tmp_path: Path, command: Command) -> None:
    runs = [line / "runs" / "bm25.trec", line / "runs" / "splade-idf.trec"]
    done = command("cai_pyserini", "-m", "pyserini.fusion", "--runs", *runs, "--output", tmp_path / "rrf.trec")
    assert done.returncode == 0 and (tmp_path / "rrf.trec").stat().st_size
    qrels = [row.split("\t") for row in (tiny / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    (tmp_path / "qrels.txt").write_text("".join(f"{query} 0 {doc} {grade}\n" for query, doc, grade in qrels))
    arguments = ["-c", "-m", "ndcg_cut.10", tmp_path / "qrels.txt", line / "runs" / "splade.trec"]
    done = command("cai_pyserini", "-m", "pyserini.eval.trec_eval", *arguments)
    expected = json.loads((line / "results.json").read_text())["systems"]["splade"]["nDCG@10"]
    assert done.returncode == 0 and f"{expected:.4f}" in done.stdout


def test_pyserinis_own_encoders_stay_as_they_are(tmp_path: Path) -> None:
    from pyserini.encode import CachedDataQueryEncoder, TokFreqQueryEncoder

    assert TokFreqQueryEncoder().encode("a b a") == {"a": 2, "b": 1}
    (tmp_path / "queries.jsonl").write_text('{"id": "1", "contents": "q", "vector": {"a": 1}}\n')
    assert CachedDataQueryEncoder(str(tmp_path / "queries.jsonl")).encode("q") == {"a": 1}


def test_unknown_modules_and_usage(command: Command) -> None:
    assert command("cai_pyserini").returncode == 0
    assert "usage:" in command("cai_pyserini", "--help").stdout
    assert command("cai_pyserini", "something").returncode == 2
    done = command("cai_pyserini", "-m", "pyserini.nothing")
    assert done.returncode == 1 and "pyserini.nothing" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that sees the packages of this one: a place to enable the plugin in."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "outer.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in sys.path if "site-packages" in path)
    )
    return folder / "bin" / "python"


def test_enabled_plugin(environment: Path, line: Path, topics: Path, tmp_path: Path) -> None:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1"}

    def python(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(environment), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=clean, cwd=tmp_path, check=False)

    assert python("-m", "cai_pyserini.plugin", "status").returncode == 1
    enabled = python("-m", "cai_pyserini.plugin", "enable")
    assert enabled.returncode == 0 and str(environment.parent.parent) in enabled.stdout
    assert python("-m", "cai_pyserini.plugin", "status").returncode == 0
    for module in ("pyserini.search.lucene", "pyserini.search"):  # the second starts another interpreter
        run = tmp_path / f"{module}.trec"
        done = python("-m", module, *search_arguments(line / "indexes" / "splade-idf", topics, "splade-tiny", run))
        assert done.returncode == 0, done.stderr
        assert ranking(run) == ranking(line / "runs" / "splade-idf.trec")
    others = (
        "import sys; print(sorted(m for m in sys.modules if m.startswith(('cai', 'jnius', 'torch', 'typing', 'yaml'))))"
    )
    assert python("-c", others).stdout.strip() == "['cai_pyserini', 'cai_pyserini.registration']"
    assert python("-m", "cai_pyserini.plugin", "disable").returncode == 0
    assert python("-m", "cai_pyserini.plugin", "status").returncode == 1
    assert "cai_pyserini" not in python("-c", others).stdout


def test_the_line_of_the_plugin_does_nothing_once_the_package_is_gone() -> None:
    done = subprocess.run([sys.executable, "-S", "-I", "-c", plugin.LINE], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr


STOCK = "import sys, runpy; from cai_pyserini import jvm; jvm.start(); sys.argv = sys.argv[1:]; "
STOCK += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


@pytest.mark.parametrize(("cached", "name"), [("splade.jsonl", "splade-idf"), ("splade-doc.jsonl", "splade-doc-idf")])
def test_stock_pyserini_with_exported_topics(cached: str, name: str, line: Path, topics: Path, tmp_path: Path) -> None:
    """Nothing is registered here: Pyserini only gets the JVM, which a machine with a JDK has anyway."""
    arguments = search_arguments(line / "indexes" / "splade-idf", topics, topics / cached, tmp_path / "run.trec")
    command = [sys.executable, "-c", STOCK, "pyserini.search.lucene", *map(str, arguments), "--min-idf", "-1"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ranking(tmp_path / "run.trec") == ranking(line / "runs" / f"{name}.trec")


def test_stock_pyserini_with_an_exported_encoder(line: Path, tmp_path: Path) -> None:
    from pyserini.encode import SpladeQueryEncoder

    from cai_pyserini.config import load_encoder

    config = load_encoder("splade-tiny")
    with pytest.raises(CaiError, match="name the folder so"):
        export_encoder(config, tmp_path / "tiny")
    stock = SpladeQueryEncoder(str(export_encoder(config, tmp_path / "splade-tiny-stock")))
    assert type(stock).__module__ == "pyserini.encode._splade"
    ours = CaiQueryEncoder("splade-tiny").encode("infection of the bladder")
    theirs = {term: weight for term, weight in stock.encode("infection of the bladder").items() if weight}
    assert set(ours) >= set(theirs)
    for term, weight in theirs.items():  # Pyserini's weights are round(w / 5 * 256), ours round(w * 100)
        assert weight / 51.2 == pytest.approx(ours[term] / 100, abs=0.5 / 51.2 + 0.5 / 100 + 1e-4)
