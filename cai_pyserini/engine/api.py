"""The functions and classes of `import cai_pyserini as cai`."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from cai_pyserini.collections import in_python
from cai_pyserini.collections.beir_folder import read_judgments
from cai_pyserini.collections.contract import Qrels
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.collections.values import checked_count, checked_path
from cai_pyserini.core import steps
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError as CaiError
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import build
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.hits import Hit as Hit
from cai_pyserini.engine.make import index as index
from cai_pyserini.engine.make import open_run
from cai_pyserini.engine.make import run as run
from cai_pyserini.engine.open import Run as Run
from cai_pyserini.engine.open import open_index as open_index
from cai_pyserini.engine.search import Engine as Engine
from cai_pyserini.models.device import Precision
from cai_pyserini.models.encoder import Encoder as ModelEncoder
from cai_pyserini.runs import significance
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.fusions import DEFAULT, DEPTH
from cai_pyserini.runs.measures import MEASURES, PerQuery, mean, measure, require_judged
from cai_pyserini.runs.significance import Comparison as Comparison
from cai_pyserini.runs.trec import ranks, read_run, sorted_run
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.vectors.queries import Representation, encode_queries

logger = logging.getLogger(__name__)

type Ranking = str | Path | pd.DataFrame | Mapping[Any, Mapping[Any, float] | Iterable[Any]] | Iterable[Any]
type Judgments = str | Path | pd.DataFrame | Mapping[Any, Mapping[Any, int]] | Iterable[Any]


def open(folder: str | Path, *, device: str = "auto") -> Run:
    """Open a finished run.

    >>> with cai.open("runs/tiny") as run:
    ...     [hit.id for hit in run["bm25"].search("high blood pressure", k=2)]
    ['d10', 'd5']
    """
    return open_run(folder, device)


def evaluate(
    ranking: Ranking, qrels: Judgments, measures: str | ir_measures.Measure | Sequence[Any] = MEASURES
) -> dict[str, float]:
    """The means of measures, named as in ir_measures, over the judged queries; one without hits counts 0.

    A ranking is a table as `Engine.rank` returns it, {query: {document: score}}, {query: hits}, or a file in TREC's
    format. Qrels are {query: {document: grade}}, a table with `query_id`, `doc_id` and `relevance`, ir_measures' qrels,
    a file in TREC's or BEIR's format, or the name of a collection. Ids can be integers; grades below 0 count as 0. Ties
    have the order of the ranking. Raises CaiError if no query is in both, for a score that is not finite, and for a
    grade that is no integer.

    >>> cai.evaluate({"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 1}}, ["RR@10"])
    {'RR@10': 0.5}
    """
    names = [str(name) for name in ([measures] if isinstance(measures, str | ir_measures.Measure) else measures)]
    return {name: mean(values) for name, values in _measured(ranking, _qrels(qrels), names).items()}


def compare(
    first: Ranking, second: Ranking, qrels: Judgments, measure_name: str | ir_measures.Measure = "nDCG@10"
) -> Comparison:
    """The mean difference, second minus first, and p of the two-sided paired t-test over queries (None below 10).

    >>> qrels = {"q1": {"d2": 1}}
    >>> cai.compare({"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 1.0}}, qrels, "RR@10")
    Comparison(difference=0.5, p=None)
    """
    judged, name = _qrels(qrels), str(measure_name)
    rankings = {"the first ranking": first, "the second ranking": second}
    values = [_measured(ranking, judged, [name], which)[name] for which, ranking in rankings.items()]
    return significance.compare(values[0], {"second": values[1]})["second"]


def fuse(
    rankings: Iterable[Ranking],
    method: str = DEFAULT,
    weights: Sequence[float] | None = None,
    depth: int = DEPTH,
    k: int = 1000,
) -> pd.DataFrame:
    """Fuse the best `depth` documents of each ranking by one of runs.fusions.FUSIONS, such as sum, minmax or zscore.

    Rankings are as those of `evaluate`. Returns at most `k` hits per query: `query_id`, `doc_id`, `score` and `rank`.

    >>> cai.fuse([{"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 3.0}}])[["doc_id", "score"]].values.tolist()
    [['d2', 4.0], ['d1', 2.0]]
    """
    if isinstance(rankings, str | Path | Mapping | pd.DataFrame):
        raise CaiError(f"fuse takes a list of rankings; this is a {type(rankings).__name__}")
    several = [_run(ranking) for ranking in rankings]
    fused = fuse_runs(several, method, checked_count(depth, "depth"), checked_count(k, "k"), weights)
    return fused.astype({"query_id": object, "doc_id": object}).assign(rank=ranks(fused))


def adapt(collection: str | Path, output: str | Path, base: str | Path = "splade-tiny", **settings: Any) -> Path:
    """Adapt a SPLADE checkpoint, and with `dense` a dense encoder too, to a collection, with nothing but its documents.

    As `cai-pyserini adapt`, whose settings are keywords. Returns `output`, an encoder for `index`, `run` and `Encoder`;
    an interrupted adaptation continues. Needs the extra `trainer`.
    """
    require_trainer()
    from cai_pyserini.trainer.adapt import steps as adaptation

    values = {"collection": str(collection), "output": checked_path(output, "output"), "base": str(base)} | settings
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
        checked_path(name, "the encoder")
        self._encoder = ModelEncoder(load_encoder(str(name)), device, precision)

    def encode_document(self, texts: str | Iterable[str]) -> csr_matrix | np.ndarray:
        """The vectors of documents, title and text joined by a space: (texts, vocabulary) or (texts, width), without
        IDF; of a single text, (1, vocabulary) or (width,)."""
        config, model = self._encoder.config, self._encoder.load("documents")
        vectors = model.encode(_several(texts), config.max_document_length)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(self, texts: str | Iterable[str], query: Representation | None = None) -> csr_matrix | np.ndarray:
        """The vectors of queries, like those of documents; `query` is splade or bow, a bag of word pieces."""
        vectors = encode_queries(self._encoder, _several(texts), query)
        return vectors[0] if isinstance(texts, str) else vectors

    def decode(self, vector: csr_matrix | np.ndarray, top_k: int | None = None) -> list[tuple[str, float]]:
        """The tokens of a SPLADE vector (1, vocabulary) with their weights, the largest first. Raises CaiError for a
        dense vector."""
        if isinstance(vector, np.ndarray):
            raise CaiError(f"{self._encoder.config.name} is dense, and its vectors have no tokens")
        terms = self._encoder.tokenizer.terms
        order = np.argsort(-vector.data, kind="stable")[:top_k]
        return [(terms[vector.indices[place]], float(vector.data[place])) for place in order]


def _several(texts: str | Iterable[str]) -> list[str]:
    if isinstance(texts, Mapping | pd.DataFrame) or not isinstance(texts, Iterable):
        raise CaiError(f"an encoder takes a text or several; of this {type(texts).__name__}, give the texts alone")
    several = [texts] if isinstance(texts, str) else [*texts]
    for number, text in enumerate(several):
        if not isinstance(text, str):
            raise CaiError(f"text {number}, counted from 0, is a {type(text).__name__}: give a string")
    return [*map(normalized, several)]


def _measured(ranking: Ranking, qrels: Qrels, measures: Sequence[str], which: str = "a ranking") -> PerQuery:
    run, which = _run(ranking), str(ranking) if isinstance(ranking, str | Path) else which
    require_judged({*run["query_id"].cat.categories}, qrels, which)
    judged = {document for grades in qrels.values() for document in grades}
    if judged and len(run) and judged.isdisjoint(found := run["doc_id"].cat.categories):
        ids = f"such as {found[0]!r}, and those of the qrels such as {min(judged)!r}"
        logger.warning("%s: none of its documents is judged for any query; its ids are %s", which, ids)
    return measure(qrels, run, measures)


def _run(ranking: Ranking) -> pd.DataFrame:
    """A ranking as a run, see runs.trec."""
    return read_run(Path(ranking)) if isinstance(ranking, str | Path) else sorted_run(in_python.ranking(ranking))


def _qrels(qrels: Judgments) -> Qrels:
    if not isinstance(qrels, str | Path):
        return in_python.qrels(qrels)
    if not Path(qrels).is_file() or str(qrels).endswith((".yaml", ".yml")):
        config = load_index_config(str(qrels))
        return open_collection(config).qrels(config.split)
    return in_python.qrels(judgment[1:] for judgment in read_judgments(Path(qrels)))
