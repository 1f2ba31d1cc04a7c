"""Every system finds, with a filter, what it finds without one and a person then picks; facets and sorting too."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from cai_pyserini.cli.search import main
from cai_pyserini.engine.hits import Hit
from cai_pyserini.engine.open import Run, open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.filters import BadFilter, parse_filter
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.trec import run_of, scores_by_query
from cai_pyserini.vectors.queries import TwoStep
from tests.conftest import stage_command
from tests.metadata import FILTERS, KINDS, QUERIES, metadata, texts

write_run = stage_command("search")

pytestmark = pytest.mark.slow

PARTS = {"hybrid-splade-idf-minmax": ("bm25", "splade-idf"), "hybrid-dense-minmax": ("bm25", "dense")}
SYSTEMS = ("bm25", "splade-idf", "joint", "dense", *PARTS)
WORD_FILTERS: dict[str, Callable[[str], bool]] = {
    r'NOT contents:Cancers AND contents:("blood pressure", "risk of fever", risk\ of\ fever, kidney)': lambda of: (
        "cancer" not in of and bool(re.search(r"blood pressure|risk \w+ fever|kidney", of))
    )
}


@pytest.fixture(scope="module")
def engines(metadata_run: Path) -> Iterator[dict[str, Engine]]:
    run = Run(metadata_run)
    engines = {name: run.open(name) for name in SYSTEMS}
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def whole(engines: dict[str, Engine]) -> Callable[[str], list[list[Hit]]]:
    """What each system finds without a filter."""
    return cache(lambda system: engines[system].search(QUERIES, len(metadata())))


def pick(hits: list[Hit], text: str) -> list[tuple[str, float]]:
    if text in FILTERS:
        return [(hit.id, hit.score) for hit in hits if FILTERS[text](metadata()[hit.id])]
    return [(hit.id, hit.score) for hit in hits if WORD_FILTERS[text](texts()[hit.id])]


@pytest.mark.parametrize(
    ("system", "text"),
    [
        *(("bm25", text) for text in (*FILTERS, *WORD_FILTERS)),
        *((system, text) for system in SYSTEMS[1:] for text in ("year>=2010", *WORD_FILTERS)),
    ],
)
def test_what_is_found_is_what_would_be_picked_by_hand(
    engines: dict[str, Engine], whole: Callable[[str], list[list[Hit]]], system: str, text: str
) -> None:
    """Systems use the same filters; BM25 has them all."""
    parts = [whole(part) for part in PARTS.get(system, (system,))]
    for number, found in enumerate(engines[system].search(QUERIES, 20, threads=2, filter=text)):
        expected, *others = (pick(hits[number], text) for hits in parts)
        if others:
            runs = [run_of({"query": hits[:100]}) for hits in (expected, *others)]
            expected = list(scores_by_query(fuse_runs(runs, "minmax", 100, 20)).get("query", {}).items())
        assert len(found) == min(20, len(expected)) and (found or text in ("year:1066", "year:()"))
        # BM25's ties are 1e-6 apart by their place in the ranking, which min-max can enlarge
        assert {hit.id: pytest.approx(hit.score, abs=1e-3 if others else 1e-4) for hit in found} == dict(expected[:20])
        assert others or [hit.id for hit in found] == [id for id, _ in expected[:20]]


def test_a_search_in_two_steps_stays_filtered(metadata_run: Path, tmp_path: Path) -> None:
    impacts, collection = metadata_run / "impacts" / "splade-idf", RunFolder(metadata_run).collection
    index = index_impacts(impacts, tmp_path / "index", collection, forward_index=True)
    searcher = LuceneImpacts(index, two_step=TwoStep(0.6, 30))
    keep = parse_filter("year>=2010", searcher.metadata)
    query = {"infection": 90, "bladder": 80, "kidney": 40, "fever": 20}
    found = searcher.filtered(keep).search(query, 10)
    whole = dict(open_searcher(index).search(query, 300))
    assert len(found) == 10 and all(metadata()[id].get("year", 0) >= 2010 for id, _ in found)
    assert found == [(id, whole[id]) for id, _ in found]
    assert searcher.search(query, 10) != found  # the open index itself is not filtered


@pytest.mark.parametrize("system", ["bm25", "hybrid-dense-minmax", "splade-idf"])
def test_facets_are_what_would_be_counted_by_hand(engines: dict[str, Engine], system: str) -> None:
    """Of the documents that have a word of the query; in systems without words, of all that the filter lets through."""
    keep, text = FILTERS["year>=2010"], "bladder infection"
    words = {hit.id for hit in engines["bm25"].search([text], 300)[0]}
    matching = [of for id, of in metadata().items() if keep(of) and (id in words or system in ("splade-idf", "dense"))]
    found = engines[system].facets(list(KINDS), text, "year>=2010", most=1000)
    for name, of_document in {
        "year": lambda of: [str(of["year"])],
        "journal": lambda of: [of["journal"]],
        "published": lambda of: [of["published"][:4]],
        "authors": lambda of: of.get("authors", []),
        "impact": lambda of: [str(of["impact"]).removesuffix(".0")],
    }.items():
        assert found[name] == Counter(value for of in matching for value in of_document(of))
        counts = list(found[name].values())
        assert counts == sorted(counts, reverse=True)
    with_words = [
        of for of in matching if "cancer" in texts()[next(id for id, each in metadata().items() if each is of)]
    ]
    (journals,) = engines[system].facets(["journal"], text, ("year>=2010", "contents:cancer")).values()
    assert journals == Counter(of["journal"] for of in with_words)
    (journals,) = engines[system].facets(["journal"], most=2).values()  # without a query or a filter
    assert list(journals.items()) == Counter(of["journal"] for of in metadata().values() if of).most_common(2)


@pytest.mark.parametrize("system", ["dense", "hybrid-splade-idf-minmax"])
def test_the_best_are_sorted_by_a_field(engines: dict[str, Engine], system: str) -> None:
    (best,) = engines[system].search(["the risk of cancer"], 100)
    scores = {hit.id: hit.score for hit in best}
    for sort in ("impact", "-impact", "-published", "journal", "-authors"):
        name = sort.removeprefix("-")
        having = [hit for hit in best if name in metadata()[hit.id]]
        expected = sorted(having, key=lambda hit: metadata()[hit.id][name], reverse=sort != name)
        expected += [hit for hit in best if name not in metadata()[hit.id]]
        (found,) = engines[system].search(["the risk of cancer"], 30, sort=sort)
        assert [hit.id for hit in found] == [hit.id for hit in expected[:30]]
        assert [(hit.rank, hit.score) for hit in found] == [(n, scores[hit.id]) for n, hit in enumerate(found, 1)]
    described = list(engines[system].describe("the risk of cancer", 5, 0, "year>=2010", "-impact"))
    assert [one.metadata for one in described] == [metadata()[one.hit.id] for one in described]
    assert [one.metadata["impact"] for one in described] == sorted(
        (one.metadata["impact"] for one in described), reverse=True
    )


def test_what_cannot_be_understood_is_refused(
    engines: dict[str, Engine], metadata_run: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, wrong in [("filter", ("yaer:1", "", "contents:the")), ("sort", ("yaer", "--year"))]:
        for value in wrong:
            with pytest.raises(BadFilter):
                engines["bm25"].search(["cancer"], **{name: value})
    with pytest.raises(BadFilter, match="facets: no field 'yaer'; those of this index: year"):
        engines["dense"].facets(["yaer"])
    alone = open_index(metadata_run / "indexes" / "dense", encoder="minilm")
    with pytest.raises(BadFilter, match="dense cannot be filtered: none of its indexes has metadata"):
        alone.search(["cancer"], filter="year>=2010")
    with pytest.raises(BadFilter, match="no field 'yaer'"):
        Run(run_folder).open("splade-idf").search(["cancer"], filter="yaer>=2010")
    joint = open_index(metadata_run / "indexes" / "joint-splade-idf")
    with pytest.raises(BadFilter, match="joint-splade-idf has no words; they are in an index of BM25, of the same run"):
        joint.search(["cancer"], filter="year>=2010 AND NOT contents:mouse")
    monkeypatch.setattr("cai_pyserini.indexes.lucene.MOST_LISTED", 10)
    with pytest.raises(BadFilter, match="only bm25 can filter by words in more than 10 documents in total"):
        engines["splade-idf"].search(["sleep"], filter="NOT contents:cancer")
    assert engines["bm25"].search(["sleep"], filter="NOT contents:cancer")[0]


def test_the_command(metadata_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--filter", "year>=2010", "--sort=-impact", "--facets", "journal", "--hits", "2"]
    of_dense = ["--system", "dense"]
    main([str(metadata_run), "cancer", *of_dense, *flags, "--format", "json"])
    *hits, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [hit["metadata"] for hit in hits] == [metadata()[hit["id"]] for hit in hits]
    assert hits[0]["metadata"]["impact"] >= hits[1]["metadata"]["impact"]
    assert last == {"query": "cancer", "facets": {"journal": Counter(
        of["journal"] for of in metadata().values() if of.get("year", 0) >= 2010
    )}}  # fmt: skip
    main([str(metadata_run / "indexes" / "bm25"), "cancer", *flags])
    shown = capsys.readouterr().out
    assert "journal: " in shown and "published: 20" in shown
    main(
        [str(metadata_run), 'risk "blood pressure" -cancer', *of_dense, "--syntax", "--hits", "300", "--format", "json"]
    )
    hits = map(json.loads, capsys.readouterr().out.splitlines())
    assert {hit["id"] for hit in hits} == {
        id for id, text in texts().items() if "blood pressure" in text and "cancer" not in text
    }
