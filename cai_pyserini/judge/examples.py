"""Training files from judgments: queries with relevant documents and hard negatives."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from cai_pyserini.collection.contract import Qrels
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.retrieval.lucene import Stored


class Labelled(NamedTuple):
    """A query with the ids of relevant documents, and of negatives, the hardest first."""

    text: str
    positives: list[str]
    negatives: list[str]


def labelled(
    topics: Mapping[str, str], pool: Mapping[str, set[str]], qrels: Qrels, relevant: int, seed: int
) -> Iterator[Labelled]:
    """The queries of a pool; two that differ only in case or spaces are one.

    Positives have a grade of at least `relevant`. Negatives are the documents with grade 0, and then those of the pool
    without a grade.
    """
    texts: dict[str, str] = {}
    found: dict[str, dict[str, int | None]] = {}  # query -> document -> grade; None: not judged
    for query, documents in pool.items():
        texts.setdefault(key := " ".join(topics[query].casefold().split()), topics[query])
        labels = found.setdefault(key, {})
        for id, grade in qrels.get(query, {}).items():
            labels[id] = max(grade, labels.get(id) or 0)
        for id in sorted(documents):
            labels.setdefault(id, None)
    draw = Random(seed)  # noqa: S311 - to be repeated
    for key, labels in found.items():
        positives = [id for id, grade in labels.items() if grade is not None and grade >= relevant]
        refused, unknown = ([id for id in labels if labels[id] == kind] for kind in (0, None))
        negatives = [*draw.sample(refused, len(refused)), *draw.sample(unknown, len(unknown))]
        yield Labelled(texts[key], positives, negatives)


def write_examples(
    labelled: Iterable[Labelled], text: Callable[[str], Stored | None], negatives: int, output: Path
) -> tuple[int, int]:
    """Write a training file of the trainer, with a line for each query and positive, and at most so many negatives.

    Documents without a stored text are left out, as are negatives that have the text of a positive, and positives
    without a negative. Returns the number of lines, and of queries. Raises CaiError if there are none, and for a file
    that this command has not made.
    """

    @cache
    def contents(id: str) -> str:
        stored = text(id)
        return stored.contents if stored else ""

    def lines() -> Iterator[dict[str, Any]]:
        for query, positives, of_query in labelled:
            relevant = {"", *map(contents, positives)}
            others = (text for text in map(contents, of_query) if text not in relevant)
            hard = list(islice(others, negatives)) if positives else []
            for positive in filter(None, map(contents, positives)) if hard else ():
                yield {"query": query, "positive": positive, "negatives": hard}

    if not (written := list(lines())):
        raise CaiError("no query has both a relevant document and another one: judge more, to a larger --depth")

    def write(partial: Path) -> None:
        jsonl.write(partial, written)

    recipe = artifact.recipe("judge examples", {"lines": artifact.digest(written)})
    artifact.make(output, recipe, write, folder=False)
    return len(written), len({line["query"] for line in written})
