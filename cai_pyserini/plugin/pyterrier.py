"""A retriever for PyTerrier, and collections as its datasets."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.processes import processors
from cai_pyserini.engine.search import Engine
from cai_pyserini.plugin.documents import stored
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.trec import strictly_descending


class CaiRetriever(pt.Transformer):
    """Queries -> the best `num_results` documents of a system, as columns `docno`, `score`, `rank`, and with `text` the
    `text` of the document or of its best passage.

    Scores are strictly descending, as in this package's runs, because measures sort documents by score.
    """

    def __init__(self, engine: Engine, num_results: int = 1000, filter: str | None = None, text: bool = False):
        self.engine, self.num_results, self.filter, self.text = engine, num_results, filter, text

    def __repr__(self) -> str:
        return f"CaiRetriever({self.engine.name})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, ["query"])
        queries, threads = inp["query"].tolist(), processors()
        rankings = self.engine.search(queries, self.num_results, threads, self.filter) if queries else []
        hits = [hit for ranking in rankings for hit in ranking]
        rows = np.repeat(np.arange(len(inp)), np.array([len(ranking) for ranking in rankings], int))
        run = Rankings([], [], rows, rows, np.array([hit.score for hit in hits], float))
        columns: dict[str, Any] = {
            "docno": pd.Series([hit.id for hit in hits], dtype=object),
            "score": strictly_descending(run),
            "rank": pd.Series([hit.rank - 1 + pt.model.FIRST_RANK for hit in hits], dtype=int),
        }
        if self.text:
            columns["text"] = pd.Series([stored(self.engine, hit).contents for hit in hits], dtype=object)
        return inp.iloc[rows].reset_index(drop=True).assign(**columns)


class CaiDataset(pt.datasets.Dataset):
    """A collection, as of load_index_config; a variant of its topics and qrels is a split."""

    def __init__(self, collection: str):
        config = load_index_config(collection)
        self._split, self._collection = config.split, open_collection(config)

    def get_corpus_iter(self, *, verbose: bool = True) -> Iterator[dict[str, str]]:
        return ({"docno": d.id, "title": d.title, "text": d.text} for d in self._collection.records())

    def get_topics(self, variant: str | None = None) -> pd.DataFrame:
        topics = self._collection.topics(variant or self._split)
        return pd.DataFrame({"qid": list(topics), "query": list(topics.values())})

    def get_qrels(self, variant: str | None = None) -> pd.DataFrame:
        qrels = self._collection.qrels(variant or self._split)
        rows = [(query, document, grade) for query, grades in qrels.items() for document, grade in grades.items()]
        return pd.DataFrame(rows, columns=["qid", "docno", "label"])
