"""The pool to judge: the best documents of each query, in a different order for each judge."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from cai_pyserini.collections.records import Columns, read_records
from cai_pyserini.collections.values import checked_id
from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.open import index_with_texts, open_systems
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.judgments import Grades, Judgments
from cai_pyserini.runs.trec import read_run, removes_query, run_of, scores_by_query, top, without_query

# Suggest training from this many judged queries with a relevant document on: 400 of SciFact's improve splade and the
# hybrid significantly, 200 do not (docs/experiments/reproduction.md has the curve).
ENOUGH_QUERIES = 400


class Pool(NamedTuple):
    """Queries, their pooled documents, and the texts of these."""

    topics: dict[str, str]
    documents: dict[str, set[str]]  # by query with hits, in the order of the topics
    text: Callable[[str], Stored | None]  # None: not stored
    language: Language


def open_pool(folder: Path, systems: Sequence[str], depth: int, topics: Path | None = None) -> Pool:
    """The best `depth` documents of each system's run, for the queries of the file `topics`, or of the collection.

    Documents are read from an index of the folder that stores them, or else from the collection. Raises CaiError if a
    run is missing, has no hits for any of the queries, or has documents that are not in the collection.
    """
    run = RunFolder(folder)
    texts = topics_of(run, topics)
    documents = pooled_documents(run, systems, depth, texts)
    language = run.experiment.collection.language if run.is_finished else ENGLISH
    text = stored_texts(run, ids := set().union(*documents.values()))
    if missing := min((id for id in ids if text(id) is None), default=None):
        raise CaiError(
            f"the runs of {folder} have documents, such as {missing!r}, that its indexes and collection do not have: "
            "search again"
        )
    return Pool(texts, documents, text, language)


def topics_of(run: RunFolder, topics: Path | None) -> dict[str, str]:
    """The queries of a file, or of the run's collection."""
    return _read_topics(topics) if topics else run.topics


def pooled_documents(run: RunFolder, systems: Sequence[str], depth: int, topics: dict[str, str]) -> dict[str, set[str]]:
    """The pool of each query that has hits, in the order of the topics. Raises CaiError like `open_pool`."""
    pooled: dict[str, set[str]] = {}
    for name in systems:
        for query, scores in scores_by_query(top(run_of_system(run, name, topics, depth), depth)).items():
            pooled.setdefault(query, set()).update(scores)
    documents = {query: pooled[query] for query in topics if query in pooled}
    if not documents:
        raise CaiError(f"no query is in the runs of {run.root}: give --topics of the runs")
    return documents


def run_of_system(run: RunFolder, name: str, topics: dict[str, str], hits: int) -> pd.DataFrame:
    """The run of a system; if it is missing or out of date, as after an update, the hits of a search of its indexes."""
    relative = Path("runs", f"{name}.trec")
    path = run.root / relative
    is_foreign = path.exists() and not artifact.read_manifest(path)
    if is_foreign or (path.parent.is_dir() and not run.is_finished) or run.has(run.folder / relative):
        return read_run(path)
    try:
        engine = open_systems([run.folder], [name])[name]
    except CaiError as error:
        remedy = f"`cai-pyserini update {run.root} --evaluate` makes it"
        raise CaiError(f"no run {path}: {remedy}; its indexes cannot be searched instead: {error}") from None
    remove = removes_query(run.experiment.collection.remove_query, run.qrels)
    rankings = zip(topics, engine.search([*topics.values()], hits + remove), strict=True)
    engine.close()
    searched = run_of({query: [(hit.id, hit.score) for hit in ranking] for query, ranking in rankings})
    return top(without_query(searched), hits) if remove else searched


def runs_of_systems(run: RunFolder, systems: Sequence[str], topics: dict[str, str]) -> dict[str, pd.DataFrame]:
    """The runs of systems by name, as `run_of_system` finds them."""
    hits = run.experiment.collection.hits if run.is_finished else 0
    return {name: run_of_system(run, name, topics, hits) for name in systems}


def _read_topics(path: Path) -> dict[str, str]:
    topics = {}
    for where, values in read_records(path, Columns()):
        if not isinstance(values["text"], str) or not values["text"].strip():
            raise CaiError(f"{where}: the query has no text")
        topics[checked_id(values["id"], where)] = " ".join(normalized(values["text"]).split())
    return topics


def stored_texts(run: RunFolder, ids: Collection[str]) -> Callable[[str], Stored | None]:
    """A function from each of these ids to its document, read from an index that stores it or else the collection."""
    has_passages = run.is_finished and run.experiment.collection.passages  # then indexes store no whole documents
    if not has_passages and (index := index_with_texts(run)):
        return index.document
    records = (record for record in run.collection.records(whole=True) if record.id in ids)
    return {r.id: Stored(r.id, r.title, f"{r.title} {r.text}", r.metadata) for r in records}.get


def shuffled(judge: str, query: str, documents: Collection[str]) -> list[str]:
    """Shuffle documents, in a stable order that depends on judge and query."""
    return sorted(documents, key=lambda id: blake2b(f"{judge}\n{query}\n{id}".encode()).digest())


def next_query(pool: Mapping[str, Collection[str]], mine: Grades, counts: Counter[str], shared: int) -> str | None:
    """The next query for a judge with the grades `mine`: one that is started, else one of the first `shared`, which
    everybody judges, else the one with the fewest judgments (`counts`). None if all are done."""
    positions = {query: position for position, query in enumerate(pool)}
    unfinished = (query for query in pool if set(pool[query]) - mine.get(query, {}).keys())

    def priority(query: str) -> tuple[bool, bool, int, int]:
        is_shared = positions[query] < shared
        return query not in mine, not is_shared, 0 if is_shared else counts[query], positions[query]

    return min(unfinished, key=priority, default=None)


def proposal(folder: Path, database: Path) -> str:
    """How many judged queries a database has to train on, for the run's current documents, and the suggestion to train
    if they are enough. Raises CaiError for a file that is not such a database."""
    judgments = Judgments(database)
    judgments.limit_to(None, stored_texts(RunFolder(folder), judgments.documents()))
    queries = len({judged.query for judged in judgments.all() if judged.grade > 0})
    left_out = f" ({text})" if (text := judgments.left_out()) else ""
    count = f"queries of {database} with a relevant document: {queries:,}{left_out}"
    if queries < ENOUGH_QUERIES:
        return f"{count}; training is suggested from {ENOUGH_QUERIES} on"
    return (
        f"{count}, enough to train an encoder on ({ENOUGH_QUERIES} or more); with the systems that were judged, whose "
        f"runs --evaluate makes, begin with `cai-pyserini judge examples {folder} --database {database} "
        "--output train.jsonl --systems SYSTEM …`"
    )
