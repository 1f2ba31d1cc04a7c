"""Training files from judgments: queries, relevant documents and hard negatives."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from cai_pyserini.collections.contract import Qrels
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.searcher import Stored


class LabelledQuery(NamedTuple):
    """A query with the ids of relevant documents and of negatives, hardest first."""

    text: str
    positives: list[str]
    negatives: list[str]


def label_queries(
    topics: Mapping[str, str], pool: Mapping[str, set[str]], qrels: Qrels, relevant: int, seed: int
) -> Iterator[LabelledQuery]:
    """The queries of a pool, merged if they differ only in case or white space.

    Positives have a grade of at least `relevant`. Negatives are the documents with grade 0, then those of the pool
    without a grade.
    """
    texts: dict[str, str] = {}
    grades: dict[str, dict[str, int | None]] = {}  # query -> document -> grade; None: not judged
    for query, documents in pool.items():
        texts.setdefault(key := " ".join(topics[query].casefold().split()), topics[query])
        labels = grades.setdefault(key, {})
        for id, grade in qrels.get(query, {}).items():
            labels[id] = max(grade, labels.get(id) or 0)
        for id in sorted(documents):
            labels.setdefault(id, None)
    random = Random(seed)  # noqa: S311 - reproducible
    for key, labels in grades.items():
        positives = [id for id, grade in labels.items() if grade is not None and grade >= relevant]
        negatives: list[str] = []
        for label in (0, None):
            ids = [id for id, grade in labels.items() if grade == label]
            negatives += random.sample(ids, len(ids))
        yield LabelledQuery(texts[key], positives, negatives)


def write_examples(
    labelled: Iterable[LabelledQuery], text: Callable[[str], Stored | None], negatives: int, output: Path
) -> tuple[int, int]:
    """Write a training file: a line per query and positive, with at most `negatives` negatives.

    Documents without a stored text, negatives with the text of a positive, and positives without a negative are left
    out. Returns the numbers of lines and of queries. Raises CaiError if there are none, and for an output file that
    this command has not made.
    """

    @cache
    def contents(id: str) -> str:
        stored = text(id)
        return stored.contents if stored else ""

    def lines() -> Iterator[dict[str, Any]]:
        for query, positives, candidates in labelled:
            relevant = {"", *map(contents, positives)}
            others = (text for text in map(contents, candidates) if text not in relevant)
            if positives and (hard := list(islice(others, negatives))):
                for positive in filter(None, map(contents, positives)):
                    yield {"query": query, "positive": positive, "negatives": hard}

    if not (examples := list(lines())):
        raise CaiError("no query has both a relevant document and a negative: judge more, to a larger --depth")

    def write(partial: Path) -> None:
        jsonl.write(partial, examples)

    recipe = artifact.recipe("judge examples", {"lines": artifact.digest(examples)})
    artifact.make(output, recipe, write, folder=False)
    return len(examples), len({example["query"] for example in examples})
