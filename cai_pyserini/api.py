"""The functions and classes of `import cai_pyserini as cai`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from cai_pyserini.collections.beir_folder import read_judgments
from cai_pyserini.collections.contract import Qrels
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core import steps
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError as CaiError
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import build
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.search import Engine as Engine
from cai_pyserini.engine.search import Hit as Hit
from cai_pyserini.experiments.make import index as index
from cai_pyserini.experiments.make import run as run
from cai_pyserini.experiments.open import Run as Run
from cai_pyserini.experiments.open import open_index as open_index
from cai_pyserini.models.device import Precision
from cai_pyserini.models.encoder import Encoder as ModelEncoder
from cai_pyserini.runs import significance
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.fusions import DEFAULT, DEPTH
from cai_pyserini.runs.measures import MEASURES, mean, measure
from cai_pyserini.runs.significance import Comparison as Comparison
from cai_pyserini.runs.trec import ranks, read_run, run_of, sorted_run
from cai_pyserini.trainer.adapt_settings import AdaptSettings
from cai_pyserini.vectors.queries import Representation, encode_queries

type Ranking = str | Path | pd.DataFrame | Mapping[str, Mapping[str, float]]
type Judgments = str | Path | pd.DataFrame | Mapping[str, Mapping[str, int]] | Iterable[ir_measures.Qrel]


def open(folder: str | Path, *, device: str = "auto") -> Run:
    """Open a finished run.

    >>> with cai.open("runs/tiny") as run:
    ...     [hit.id for hit in run["bm25"].search("high blood pressure", k=2)]
    ['d10', 'd5']
    """
    return Run(folder, device)


def evaluate(ranking: Ranking, qrels: Judgments, measures: Sequence[str] = MEASURES) -> dict[str, float]:
    """The means of measures, named as in ir_measures, over the judged queries; one without hits counts 0.

    A ranking is a DataFrame as `Engine.rank` returns it, {query: {document: score}}, or a file in TREC's format. Qrels
    are {query: {document: grade}}, a DataFrame with `query_id`, `doc_id` and `relevance`, ir_measures' qrels, a file in
    TREC's or BEIR's format, or the name of a collection. Ties have the order of the ranking.

    >>> cai.evaluate({"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 1}}, ["RR@10"])
    {'RR@10': 0.5}
    """
    found = measure(_qrels(qrels), _run(ranking), measures)
    return {name: mean(values) for name, values in found.items()}


def compare(first: Ranking, second: Ranking, qrels: Judgments, measure_name: str = "nDCG@10") -> Comparison:
    """The mean difference, second minus first, and p of the two-sided paired t-test over queries (None below 10).

    >>> qrels = {"q1": {"d2": 1}}
    >>> cai.compare({"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 1.0}}, qrels, "RR@10")
    Comparison(difference=0.5, p=None)
    """
    judged = _qrels(qrels)
    values = [measure(judged, _run(ranking), [measure_name])[measure_name] for ranking in (first, second)]
    return significance.compare(values[0], {"second": values[1]})["second"]


def fuse(
    rankings: Sequence[Ranking],
    method: str = DEFAULT,
    weights: Sequence[float] | None = None,
    depth: int = DEPTH,
    k: int = 1000,
) -> pd.DataFrame:
    """Fuse the best `depth` documents of each ranking by one of runs.fusions.FUSIONS, such as sum, minmax or zscore.

    Returns at most `k` hits per query: `query_id`, `doc_id`, `score` and `rank`.

    >>> cai.fuse([{"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 3.0}}])[["doc_id", "score"]].values.tolist()
    [['d2', 4.0], ['d1', 2.0]]
    """
    fused = fuse_runs([_run(ranking) for ranking in rankings], method, depth, k, weights)
    return fused.astype({"query_id": object, "doc_id": object}).assign(rank=ranks(fused))


def adapt(collection: str | Path, output: str | Path, base: str | Path = "splade-tiny", **settings: Any) -> Path:
    """Adapt a SPLADE checkpoint, and with `dense` a dense encoder too, to a collection, with nothing but its documents.

    As `cai-pyserini adapt`, whose settings are keywords. Returns `output`, an encoder for `index`, `run` and `Encoder`;
    an interrupted adaptation continues. Needs the extra `trainer`.
    """
    require_trainer()
    from cai_pyserini.trainer.adapt import steps as adaptation

    values = {"collection": str(collection), "output": Path(output), "base": str(base)} | settings
    of_settings = build(AdaptSettings, values, "")
    with redirect_stdout(sys.stderr):  # the seconds of each step
        steps.run(adaptation(of_settings))
    steps.require_unchanged(adaptation(of_settings), of_settings.output)
    return of_settings.output


class Encoder:
    """An encoder of documents and queries, with the methods of sentence-transformers: SPLADE or dense.

    `name` is one in encoders/, a YAML file, a checkpoint folder, or a Hugging Face model id. Raises CaiError for one
    that does not exist.

    >>> encoder = cai.Encoder("splade-tiny")
    >>> [token for token, weight in encoder.decode(encoder.encode_query("short fingers"), 2)]
    ['short', 'finger']
    """

    def __init__(self, name: str | Path, device: str = "auto", precision: Precision = "auto"):
        self._encoder = ModelEncoder(load_encoder(str(name)), device, precision)

    def encode_document(self, texts: str | Sequence[str]) -> csr_matrix | np.ndarray:
        """The vectors of documents, title and text joined by a space: (texts, vocabulary) or (texts, width), without
        IDF; of a single text, (1, vocabulary) or (width,)."""
        config, model = self._encoder.config, self._encoder.load("documents")
        vectors = model.encode(_several(texts), config.max_document_length, overlap=config.overlap)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(self, texts: str | Sequence[str], query: Representation | None = None) -> csr_matrix | np.ndarray:
        """The vectors of queries, like those of documents; `query` is splade or bow, a bag of word pieces."""
        vectors = encode_queries(self._encoder, _several(texts), query)
        return vectors[0] if isinstance(texts, str) else vectors

    def decode(self, vector: csr_matrix, top_k: int | None = None) -> list[tuple[str, float]]:
        """The tokens of a SPLADE vector (1, vocabulary) with their weights, the largest first."""
        terms = self._encoder.tokenizer.terms
        order = np.argsort(-vector.data, kind="stable")[:top_k]
        return [(terms[vector.indices[place]], float(vector.data[place])) for place in order]


def _several(texts: str | Sequence[str]) -> list[str]:
    return [normalized(text) for text in ([texts] if isinstance(texts, str) else texts)]


def _run(ranking: Ranking) -> pd.DataFrame:
    """A ranking as a run, see runs.trec."""
    if isinstance(ranking, str | Path):
        return read_run(Path(ranking))
    if isinstance(ranking, pd.DataFrame):
        if missing := [name for name in ("query_id", "doc_id", "score") if name not in ranking.columns]:
            raise CaiError(f"a ranking has no column {missing[0]}, but {', '.join(map(str, ranking.columns))}")
        return sorted_run(ranking[["query_id", "doc_id", "score"]])
    return run_of({query: [*scores.items()] for query, scores in ranking.items()})


def _qrels(qrels: Judgments) -> Qrels:
    if isinstance(qrels, str | Path):
        if not Path(qrels).is_file() or str(qrels).endswith((".yaml", ".yml")):
            config = load_index_config(str(qrels))
            return open_collection(config).qrels(config.split)
        judgments: Iterable[tuple[str, str, int]] = (judgment[1:] for judgment in read_judgments(Path(qrels)))
    elif isinstance(qrels, Mapping):
        return {query: dict(grades) for query, grades in qrels.items()}
    else:
        rows: Iterable[Any] = qrels.itertuples() if isinstance(qrels, pd.DataFrame) else qrels
        judgments = ((row.query_id, row.doc_id, row.relevance) for row in rows)
    found: Qrels = {}
    for query, document, grade in judgments:
        found.setdefault(str(query), {})[str(document)] = int(grade)
    return found
