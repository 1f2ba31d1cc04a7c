"""The functions and classes of `import cai_pyserini as cai`."""

import logging
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import ir_measures
import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.collections import in_python
from cai_pyserini.collections.beir_folder import read_judgments
from cai_pyserini.collections.contract import OF_PYTHON, Qrels
from cai_pyserini.collections.in_python import Documents
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.collections.values import checked_count, checked_path
from cai_pyserini.core import steps
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError as CaiError
from cai_pyserini.core.errors import did_you_mean
from cai_pyserini.core.files import atomic_write
from cai_pyserini.core.flags import MEASURES
from cai_pyserini.core.lock import require_free
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.settings import build
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.hits import Hit as Hit
from cai_pyserini.engine.open import Run as Run
from cai_pyserini.engine.open import open_index as open_index
from cai_pyserini.engine.search import Engine as Engine
from cai_pyserini.engine.search import texts_of
from cai_pyserini.experiments.by_language import default_system
from cai_pyserini.experiments.evaluations import compared
from cai_pyserini.experiments.grid import Grid
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunOptions, RunSettings
from cai_pyserini.models.device import Precision
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.runs.compared import Compared as Compared
from cai_pyserini.runs.compared import run_names
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.fusions import DEFAULT, DEPTH
from cai_pyserini.runs.measures import PerQuery, mean, measure, require_judged
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.trec import read_run, sorted_run
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.vectors.queries import Representation, encode_queries

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

type Types = Mapping[str, str]  # of metadata, by name
type Ranking = str | Path | pd.DataFrame | Mapping[Any, Mapping[Any, float] | Iterable[Any]] | Iterable[Any]
type Judgments = str | Path | pd.DataFrame | Mapping[Any, Mapping[Any, int]] | Iterable[Any]


def open(folder: str | Path, *, device: str = "auto") -> Run:
    """Open a finished run.

    >>> with cai.open("runs/tiny") as run:
    ...     [hit.id for hit in run["bm25"].search("high blood pressure", k=2)]
    ['d10', 'd5']
    """
    return Run(folder, device)


def index(
    documents: str | Path | Documents,
    folder: str | Path | None = None,
    *,
    system: str | None = None,
    encoder: str | Path = "splade-tiny",
    dense: str | Path | None = None,
    metadata: Types | None = None,
    **settings: Unpack[RunOptions],
) -> Engine:
    """Index documents, and open the index. The same call again opens it at once, if the documents are the same.

    `documents` are a folder in BEIR's layout, a folder of files (PDF, Word, HTML, …), a file of documents, the name of
    a collection, texts, {id: text}, (id, text) pairs, or dicts or rows of a table (pandas, polars, Arrow) with `text`
    and, as they have them, `id` (or `_id`, `docid`, `docno`, `doc_id`), `title` and metadata; ids are by default their
    labels in pandas, or their numbers, from 0. Everything is kept in `folder`, by default `runs/COLLECTION/ENCODER`, or
    a temporary one for what is not in files. The default `system` is joint, SPLADE and BM25 in one index; with a dense
    encoder, joint-near. For documents in other languages than English, which the default encoder does not know, it is
    bm25-grams-near-words with e5-small if that is installed, or else bm25-grams. `metadata` has the types of metadata
    by name: number, string, date or list. Without it, they are inferred, except in files; booleans become 0 and 1.
    `settings` are those of `cai-pyserini run`. Raises CaiError for what cannot be read.

    >>> index = cai.index(["Brachydactyly: short digits of the hand", "Macrocephaly: an enlarged skull"])
    >>> [hit.id for hit in index.search("large skull", k=1)]
    ['1']
    """
    options = _options(index, settings)
    system = system and parse_system(system).name
    temporary = None
    if isinstance(documents, str | Path) and RunFolder(checked_path(documents, "documents")).is_finished:
        raise CaiError(f"{documents} is a finished run: open it with cai.open({str(documents)!r})")
    collection, types = documents, metadata
    try:
        if not isinstance(collection, str | Path):
            build(RunSettings, options | {"collections": [""]}, "")  # to refuse values before anything is written
            if folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="cai-pyserini-")
                folder = Path(temporary.name) / "run"
            folder = checked_path(folder, "folder")
            collection, types = _written(collection, folder, metadata, bool(settings.get("strict")))
        if system is None:
            chosen = {"collections": [str(collection)], "encoder": str(encoder), "dense": dense and str(dense)}
            grid = Grid(build(RunSettings, chosen | options, ""))
            system = default_system(grid.settings, grid.languages[str(collection)])
        made = run(
            collection, [system], folder=folder, encoder=encoder, dense=dense, metadata=types, evaluate=False, **options
        )
        engine = made.open(system)
    except BaseException:
        if temporary:
            temporary.cleanup()
        raise
    if temporary:
        weakref.finalize(engine, temporary.cleanup)
    return engine


