"""The pool to judge: the best documents of each query, in a different order for each judge."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.collections.records import Columns, read_records
from cai_pyserini.collections.values import checked_id
from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.open import index_with_texts
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.judgments import Grades
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.trec import read_run, scores_by_query, top


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
    pooled: dict[str, set[str]] = {}
    for name in systems:
        for query, scores in scores_by_query(top(run_of_system(run, name), depth)).items():
            pooled.setdefault(query, set()).update(scores)
    documents = {query: pooled[query] for query in texts if query in pooled}
    if not documents:
        raise CaiError(f"no query is in the runs of {run.root}: give --topics of the runs")
    language = run.experiment.collection.language if run.is_finished else ENGLISH
    text = stored_texts(run, ids := set().union(*documents.values()))
    if missing := min((id for id in ids if text(id) is None), default=None):
        raise CaiError(
            f"the runs of {folder} have documents, such as {missing!r}, that its indexes and collection do not have: "
            "search again"
        )
    return Pool(texts, documents, text, language)


def topics_of(run: RunFolder, path: Path | None) -> dict[str, str]:
    """The queries of a file, or of the run's collection."""
    if not path:
        return run.topics
    topics = {}
    for where, values in read_records(path, Columns()):
        if not isinstance(values["text"], str) or not values["text"].strip():
            raise CaiError(f"{where}: the query has no text")
        topics[checked_id(values["id"], where)] = " ".join(normalized(values["text"]).split())
    return topics


def run_of_system(run: RunFolder, name: str) -> Rankings:
    """The run of a system, which another tool may have written. Raises CaiError if it is missing or out of date, as
    after an update."""
    path = run.root / "runs" / f"{name}.trec"
    if path.is_file() and not artifact.read_manifest(path):
        return read_run(path)
    if run.is_finished and run.has(output := ranking_of(parse_system(name), run).output):
        return read_run(output)
    raise CaiError(f"{path} is missing or out of date: run the system again, or `cai-pyserini update --evaluate`")


def stored_texts(run: RunFolder, ids: Collection[str]) -> Callable[[str], Stored | None]:
    """A function from each of these ids to its document, read from an index that stores it or else the collection."""
    has_passages = run.is_finished and run.experiment.collection.passages  # then indexes store no whole documents
    if not has_passages and (index := index_with_texts(run)):
        return index.document
    records = (record for record in run.collection.records(whole=True) if record.id in ids)
    return {r.id: Stored(r.id, r.title, f"{r.title} {r.text}", r.metadata, language=r.language) for r in records}.get


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
