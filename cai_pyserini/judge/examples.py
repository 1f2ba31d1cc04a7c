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

OPENED, PASSED, UNKNOWN = -1, -2, -3  # of documents without a grade


class Labelled(NamedTuple):
    """A query with the ids of relevant documents, and of negatives, the hardest first."""

    text: str
    positives: list[str]
    negatives: list[str]


def labelled(
    topics: Mapping[str, str],
    pool: Mapping[str, set[str]],
    qrels: Qrels,
    impressions: Iterable[Impression],
    relevant: int,
    seed: int,
) -> Iterator[Labelled]:
    """The queries of a pool, and those of a log with texts; two that differ only in case or spaces are one.

    Positives have a grade of at least `relevant`, or no grade but were opened. Negatives are, in this order: documents
    with grade 0; those without a grade that nobody opened although they were shown above one that was opened, or next
    below it (Joachims et al. 2005: people have looked at them); and the rest of the pool.
    """
    texts: dict[str, str] = {}
    found: dict[str, dict[str, int]] = {}  # query -> document -> grade, or what else is known of it

    def of(text: str) -> dict[str, int]:
        texts.setdefault(key := " ".join(text.casefold().split()), text)
        return found.setdefault(key, {})

    for query in pool:
        grades = of(topics[query])
        for id, grade in qrels.get(query, {}).items():
            grades[id] = max(grade, grades.get(id, 0))
    clicked = [(of(each.query), list(each.teams), each.opened) for each in impressions if each.query and each.opened]
    for labels, shown, opened in clicked:
        for id in filter(opened.__contains__, shown):
            labels.setdefault(id, OPENED)
    for labels, shown, opened in clicked:
        for id in shown[: max(map(shown.index, opened)) + 2]:
            labels.setdefault(id, PASSED)
    for query, documents in pool.items():
        for id in sorted(documents):
            of(topics[query]).setdefault(id, UNKNOWN)
    draw = Random(seed)  # noqa: S311 - to be repeated
    for key, labels in found.items():
        positives = [id for id, label in labels.items() if label >= relevant or label == OPENED]
        refused, passed, unknown = ([id for id in labels if labels[id] == kind] for kind in (0, PASSED, UNKNOWN))
        negatives = [*draw.sample(refused, len(refused)), *passed, *draw.sample(unknown, len(unknown))]
        yield Labelled(texts[key], positives, negatives)


def write_examples(
    labelled: Iterable[Labelled], text: Callable[[str], Stored | None], negatives: int, output: Path
) -> tuple[int, int]:
    """Write a training file of the trainer, with a line for each query and positive, and at most so many negatives.

    Documents without a stored text are left out, as are negatives that have the text of a positive, and positives
    without a negative. Returns the number of lines, and of queries. Raises CaiError if there are none.
    """

    @cache
    def contents(id: str) -> str:
        stored = text(id)
        return stored.contents if stored else ""

    queries = set()

    def lines() -> Iterator[dict[str, Any]]:
        for query, positives, of_query in labelled:
            relevant = {"", *map(contents, positives)}
            others = (text for text in map(contents, of_query) if text not in relevant)
            hard = list(islice(others, negatives)) if positives else []
            for positive in filter(None, map(contents, positives)) if hard else ():
                queries.add(query)
                yield {"query": query, "positive": positive, "negatives": hard}

    with files.atomic_write(output) as partial:
        count = jsonl.write(partial, lines())
        if not count:
            raise CaiError("no query has both a relevant document and another one: judge more, to a larger --depth")
    return count, len(queries)