def run(
    collection: str | Path,
    systems: str | Sequence[str] = (),
    *,
    folder: str | Path | None = None,
    encoder: str | Path = "splade-tiny",
    dense: str | Path | None = None,
    metadata: Types | None = None,
    evaluate: bool = True,
    **settings: Unpack[RunOptions],
) -> Run:
    """Run an experiment, and open it: indexes of the systems, and their measures if the collection has qrels.

    As `cai-pyserini run`, whose other settings are keywords (`passages=100`, `device="cuda"`, `adapt=True`); what is up
    to date is not done again, and an interrupted run continues. Without `evaluate`, only indexes are made. Raises
    CaiError for settings that do not exist.

    >>> run = cai.run("tests/data/tiny", ["bm25", "joint"], folder="runs/tiny")
    >>> run.systems
    ['joint', 'bm25']
    """
    checked_path(collection, "the collection")
    given = {
        "collections": [str(collection)],
        "systems": [systems] if isinstance(systems, str) else [*systems],
        "output": None if folder is None else checked_path(folder, "folder"),
        "encoder": str(encoder),
        "dense": dense and str(dense),
    }
    values = {name: value for name, value in (given | _options(run, settings)).items() if value is not None}
    changes = {"metadata": dict(metadata)} if metadata else {}
    cell, *others = Grid(build(RunSettings, values, ""), **changes).cells
    if others:
        raise CaiError(f"{len(others) + 1} runs: cai.run takes one seed, and `cai-pyserini run` several")
    prepared = cell.prepare()
    with redirect_stdout(sys.stderr):  # the seconds of each step
        prepared.execute(evaluate)
    return Run(prepared.run.root, cell.settings.device)


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
    return {name: mean(values) for name, values in _measured(ranking, _qrels(qrels), _names(measures)).items()}


def compare(
    rankings: Run | str | Path | Mapping[str, Ranking] | Sequence[Ranking],
    qrels: Judgments | None = None,
    measures: str | ir_measures.Measure | Sequence[Any] = (),
    *,
    systems: Sequence[str] = (),
) -> Compared:
    """Compare rankings with each other by the first measure: a table with intervals, effect sizes and tests.

    `rankings` are a finished run, or its folder, whose `systems` (by default all) are compared, or rankings by name, or
    a list of them, as `evaluate` takes them with `qrels`. They are compared with the first one too (of a run, with
    bm25). The result is a table as a text, and in other formats with `to_latex()` and `render("markdown")`;
    `comparisons` and `pairs` have the numbers, without tests below 10 queries. A judged query without hits counts 0.

    >>> runs = {"one": {"q1": {"d1": 2.0, "d2": 1.0}}, "two": {"q1": {"d2": 1.0}}}
    >>> compared = cai.compare(runs, {"q1": {"d2": 1}}, "RR@10")
    >>> compared.systems
    {'one': {'RR@10': 0.5}, 'two': {'RR@10': 1.0}}
    >>> compared.pairs["one"]["two"].difference
    0.5
    """
    names = _names(measures)
    if isinstance(rankings, Run | str | Path):
        folder = rankings.folder if isinstance(rankings, Run) else checked_path(rankings, "the run folder")
        if qrels is not None:
            raise CaiError(f"{folder} has its own qrels: give none, or rankings by name")
        return compared(RunFolder(folder), systems, names)
    if qrels is None or systems:
        raise CaiError("rankings need qrels; `systems` are those of a finished run")
    if in_python.is_table(rankings):
        raise CaiError(f"compare takes rankings by name, or a list of them; this is a {type(rankings).__name__}")
    if not isinstance(rankings, Mapping):
        files = run_names(Path(each) for each in rankings if isinstance(each, str | Path))
        rankings = {
            files[Path(each)] if isinstance(each, str | Path) else str(n): each for n, each in enumerate(rankings, 1)
        }
    if not rankings:
        raise CaiError("there are no rankings to compare")
    judged = _qrels(qrels)
    measured = {name: _measured(each, judged, names or MEASURES, name) for name, each in rankings.items()}
    return Compared.of(measured)


