"""Training files from qrels and runs."""

import json
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.trainer.__main__ import main
from cai_pyserini.trainer.examples import count
from cai_pyserini.trainer.mine import mine
from cai_pyserini.trainer.settings import MineSettings
from tests.conftest import json_lines


def test_mining_takes_negatives_from_every_run_but_no_relevant_one(tiny: Path, tmp_path: Path) -> None:
    queries = [json.loads(line) for line in (tiny / "queries.jsonl").open()]
    qrels = [line.split("\t") for line in (tiny / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    relevant = {(q, d) for q, d, grade in qrels if int(grade) > 0}
    documents = {d["_id"]: d for d in json_lines(tiny / "corpus.jsonl")}
    for name, ids in (("a.trec", sorted(documents)), ("b.trec", sorted(documents, reverse=True))):
        hits = [f"{q['_id']} Q0 {d} {i} {100 - i} x" for q in queries for i, d in enumerate(ids, 1)]
        (tmp_path / name).write_text("\n".join(hits) + "\n")
    runs = [tmp_path / name for name in ("a.trec", "b.trec")]
    mine(
        MineSettings(
            collection=str(tiny), split="test", runs=runs, depth=3, negatives=99, output=tmp_path / "out.jsonl"
        )
    )
    lines = json_lines(tmp_path / "out.jsonl")
    assert len(lines) == len(relevant)
    texts = {" ".join((d["title"], d["text"])) if "title" in d else d["text"]: id for id, d in documents.items()}
    reachable = set(sorted(documents)[:3]) | set(sorted(documents)[-3:])
    of = {q["text"]: q["_id"] for q in queries}
    for line in lines:
        query = of[line["query"]]
        assert (query, texts[line["positive"]]) in relevant
        found = {texts[text] for text in line["negatives"]}
        assert found == {d for d in reachable if (query, d) not in relevant and d != query}


def test_a_missing_run_is_named(tiny: Path, tmp_path: Path) -> None:
    settings = MineSettings(
        collection=str(tiny), split="test", runs=[tmp_path / "no.trec"], output=tmp_path / "out.jsonl"
    )
    with pytest.raises(CaiError, match=r"no file .*no\.trec"):
        mine(settings)


def test_a_query_without_negatives_is_left_out(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training refuses a line without negatives, so nothing may write one."""
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 9 x\nq1 Q0 d12 2 8 x\n")
    output = tmp_path / "out.jsonl"
    flags = ["mine", "--collection", str(tiny), "--split", "test", "--output", str(output), "--runs"]
    main([*flags, str(tmp_path / "run.trec")])
    lines = json_lines(output)
    assert {line["query"] for line in lines} == {json_lines(tiny / "queries.jsonl")[0]["text"]}
    assert count(output, margins=False, negatives=1) == len(lines)
    assert f"{len(lines)} pairs of 1 queries; 5 left out, without a negative\n" in capsys.readouterr().out
    (tmp_path / "other.trec").write_text("someone Q0 d1 1 9 x\n")
    with pytest.raises(CaiError, match="no query of split 'test' has both a relevant document and another one"):
        main([*flags, str(tmp_path / "other.trec")])
