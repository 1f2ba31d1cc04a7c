"""Costs against counts by hand and against the files that the run left."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.analysis.cost import Cost, Distribution, activations, by_length, costs
from cai_pyserini.analysis.output import labels
from cai_pyserini.analysis.run import FinishedRun
from cai_pyserini.cli import CaiError
from cai_pyserini.splade import Tokenizer
from tests.conftest import Command, json_lines


@pytest.fixture(scope="module")
def run(line: Path) -> FinishedRun:
    return FinishedRun(line)


@pytest.fixture(scope="module")
def found(run: FinishedRun) -> dict[str, Cost]:
    return {cost.system: cost for cost in costs(run)}


def test_activations_worked_example() -> None:
    first, second = csr_matrix([[5, 0, 2], [0, 0, 3]]), csr_matrix([[0, 0, 0], [0, 0, 1]])
    nonzeros, shares = activations([first, second])
    assert nonzeros.tolist() == [2, 1, 0, 1]
    assert shares.tolist() == [0.25, 0, 0.75]


def test_distribution_worked_example() -> None:
    assert Distribution.of(list(range(1, 102))) == Distribution(51, 51, 96)


def test_words_worked_example(found: dict[str, Cost]) -> None:
    # Terms of the queries and documents that have them: phytat 1, treatment 0, cancer 3; bladder 1, infect 1; what 0,
    # lower 3, high 0, blood 3, pressur 2; heart, attack, while, run 0; malaria, plasmodium, falciparum, transmit,
    # mosquito 1 each: 19 products for 5 queries and 12 documents.
    assert found["bm25"].flops == pytest.approx(19 / 60)
    assert found["bm25"].query_nonzeros == Distribution(3.8, 4, 5)


@pytest.mark.parametrize("system", ["splade-doc", "splade-doc-idf"])
def test_impacts_and_products_are_those_of_the_index(
    system: str, run: FinishedRun, found: dict[str, Cost], checkpoint: Path
) -> None:
    impacts = run.folder / "impacts" / system.replace("-doc", "") / "00000.jsonl"
    documents = [set(record["vector"]) for record in json_lines(impacts)]
    tokenizer = Tokenizer(checkpoint)
    tokens = tokenizer.encode(list(run.topics.values()), None, special=False)
    queries = [{tokenizer.terms[id] for id in ids} for ids in tokens]
    assert found[system].document_nonzeros == Distribution.of([len(terms) for terms in documents])
    assert found[system].query_nonzeros == Distribution.of([len(terms) for terms in queries])
    products = [len(query & document) for query in queries for document in documents]
    assert found[system].flops == pytest.approx(sum(products) / 60)


def test_model_queries_have_more_products_and_take_what_the_manifests_say(
    run: FinishedRun, found: dict[str, Cost]
) -> None:
    assert list(found) == ["bm25", "splade", "splade-doc", "splade-idf", "splade-doc-idf"]
    assert found["splade"].flops > found["splade-doc"].flops
    manifest = json.loads((run.folder / "indexes" / "splade" / "manifest.json").read_text())
    assert found["splade"].index_bytes == manifest["bytes"]
    assert found["splade"].bytes_per_document == manifest["bytes"] / 12
    searched = json.loads((run.folder / "runs" / "splade.trec.manifest.json").read_text())
    assert found["splade"].ms_per_query == searched["ms_per_query"]


def test_nonzeros_by_length_of_document(run: FinishedRun, checkpoint: Path) -> None:
    bins = by_length(run)  # twelve documents: a bin each
    contents = [document.contents for document in run.collection.documents()]
    lengths = [len(tokens) for tokens in Tokenizer(checkpoint).encode(contents, None, special=False)]
    assert bins["word_pieces"] == sorted(lengths)
    manifest = json.loads((run.folder / "vectors" / "documents" / "manifest.json").read_text())
    assert np.sum(bins["nonzeros"]) == manifest["nonzeros"]


def test_labels_are_what_tells_paths_apart() -> None:
    assert labels([Path("runs/hpo/tiny")]) == ["tiny"]
    assert labels([Path("runs/hpo/tiny"), Path("runs/hpo/large")]) == ["tiny", "large"]
    assert labels([Path("runs/hpo/tiny"), Path("runs/scifact/tiny")]) == ["hpo/tiny", "scifact/tiny"]


def test_the_command(line: Path, tmp_path: Path, command: Command) -> None:
    done = command("cai_pyserini.analysis.cost", "--runs", line, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    header, _, bm25, splade, *_ = done.stdout.splitlines()
    assert header.split()[:4] == ["run", "and", "system", "nnz/doc"]
    assert bm25.split()[1:2] == ["bm25"] and "0.317" in bm25.split() and splade.split()[1] == "splade"
    data = json.loads((tmp_path / "out" / "cost.json").read_text())[line.name]
    assert data["systems"][0]["flops"] == pytest.approx(19 / 60) and len(data["by_length"]["nonzeros"]) == 12
    assert (tmp_path / "out" / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"has no finished run of SPLADE: make one with `python -m cai_pyserini\.beir`"):
        FinishedRun(tmp_path)


def test_a_collection_that_has_changed_is_refused(line: Path, broken: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(line, tmp_path / "run")
    results = json.loads((folder / "results.json").read_text())
    results["settings"]["collection"]["source"] = str(broken)
    (folder / "results.json").write_text(json.dumps(results))
    assert FinishedRun(folder).collection.name == "tiny"
    with (broken / "queries.jsonl").open("a") as file:
        file.write('{"_id": "new", "text": "a new query"}\n')
    with pytest.raises(CaiError, match=r"was not run on .*broken as it is now: run `python -m cai_pyserini\.beir`"):
        FinishedRun(folder)
