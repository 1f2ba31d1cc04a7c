"""Run files and results as other tools of the field read them."""

import json
import platform
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import ir_measures
import pyserini
import pytest
import pytrec_eval

from cai_pyserini.collections.readers import load_collection
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.runs.trec import read_run, scores_by_query

pytestmark = pytest.mark.slow
SYSTEMS = ["bm25", "joint", "hybrid-splade-idf-minmax"]
BY_TREC_EVAL = {"ndcg_cut_10": "nDCG@10", "recall_100": "R@100"}


@pytest.fixture(scope="module")
def judged(tiny: Path) -> dict[str, dict[str, int]]:
    return load_collection(str(tiny)).qrels("test")


@pytest.fixture(scope="module", params=SYSTEMS)
def files(request: pytest.FixtureRequest, run_folder: Path) -> tuple[Path, dict[str, dict[str, float]]]:
    """The TREC run of a system, and the values of its measures by query."""
    name = parse_system(request.param).long_name
    values = json.loads((run_folder / "evaluations" / f"{name}.json").read_text())
    means = json.loads((run_folder / "results.json").read_text())["systems"][request.param]
    assert {each: pytest.approx(sum(of.values()) / len(of)) for each, of in values.items()} == {
        each: means[each] for each in values
    }
    return run_folder / "runs" / f"{name}.trec", values


def test_ir_measures_and_pytrec_eval(files: tuple[Path, dict[str, dict[str, float]]], judged: dict) -> None:
    path, values = files
    for metric in ir_measures.iter_calc(
        [ir_measures.parse_measure(name) for name in values], judged, [*ir_measures.read_trec_run(str(path))]
    ):
        assert values[str(metric.measure)][metric.query_id] == pytest.approx(metric.value)
    with path.open(encoding="utf-8") as file:
        run = pytrec_eval.parse_run(file)
    assert run == {query: pytest.approx(hits) for query, hits in scores_by_query(read_run(path)).items()}
    for query, found in pytrec_eval.RelevanceEvaluator(judged, {*BY_TREC_EVAL}).evaluate(run).items():
        assert {name: found[name] for name in BY_TREC_EVAL} == {
            name: pytest.approx(values[ours][query]) for name, ours in BY_TREC_EVAL.items()
        }


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="another binary in Anserini")
def test_trec_eval(files: tuple[Path, dict[str, dict[str, float]]], judged: dict, tmp_path: Path) -> None:
    """The program itself, which Anserini's jar has."""
    (jar,) = Path(pyserini.__file__).parent.glob("resources/jars/anserini-*-fatjar.jar")
    with ZipFile(jar) as archive:
        program = Path(archive.extract("trec_eval/trec_eval-linux-amd64", tmp_path))
    program.chmod(0o755)
    lines = [f"{query} 0 {id} {grade}\n" for query, grades in judged.items() for id, grade in grades.items()]
    (tmp_path / "qrels").write_text("".join(lines))
    path, values = files
    command = [program, "-c", "-q", "-m", "ndcg_cut.10", "-m", "recall.100", tmp_path / "qrels", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = [line.split() for line in done.stdout.splitlines()]
    assert len(printed) >= 2 * (len(read_run(path).query_ids) + 1)
    for name, query, value in printed:
        ours = values[BY_TREC_EVAL[name]]
        expected = sum(ours.values()) / len(ours) if query == "all" else ours[query]
        assert float(value) == pytest.approx(expected, abs=5.1e-5)


def test_the_format_that_ranx_reads(files: tuple[Path, dict[str, dict[str, float]]]) -> None:
    """Run.from_file takes lines of six fields, without blanks inside, and the name of the run from the last; or JSON of
    {query: {document: score}}. Ties would have its own order, so there are none."""
    path, _ = files
    read: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, document, _, score, name = line.split()
        read.setdefault(query, {})[document] = float(score)
    assert name == path.stem or parse_system(name).long_name == path.stem
    assert json.loads(json.dumps(read)) == read and all(len({*hits.values()}) == len(hits) for hits in read.values())
    assert [[*hits] for hits in read.values()] == [[*hits] for hits in scores_by_query(read_run(path)).values()]
