"""Costs against counts by hand and against the run's files."""

import json
from pathlib import Path
from statistics import mean

import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.analysis.cost import Cost, activations, costs
from cai_pyserini.cli.analyse import main
from cai_pyserini.core import jsonl
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.models.tokenizer import Tokenizer

SPLADE = ["bm25", "splade", "splade-doc", "splade-idf", "splade-doc-idf"]


@pytest.fixture(scope="module")
def run(run_folder: Path) -> RunFolder:
    return RunFolder(run_folder)


@pytest.fixture(scope="module")
def found(run: RunFolder) -> dict[str, Cost]:
    return {cost.system: cost for cost in costs(run)}


def test_activations_worked_example() -> None:
    first, second = csr_matrix([[5, 0, 2], [0, 0, 3]]), csr_matrix([[0, 0, 0], [0, 0, 1]])
    nonzeros, shares = activations([first, second])
    assert nonzeros == 1 and shares.tolist() == [0.25, 0, 0.75]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["splade-doc", "joint-doc"])
def test_impacts_and_products_are_those_of_the_index(
    system: str, run: RunFolder, found: dict[str, Cost], checkpoint: Path
) -> None:
    impacts = index_of(parse_system(system), run).impacts.output / "00000.jsonl"
    documents = [set(record["vector"]) for _, record in jsonl.read(impacts)]
    tokenizer = Tokenizer(checkpoint)
    tokens = tokenizer.encode(list(run.topics.values()), None, special=False)
    queries = [{tokenizer.terms[id] for id in ids} for ids in tokens]
    if system.startswith("joint"):
        indexed = {term for document in documents for term in document}
        words = [{f"bm25:{word}" for word in Analyzer()(text)} for text in run.topics.values()]
        queries = [query | of_query & indexed for query, of_query in zip(queries, words, strict=True)]
    assert found[system].document_nonzeros == pytest.approx(mean(map(len, documents)))
    assert found[system].query_nonzeros == pytest.approx(mean(map(len, queries)))
    products = [len(query & document) for query in queries for document in documents]
    assert found[system].products == pytest.approx(sum(products) / 60)


@pytest.mark.slow
def test_the_command(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["cost", str(run_folder), "--output", str(tmp_path / "out")])
    # Query terms and their document frequencies: phytat 1, treatment 0, cancer 3; bladder 1, infect 1; what 0,
    # lower 3, high 0, blood 3, pressur 2; heart, attack, while, run 0; malaria, plasmodium, falciparum, transmit,
    # mosquito 1 each: 19 products for 5 queries and 12 documents.
    header, _, bm25, splade, *_, files = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["run", "and", "system", "nnz/doc"]
    assert bm25.split()[:2] == [str(run_folder), "bm25"] and bm25.split()[3:5] == ["3.8", "0.317"]
    assert splade.split()[1] == "splade"
    assert files == f"{tmp_path / 'out'}: cost.json"
    data = json.loads((tmp_path / "out" / "cost.json").read_text())[str(run_folder)]
    assert data[0]["products"] == pytest.approx(19 / 60) and len(data) == 7
    assert data[0]["query_nonzeros"] == pytest.approx(3.8)
