"""TREC runs: `query Q0 document rank score tag`, one line per hit.

In memory a run is a DataFrame with the columns `query_id` and `doc_id` (categories) and `score` (float64), sorted by
query id, then by descending score; ties keep the order of the search. In the run files of this package, scores are
strictly descending, even in single precision, so that every tool reads the order of the search; reading such a file
restores the ties. Ties of other runs are read in the order of trec_eval.
"""

import io
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Literal, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cai_pyserini.core.artifact import file_digest, read_manifest, require_if_ours
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write, require_file
from cai_pyserini.core.identity import same_documents

logger = logging.getLogger(__name__)
Hits = Sequence[tuple[str, float]]  # document id and score

SUBNORMAL = (1 << 23) - 1  # how many numbers of single precision are between 0 and the smallest normal one
BLANK = r"^$|[\t-\r\x1c-\x1f \x85\p{Z}]"  # an empty id, or a separator of str.split()


class Ranking(Sequence[tuple[str, float]]):
    """The hits of a query, best first: document `ids`, strings (hits,), and `scores`, float64 (hits,); as a sequence,
    pairs of these."""

    def __init__(self, ids: Sequence[str] | np.ndarray, scores: Sequence[float] | np.ndarray):
        self.ids, self.scores = np.array(ids, object), np.asarray(scores, np.float64)

    @classmethod
    def of(cls, hits: Hits) -> "Ranking":
        return hits if isinstance(hits, cls) else cls([id for id, _ in hits], [score for _, score in hits])

    def as_read(self) -> "Ranking":
        """What `read_run` would return after it is written, see `sorted_run`."""
        order = np.argsort(-self.scores, kind="stable")
        ranks = np.arange(1, len(order) + 1)
        return Ranking(self.ids[order], _tied(_descending(self.scores[order], ranks, 0), ranks))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self.ids.tolist(), self.scores.tolist(), strict=True)

    @overload
    def __getitem__(self, place: int) -> tuple[str, float]: ...
    @overload
    def __getitem__(self, place: slice) -> "Ranking": ...
    def __getitem__(self, place: int | slice) -> "tuple[str, float] | Ranking":
        if isinstance(place, slice):
            return Ranking(self.ids[place], self.scores[place])
        return self.ids[place], float(self.scores[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def __repr__(self) -> str:
        return f"Ranking({[*self]})"


NO_HITS = Ranking([], [])


def run_of(hits: Mapping[str, Hits]) -> pd.DataFrame:
    """The run with these hits by query id."""
    rankings = [*map(Ranking.of, hits.values())]
    queries = np.repeat(np.array(list(hits), object), [*map(len, rankings)])
    documents = np.concatenate([NO_HITS.ids, *(ranking.ids for ranking in rankings)])
    scores = np.concatenate([NO_HITS.scores, *(ranking.scores for ranking in rankings)])
    return sorted_run(pd.DataFrame({"query_id": queries, "doc_id": documents, "score": scores}))


def sorted_run(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of a run; ids become categories in string order, unless they are categories already. Scores become
    what `read_run` would return after the run is written."""
    run = _sorted(frame, lambda run: [-run["score"].to_numpy()])
    return run.assign(score=_tied(strictly_descending(run), ranks(run)))


def _sorted(frame: pd.DataFrame, sort_keys: Callable[[pd.DataFrame], list[np.ndarray]]) -> pd.DataFrame:
    """Sort the rows by query, then by `sort_keys`, the last of which is the primary one, as for np.lexsort."""
    plain = [name for name in ("query_id", "doc_id") if frame[name].dtype != "category"]
    run = frame.assign(**{name: categories(frame[name]) for name in plain})
    keys = [*sort_keys(run), run["query_id"].cat.codes.to_numpy()]
    return (run if _is_sorted(keys) else run.iloc[np.lexsort(keys)]).reset_index(drop=True)


def strictly_descending(run: pd.DataFrame) -> np.ndarray:
    """The scores of a run, (hits,), with ties lowered to the next smaller numbers of single precision."""
    return _descending(run["score"].to_numpy(), ranks(run), run["query_id"].cat.codes.to_numpy(np.int64))


def _descending(scores: np.ndarray, ranks: np.ndarray, queries: np.ndarray | int) -> np.ndarray:
    steps, offset = _steps(scores), queries << 33  # separates the queries
    lowered = np.minimum.accumulate(steps + ranks - offset) + offset - ranks
    return np.where(lowered < steps, _from_steps(lowered), scores)


def _tied(scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Undo `_descending`: successive scores that are one step apart become the first of them."""
    steps = _steps(scores)
    down = np.diff(steps, prepend=0)
    tied = ((down == 0) | ((down == -1) & (scores == _from_steps(steps)))) & (ranks > 1)
    return np.asarray(scores[_last_true(~tied)])


def _steps(scores: np.ndarray) -> np.ndarray:
    """The rank of each score among all numbers of single precision, with 0 at rank 0. Subnormal numbers count as 0,
    as in software that flushes them."""
    bits = _single(np.abs(scores)).view(np.int32).astype(np.int64)
    return np.where(scores >= 0, 1, -1) * np.maximum(bits - SUBNORMAL, 0)


@np.errstate(invalid="ignore")
def _from_steps(steps: np.ndarray) -> np.ndarray:
    """The inverse of `_steps`."""
    bits = (np.abs(steps) + SUBNORMAL).astype(np.int32)
    return np.sign(steps) * bits.view(np.float32).astype(np.float64)


@np.errstate(over="ignore")
def _single(scores: np.ndarray) -> np.ndarray:
    return scores.astype(np.float32)


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    """Whether np.lexsort of these keys would keep the order."""
    undecided = np.ones(max(len(keys[0]) - 1, 0), bool)  # adjacent rows with equal keys so far
    for key in reversed(keys):
        if (undecided & (key[1:] < key[:-1])).any():
            return False
        undecided &= key[1:] == key[:-1]
    return True


def categories(ids: pd.Series | pd.Index) -> pd.Categorical:
    """Ids as categories in string order."""
    codes, unique = pd.factorize(ids)
    names = pd.Index(unique, dtype="str")
    order = names.argsort()
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return pd.Categorical.from_codes(ranks[codes], names[order])


def ranks(run: pd.DataFrame) -> np.ndarray:
    """The rank of every hit, from 1."""
    first = np.diff(run["query_id"].cat.codes.to_numpy(), prepend=-1) != 0
    return np.arange(len(run)) - _last_true(first) + 1


def _last_true(flags: np.ndarray) -> np.ndarray:
    """For every position, the last position up to it whose flag is true; 0 if there is none."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags)), 0))


def top(run: pd.DataFrame, depth: int) -> pd.DataFrame:
    return run[ranks(run) <= depth]


def scores_by_query(run: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Scores by query id and document id, best first."""
    queries, documents = run["query_id"].astype(object), run["doc_id"].astype(object)
    scores: dict[str, dict[str, float]] = {}
    for query, document, score in zip(queries, documents, run["score"].tolist(), strict=True):
        scores.setdefault(query, {})[document] = score
    return scores


def without_query(run: pd.DataFrame) -> pd.DataFrame:
    """The run without hits whose document id equals the query id (Anserini's -removeQuery)."""
    return run[run["query_id"].astype(object) != run["doc_id"].astype(object)]


def write_run(run: pd.DataFrame, path: Path, tag: str) -> None:
    """Write a run atomically in TREC format, with the scores of `strictly_descending`, in the fewest digits that give
    the same float64 when read.

    Raises CaiError for a score that is not finite in single precision, which trec_eval uses.
    """
    write_parts([run], path, tag)


def write_parts(parts: Iterable[pd.DataFrame], path: Path, tag: str) -> None:
    """Write a run as `write_run` does, from parts with whole queries in the order of their ids."""
    empty = True
    with atomic_write(path) as partial, partial.open("wb") as file:
        for run in parts:
            empty &= run.empty
            finite = np.isfinite(_single(run["score"].to_numpy()))
            for query, document, score in run[~finite].itertuples(index=False, name=None):
                raise CaiError(
                    f"{path}: the score of document {document!r} for query {query!r} is {score}, which is not finite "
                    "in single precision"
                )
            scores = strictly_descending(run)
            columns = (pa.array(column) for column in (run["query_id"], run["doc_id"], ranks(run), scores))
            query, document, rank, score = (column.cast(pa.string()) for column in columns)
            lines = pc.binary_join_element_wise(query, "Q0", document, rank, score, f"{tag}\n", " ")
            file.write(lines.buffers()[2][: pc.sum(pc.binary_length(lines)).as_py() or 0])
    if empty:
        logger.warning("%s finds nothing for any query", tag)


def read_run(path: Path) -> pd.DataFrame:
    """Read a TREC run, from this package or any other tool. Hits are in the order of trec_eval, whatever their ranks:
    by descending score in single precision, ties by descending document id.

    Raises CaiError for a malformed line, and for a document listed twice for a query.
    """
    require_file(path, "run")
    return _read(path, path.stat().st_size, path.stat().st_mtime_ns)


def ids_in(run: Path, column: Literal["query_id", "doc_id"]) -> set[str]:
    """The ids of the queries or of the documents in a run. Raises CaiError as `read_run` does."""
    return set(read_run(run)[column].cat.categories)


def require_common(kind: str, total: int, ids: Mapping[str, Set[str]]) -> None:
    """Warn if two named sets of query or document ids have fewer than half of `total` in common. Raises CaiError if
    they have none."""
    (first, second), names = ids.values(), " and ".join(ids)
    if 2 * len(first & second) >= total:
        return
    folded = {id.casefold(): id for id in second - first}
    differ_in_case = [(id, folded[id.casefold()]) for id in first - second if id.casefold() in folded]
    pair = min(differ_in_case, default=(min(first - second, default=""), min(second - first, default="")))
    examples = f"such as {pair[0]!r} and {pair[1]!r}"
    if first.isdisjoint(second):
        raise CaiError(f"{names} have no {kind} in common: their ids are {examples}; both must use the same ids")
    others = f"; others are {examples}" if all(pair) else ""
    logger.warning("%s", f"{names} have only {len(first & second):,} of {total:,} {kind} in common{others}")


@lru_cache(maxsize=2)  # consecutive fusions read the same runs
def _read(path: Path, size: int, mtime_ns: int) -> pd.DataFrame:
    if require_if_ours(path) and not size:  # our own run, in which no query has a hit
        return run_of({})
    try:
        hits = _parse(path)
    except (pa.ArrowInvalid, ValueError):  # tabs or aligned columns from another tool, or a broken file
        try:
            hits = _parse(io.BytesIO(b"".join(_lines(path))))
        except (pa.ArrowInvalid, ValueError) as error:
            raise CaiError(f"{path}: not a TREC run ({error})") from None
    run = _sorted(hits, lambda run: [-run["doc_id"].cat.codes.to_numpy(), -_single(run["score"].to_numpy())])
    queries, documents = run["query_id"].cat, run["doc_id"].cat
    keys = np.sort(queries.codes.to_numpy(np.int64) * len(documents.categories) + documents.codes)
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        query, document = divmod(int(repeated[0]), len(documents.categories))
        ids = documents.categories[document], queries.categories[query]
        raise CaiError(f"{path}: document {ids[0]!r} is listed twice for query {ids[1]!r}")
    return run.assign(score=_tied(run["score"].to_numpy(), ranks(run)))


def _parse(data: Path | io.BytesIO) -> pd.DataFrame:
    """Parse lines of columns separated by single spaces into `query_id`, `doc_id` and `score`."""
    columns = {"query_id": pa.string(), "doc_id": pa.string(), "score": pa.float64()}
    table = csv.read_csv(
        data,
        csv.ReadOptions(column_names=["query_id", "q0", "doc_id", "rank", "score", "tag"]),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(include_columns=list(columns), column_types=columns, strings_can_be_null=False),
    )
    if any(pc.any(pc.match_substring_regex(table[name], BLANK)).as_py() for name in ("query_id", "doc_id")):
        raise ValueError("an id is empty or has white space")
    if not pc.all(pc.is_finite(table["score"]), skip_nulls=False).as_py():  # null: not a number
        raise ValueError("a score is not finite")
    return table.to_pandas(split_blocks=True, self_destruct=True)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a run that are not blank, with single spaces. Raises CaiError for a malformed line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if columns := line.split():
                if not _is_hit(columns):
                    raise CaiError(f"{path}:{number}: expected `query Q0 document rank score tag`")
                yield b" ".join(columns) + b"\n"


def _is_hit(columns: Sequence[bytes]) -> bool:
    try:
        return len(columns) == 6 and math.isfinite(float(columns[4]))
    except ValueError:
        return False


def run_digest(run: Path) -> str:
    """The digest of a run's recipe if this package made it, else of its bytes."""
    require_file(run, "run")
    manifest = require_if_ours(run)
    return manifest.digest if manifest else file_digest(run)


def documents_digest(runs: Sequence[Path], current: Sequence[str | None] | None = None) -> list[str | None] | None:
    """The digest of the documents that were searched (Collection.documents_digest); None if unknown.

    Raises CaiError if the runs searched different documents, or documents with another digest than `current`.
    """
    digests = {run: manifest.stats.get("documents_digest") for run in runs if (manifest := read_manifest(run))}
    for run, digest in digests.items():
        if not same_documents(digest, current):
            raise CaiError(f"{run} is of other documents than the current ones: search again")
        if other := next((each for each, its in digests.items() if not same_documents(digest, its)), None):
            raise CaiError(f"{run} and {other} are of different documents: search again, in the same documents")
    return next(filter(None, digests.values()), None)


def add_latency(own: float, runs: Sequence[Path]) -> float | None:
    """`own` plus the latencies of the runs, in ms per query; None if one is unknown."""
    manifests = [read_manifest(run) for run in runs]
    latencies = [manifest.stats["ms_per_query"] for manifest in manifests if manifest]
    return own + sum(latencies) if len(latencies) == len(runs) and None not in latencies else None


def removes_query(setting: Literal["auto", "always", "never"], qrels: Mapping[str, Mapping[str, int]] | None) -> bool:
    """Whether to remove hits with the id of their query from a run.

    Such a hit is the query itself if queries are documents of the collection, as in ArguAna. `auto` keeps them if there
    are no qrels, or, with a warning, if the qrels judge one relevant: then the ids are equal by chance.
    """
    if setting != "auto":
        return setting == "always"
    if qrels is None:
        return False
    relevant = [query for query, grades in qrels.items() if grades.get(query, 0) > 0]
    if relevant:
        logger.warning(
            "the qrels judge document %r relevant to the query of the same id (%d such queries): hits with the id of "
            "their query are kept",
            relevant[0],
            len(relevant),
        )
    return not relevant
