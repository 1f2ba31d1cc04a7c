"""Make training files: queries with relevant documents, negatives, and a teacher's margins.

`mine` takes positives from a collection's qrels, and negatives from the best documents of TREC runs that are not judged
relevant and are neither copies nor other passages of relevant ones. `msmarco` takes both from files that
sentence-transformers distributes for MS MARCO:

    hard negatives    JSONL lines {"qid": …, "pos": [passage, …], "neg": {system: [passage, …], …}}
    scores            Parquet or JSONL with the columns query_id, corpus_id and score, the last two single values or
                      lists (the older file is a pickle, which can run code when read, and is refused)

Every query of MS MARCO has its first positive and `per_query` negatives, sampled from all systems: one for each epoch
of the paper. `score` adds the margins of a cross-encoder, which Margin-MSE distils (Hofstätter et al. 2020):

    margin = S(query, positive) - S(query, negative),    S the cross-encoder's logit
"""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from datasets import load_dataset

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.copies import Copies
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import document_of
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import remove, require_content
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest, load_checkpoint
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.runs.trec import read_run, scores_by_query, top
from cai_pyserini.trainer.examples import Example, count, read
from cai_pyserini.trainer.generate import in_batches
from cai_pyserini.trainer.settings import MineSettings, MsmarcoSettings, ScoreSettings, recorded

INTERIM_LINES = 256  # scored lines per file of interim results; an interruption loses at most one file


class Sampled(NamedTuple):
    """The ids of a query, its positive and its negatives."""

    query: str
    positive: str
    negatives: list[str]

    @property
    def documents(self) -> list[str]:
        return [self.positive, *self.negatives]


def mine(settings: MineSettings) -> Path:
    """Write a training file with a line for each query and positive that has a negative."""
    collection = load_collection(settings.collection)
    inputs = _inputs(collection, settings.split) | {"runs": [*map(artifact.file_digest, settings.trec)]}

    def write(path: Path) -> artifact.Stats:
        topics, qrels = collection.topics(settings.split), collection.qrels(settings.split)
        candidates: dict[str, set[str]] = {}
        for run in settings.trec:
            for query, scores in scores_by_query(top(read_run(run), settings.depth)).items():
                candidates.setdefault(query, set()).update(scores)
        draw = random.Random(settings.seed)
        relevant: dict[str, list[str]] = {}  # by query
        sampled: list[Sampled] = []
        for query in topics:
            relevant[query] = [document for document, grade in qrels[query].items() if grade > 0]
            origins = {document_of(document) for document in relevant[query]}
            others = sorted(
                document
                for document in candidates.get(query, set()) - set(relevant[query]) - {query}
                if document_of(document) not in origins
            )
            for positive in relevant[query]:
                sampled.append(Sampled(query, positive, draw.sample(others, min(settings.negatives, len(others)))))
        texts = _texts(collection, sampled, "the runs and qrels")
        kept = (line._replace(negatives=_without_copies(texts, relevant[line.query], line)) for line in sampled)
        chosen = [line for line in kept if line.negatives]
        if not chosen:
            raise CaiError(
                f"no query of split {settings.split!r} has both a relevant document and another one in the runs: "
                "are they runs of its queries?"
            )
        lines = (_example(line, texts, topics) | {"ids": [*map(document_of, line.documents)]} for line in chosen)
        count = jsonl.write(path, lines)
        queries = len({line.query for line in chosen})
        return {"lines": count, "queries": queries, "without_negatives": len(sampled) - count}

    recipe = artifact.recipe("trainer mine", inputs, **recorded(settings, "collection", "trec"))
    return artifact.make(settings.output, recipe, write, folder=False)


def msmarco(settings: MsmarcoSettings) -> Path:
    """Write a training file with a line for each query of MS MARCO."""
    collection = load_collection(settings.collection)
    files = [*map(artifact.file_digest, [settings.hard_negatives, *settings.scores])]
    inputs = _inputs(collection, settings.split) | {"files": files}

    def write(path: Path) -> artifact.Stats:
        topics = collection.topics(settings.split)
        sampled = _sample(settings, topics)
        margins = _margins(settings, sampled)
        chosen = [sampled[query]._replace(negatives=list(scored)) for query, scored in margins.items()]
        texts = _texts(collection, chosen, str(settings.hard_negatives))
        lines = (_example(line, texts, topics) | {"margins": [*margins[line.query].values()]} for line in chosen)
        return {"lines": jsonl.write(path, lines), "negatives": sum(map(len, margins.values()))}

    recipe = artifact.recipe("trainer msmarco", inputs, **recorded(settings, "collection", "hard_negatives", "scores"))
    return artifact.make(settings.output, recipe, write, folder=False)


def _inputs(collection: Collection, split: str) -> dict[str, Any]:
    return {part: collection.fingerprint(part) for part in ("documents", "queries", split)}


def _texts(collection: Collection, sampled: Sequence[Sampled], where: str) -> dict[str, str]:
    """The texts of the documents by id, which are named in `where`."""
    return collection.contents({id for line in sampled for id in line.documents}, where)