def _names(measures: str | ir_measures.Measure | Sequence[Any]) -> list[str]:
    return [str(name) for name in ([measures] if isinstance(measures, str | ir_measures.Measure) else measures)]


def fuse(
    rankings: Iterable[Ranking],
    method: str = DEFAULT,
    weights: Sequence[float] | None = None,
    depth: int = DEPTH,
    k: int = 1000,
) -> "pd.DataFrame":
    """Fuse the best `depth` documents of each ranking by one of runs.fusions.FUSIONS, such as sum, minmax or zscore.

    Rankings are as those of `evaluate`. Returns at most `k` hits per query: `query_id`, `doc_id`, `score` and `rank`.

    >>> cai.fuse([{"q1": {"d1": 2.0, "d2": 1.0}}, {"q1": {"d2": 3.0}}])[["doc_id", "score"]].values.tolist()
    [['d2', 4.0], ['d1', 2.0]]
    """
    if isinstance(rankings, str | Path | Mapping) or in_python.is_table(rankings):
        raise CaiError(f"fuse takes a list of rankings; this is a {type(rankings).__name__}")
    several = [_run(ranking) for ranking in rankings]
    return fuse_runs(several, method, checked_count(depth, "depth"), checked_count(k, "k"), weights).to_dataframe()


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
        self._encoder = EncoderModel(load_encoder(str(name)), device, precision)

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


def _options(function: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call. Raises CaiError for one that does not exist, with the nearest that does."""
    known = [*RunOptions.__annotations__, *(each for each in signature(function).parameters if each != "settings")]
    if unknown := next((name for name in options if name not in known), None):
        hint = did_you_mean(unknown, known) if unknown != "output" else "; did you mean folder?"
        raise CaiError(f"{function.__name__} has no keyword {unknown!r}{hint or f'; it has {", ".join(known)}'}")
    return {name: value for name, value in options.items() if value is not None}


def _written(
    documents: Documents, folder: Path, metadata: Mapping[str, str] | None, strict: bool
) -> tuple[Path, Types]:
    """Write documents beside the run folder that is made of them, and return their types of metadata too. Raises
    CaiError for what is no document, and if there is another file of that name."""
    path, run = folder.with_name(f"{folder.name}{OF_PYTHON}"), RunFolder(folder)
    of_run = Path(run.experiment.collection.source).resolve() if run.is_finished else None
    if path.exists() and not (of_run == path.resolve() if of_run else run.lock.exists()):
        raise CaiError(f"{path} is not what an index in {folder} was made of: choose another folder")
    if run.lock.exists():
        require_free(run.lock, folder)  # another process would index these documents
    types = in_python.MetadataTypes(metadata, strict)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line for _, line in in_python.lines(in_python.documents(documents), types))
    found = types.found()
    folder.mkdir(exist_ok=True)
    run.lock.touch()  # the folder, and so the file, are ours, even if the run is interrupted now
    return path, found


def _several(texts: str | Iterable[str]) -> list[str]:
    return [*map(normalized, texts_of(texts, "text", ": give the texts alone"))]


def _measured(ranking: Ranking, qrels: Qrels, measures: Sequence[str], which: str = "a ranking") -> PerQuery:
    run, which = _run(ranking), str(ranking) if isinstance(ranking, str | Path) else which
    require_judged({*run.query_ids}, qrels, which)
    judged = {document for grades in qrels.values() for document in grades}
    if judged and len(run) and judged.isdisjoint(found := run.doc_ids):
        ids = f"such as {found[0]!r}, and those of the qrels such as {min(judged)!r}"
        logger.warning("%s: none of its documents is judged for any query; its ids are %s", which, ids)
    return measure(qrels, run, measures)


def _run(ranking: Ranking) -> Rankings:
    """A ranking as a run, see runs.trec."""
    if isinstance(ranking, str | Path):
        return read_run(Path(ranking))
    return sorted_run(Rankings.of(*in_python.ranking(ranking)))


def _qrels(qrels: Judgments) -> Qrels:
    if not isinstance(qrels, str | Path):
        return in_python.qrels(qrels)
    if not Path(qrels).is_file() or str(qrels).endswith((".yaml", ".yml")):
        config = load_index_config(str(qrels))
        return open_collection(config).qrels(config.split)
    return in_python.qrels(judgment[1:] for judgment in read_judgments(Path(qrels)))
