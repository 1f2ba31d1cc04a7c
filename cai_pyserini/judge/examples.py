"""Training files from judgments and clicks: queries with relevant documents and hard negatives."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from cai_pyserini.collection.contract import Qrels
from cai_pyserini.core import files, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.retrieval.lucene import Stored
from cai_pyserini.serve.interleave import Impression


class Labelled(NamedTuple):
    """A query with the ids of relevant documents, and of negatives, the hardest first."""

    text: str
    positives: list[str]
    negatives: list[str]


def of_judgments(
    topics: Mapping[str, str], pool: Mapping[str, set[str]], qrels: Qrels, relevant: int, seed: int
) -> Iterator[Labelled]:
    """The queries of a pool: documents with a grade of at least `relevant`; as negatives those with grade 0, and then
    the pooled ones that nobody has judged, both in random order."""
    draw = Random(seed)  # noqa: S311 - to be repeated
    for query, documents in pool.items():
        grades = qrels.get(query, {})
        refused = [id for id, grade in grades.items() if grade == 0]
        unjudged = sorted(documents - grades.keys())
        negatives = draw.sample(refused, len(refused)) + draw.sample(unjudged, len(unjudged))
        yield Labelled(topics[query], [id for id, grade in grades.items() if grade >= relevant], negatives)


def of_clicks(impressions: Iterable[Impression]) -> Iterator[Labelled]:
    """Queries of a log with texts: documents that were opened; as negatives those that nobody opened although they were
    shown above one that was opened, or next below it (Joachims et al. 2005: people have looked at them)."""
    positives: dict[str, dict[str, None]] = {}
    passed: dict[str, dict[str, None]] = {}
    for _, _, query, teams, opened in impressions:
        if query and opened:
            shown = list(teams)
            last = max(map(shown.index, opened))
            positives.setdefault(query, {}).update(dict.fromkeys(id for id in shown if id in opened))
            passed.setdefault(query, {}).update(dict.fromkeys(shown[: last + 2]))
    for query, of_query in positives.items():
        yield Labelled(query, list(of_query), [id for id in passed[query] if id not in of_query])


def write_examples(
    labelled: Iterable[Labelled], text: Callable[[str], Stored | None], negatives: int, output: Path
) -> tuple[int, int]:
    """Write a training file of the trainer, with a line for each query and positive, and at most so many negatives.

    Documents without a stored text are left out, as are positives without a negative. Returns the number of lines, and
    of queries. Raises CaiError if there are none.
    """

    @cache
    def contents(id: str) -> str:
        stored = text(id)
        return stored.contents if stored else ""

    queries = set()

    def lines() -> Iterator[dict[str, Any]]:
        for query, positives, of_query in labelled:
            hard = list(islice(filter(None, map(contents, of_query)), negatives)) if positives else []
            for positive in filter(None, map(contents, positives)) if hard else ():
                queries.add(query)
                yield {"query": query, "positive": positive, "negatives": hard}

    with files.atomic_write(output) as partial:
        count = jsonl.write(partial, lines())
        if not count:
            raise CaiError("no query has both a relevant document and another one: judge more, to a larger --depth")
    return count, len(queries)