def _without_copies(texts: dict[str, str], relevant: Sequence[str], line: Sampled) -> list[str]:
    """The negatives whose texts are not copies of relevant ones."""
    copies = Copies([texts[id] for id in (*relevant, *line.negatives)])
    copied = {number for answer in range(len(relevant)) for number in copies.of(answer).tolist()}
    return [id for number, id in enumerate(line.negatives, len(relevant)) if number not in copied]


def _example(line: Sampled, texts: dict[str, str], topics: dict[str, str]) -> Example:
    positive, *negatives = (texts[id] for id in line.documents)
    return {"query": topics[line.query], "positive": positive, "negatives": negatives}


def _sample(settings: MsmarcoSettings, topics: dict[str, str]) -> dict[str, Sampled]:
    """The first positive, and random negatives, of each query of the split."""
    draw = random.Random(settings.seed)
    chosen: dict[str, Sampled] = {}
    for where, data in jsonl.read(settings.hard_negatives):
        try:
            query, positives = str(data["qid"]), [str(id) for id in data["pos"]]
            negatives = sorted({str(id) for ids in data["neg"].values() for id in ids} - set(positives))
        except (KeyError, TypeError, AttributeError):
            raise CaiError(f'{where}: expected {{"qid": …, "pos": […], "neg": {{system: […]}}}}') from None
        if positives and negatives and query in topics:
            negatives = draw.sample(negatives, min(settings.per_query, len(negatives)))
            chosen[query] = Sampled(query, positives[0], negatives)
        if settings.max_queries and len(chosen) == settings.max_queries:
            break
    if not chosen:
        raise CaiError(f"{settings.hard_negatives}: no query of split {settings.split!r} has a positive and a negative")
    return chosen


def _margins(settings: MsmarcoSettings, sampled: dict[str, Sampled]) -> dict[str, dict[str, float]]:
    """By query, the margins of the negatives that the teacher has scored, if it has scored the positive too."""
    if other := next((p for p in settings.scores if not p.name.endswith((".parquet", ".jsonl", ".jsonl.gz"))), None):
        raise CaiError(f"{other}: scores must be Parquet or JSONL with the columns query_id, corpus_id and score")
    scores: dict[str, dict[str, float]] = {query: {} for query in sampled}
    for path in settings.scores:
        require_content(path)
        kind = "parquet" if path.suffix == ".parquet" else "json"
        rows: Any = load_dataset(kind, data_files=str(path), split="train", streaming=True)
        for row in progress(rows, None, "scores", "rows"):
            if not row.keys() >= {"query_id", "corpus_id", "score"}:
                raise CaiError(f"{path}: its columns are {', '.join(row)}, not query_id, corpus_id and score")
            if (query := str(row["query_id"])) in sampled:
                ids, values, documents = row["corpus_id"], row["score"], {*sampled[query].documents}
                pairs = zip(ids, values, strict=True) if isinstance(ids, list) else [(ids, values)]
                with suppress(TypeError, ValueError):
                    found = {str(id): float(score) for id, score in pairs if str(id) in documents}
                    if all(map(math.isfinite, found.values())):
                        scores[query] |= found
                        continue
                raise CaiError(f"{path}: query {query!r} needs one number as score for each passage")
    margins = {
        query: {id: scores[query][positive] - scores[query][id] for id in negatives if id in scores[query]}
        for query, positive, negatives in sampled.values()
        if positive in scores[query]
    }
    if not any(margins.values()):
        paths = ", ".join(map(str, settings.scores))
        raise CaiError(f"{paths}: no scores of the queries and passages in {settings.hard_negatives}")
    return {query: negatives for query, negatives in margins.items() if negatives}


def score(settings: ScoreSettings) -> Path:
    """Add margins to a training file. Interim results are kept in `.<output>.batches`."""
    checkpoint = load_checkpoint(settings.cross_encoder)
    batches = settings.output.with_name(f".{settings.output.name}.batches")
    inputs = {"data": artifact.file_digest(settings.data), "checkpoint": checkpoint_digest(checkpoint, modules=True)}
    recipe = artifact.recipe("trainer score", inputs)

    def write(path: Path) -> artifact.Stats:
        total = count(settings.data, margins=False, negatives=1)  # checks all lines before hours of scoring
        load = cache(lambda: CrossEncoder(checkpoint, settings.device, activated=False))

        def records(number: int, lines: Sequence[Example]) -> Iterator[Example]:
            queries = [line["query"] for line in lines for _ in range(1 + len(line["negatives"]))]
            texts = [text for line in lines for text in (line["positive"], *line["negatives"])]
            scores = iter(load().score(queries, texts).tolist())
            for line in lines:
                positive = next(scores)
                yield line | {"margins": [round(positive - next(scores), 4) for _ in line["negatives"]]}
                bar.update()

        with progress(range(0), total, "score", "lines") as bar:
            lines = (line for _, line in read(settings.data))
            return {"lines": jsonl.write(path, in_batches(lines, INTERIM_LINES, batches, recipe, records))}

    artifact.make(settings.output, recipe, write, folder=False)
    remove(batches)
    return settings.output
