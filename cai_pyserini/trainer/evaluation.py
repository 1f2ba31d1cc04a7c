"""What a training measures on data that it does not learn from: nDCG@10 on a sample of a collection."""

from collections.abc import Callable
from heapq import nsmallest
from typing import Any, NamedTuple

import numpy as np

from cai_pyserini.collections.contract import Qrels
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.idf import idf_digest
from cai_pyserini.runs.measures import mean, measure
from cai_pyserini.runs.rankings import Rankings, best_hits
from cai_pyserini.trainer.examples import text_id
from cai_pyserini.trainer.settings import NDCG, PairSettings

QUERIES = 1000  # at most


class JudgedSample(NamedTuple):
    """The texts by id, in order, of judged queries and of documents, and the judgments."""

    queries: dict[str, str]
    documents: dict[str, str]
    qrels: Qrels

    def ndcg(self, score: Callable[[list[str], list[str]], np.ndarray]) -> float:
        """Mean nDCG@10 of all documents, ranked by scores (queries, documents) above 0 of the texts."""
        scores = score([*self.queries.values()], [*self.documents.values()])
        hits = best_hits(np.where(scores > 0, scores, -np.inf), 10)
        return mean(measure(self.qrels, Rankings([*self.queries], [*self.documents], *hits), [NDCG])[NDCG])


def judged_sample(settings: PairSettings) -> JudgedSample | None:
    """Read the collection that a training is evaluated on, if any: queries, all their relevant documents, and random
    others up to the size of the sample. Raises CaiError if nothing is relevant."""
    if not settings.eval_collection:
        return None
    collection, split = load_collection(settings.eval_collection), settings.eval_split
    qrels, topics = collection.qrels(split), collection.topics(split)
    queries = {id: topics[id] for id in sorted(nsmallest(QUERIES, topics, text_id))}
    relevant = {document for id in queries for document, grade in qrels[id].items() if grade > 0}
    if not relevant:
        raise CaiError(f"collection {collection.name}: no document is relevant for a query of split {split!r}")
    size, records = max(settings.eval_documents, len(relevant)), collection.records(whole=True)
    chosen = nsmallest(size, records, lambda record: (record.id not in relevant, text_id(record.id)))
    documents = {record.id: collection.contents_of(record) for record in sorted(chosen, key=lambda each: each.id)}
    return JudgedSample(queries, documents, {id: qrels[id] for id in queries})


def identities(settings: PairSettings) -> dict[str, Any]:
    """The digests, for recipes, of what else shapes a training: the IDF, and what chooses its weights."""
    found: dict[str, Any] = {"idf": idf_digest(settings.idf)}
    if settings.keep_best and settings.eval_data:
        found["eval_data"] = artifact.file_digest(settings.eval_data)
    if settings.keep_best and settings.eval_collection:
        collection, parts = load_collection(settings.eval_collection), ("documents", "queries", settings.eval_split)
        found["eval_collection"] = [*map(collection.fingerprint, parts)]
    return found
