"""TREC runs: `query Q0 document rank score tag`, one line per hit.

In memory a run is a DataFrame with the columns `query_id` and `doc_id` (categories) and `score` (float64), sorted by
query id, then by falling score; ties have the order in which they were found. As files, runs of this package have
strictly falling scores, even in single precision, so that every tool reads the order in which they were found; reading
such a file restores the ties. Ties of other runs are read in the order of trec_eval.
"""

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cai_pyserini.core.artifact import file_digest, read_manifest, require_if_ours
from cai_pyserini.core.config import PASSAGE
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write, require_file
from cai_pyserini.core.identity import same_documents

logger = logging.getLogger(__name__)
Hits = Sequence[tuple[str, float]]  # document id and score

PART = 1 << 18  # hits that are read at a time
SUBNORMAL = (1 << 23) - 1  # numbers of single precision between 0 and the smallest normal one
BLANK = r"^$|[\t-\r\x1c-\x1f \x85\p{Z}]"  # what str.split() splits at


def run_of(hits: Mapping[str, Hits]) -> pd.DataFrame:
    queries = np.repeat(np.array(list(hits), object), [len(found) for found in hits.values()])
    documents = np.array([document for found in hits.values() for document, _ in found], object)
    scores = np.array([score for found in hits.values() for _, score in found], np.float64)
    return sorted_run(pd.DataFrame({"query_id": queries, "doc_id": documents, "score": scores}))


def sorted_run(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of a run; ids become categories in string order, unless they are categories. Scores become those
    that `read_run` would return, once they are written."""
    run = _sorted(frame, lambda run: [-run["score"].to_numpy()])
    return _with_ties(run.assign(score=strictly_falling(run)))


def _sorted(frame: pd.DataFrame, order: Callable[[pd.DataFrame], list[np.ndarray]]) -> pd.DataFrame:
    """The rows by query, then by the keys `order`, of which the last one counts most."""
    plain = [name for name in ("query_id", "doc_id") if frame[name].dtype != "category"]
    run = frame.assign(**{name: categories(frame[name]) for name in plain})
    keys = [*order(run), run["query_id"].cat.codes.to_numpy()]
    return (run if _is_sorted(keys) else run.iloc[np.lexsort(keys)]).reset_index(drop=True)


def strictly_falling(run: pd.DataFrame) -> np.ndarray:
    """The scores of a run, (hits,), with ties lowered to the next smaller numbers of single precision."""
    scores = run["score"].to_numpy()
    steps, below = _steps(scores), run["query_id"].cat.codes.to_numpy(np.int64) << 33  # all of the queries before
    falling = np.minimum.accumulate(steps + ranks(run) - below) + below - ranks(run)
    return np.where(falling < steps, _of_steps(falling), scores)


def _with_ties(run: pd.DataFrame) -> pd.DataFrame:
    """Undo `strictly_falling`: scores in a row that are one step apart are those of the first."""
    scores = run["score"].to_numpy()
    steps = _steps(scores)
    down = np.diff(steps, prepend=0)
    tied = ((down == 0) | ((down == -1) & (scores == _of_steps(steps)))) & (ranks(run) > 1)
    return run.assign(score=scores[_last(~tied)])


def _steps(scores: np.ndarray) -> np.ndarray:
    """The place of each score, rounded to single precision, among the numbers of single precision, of which 0 has the
    place 0. Subnormal numbers count as 0, as they do in software that flushes them."""
    bits = _single(np.abs(scores)).view(np.int32).astype(np.int64)
    return np.where(scores >= 0, 1, -1) * np.maximum(bits - SUBNORMAL, 0)


@np.errstate(invalid="ignore")
def _of_steps(steps: np.ndarray) -> np.ndarray:
    """The score at each place."""
    bits = (np.abs(steps) + SUBNORMAL).astype(np.int32)
    return np.sign(steps) * bits.view(np.float32).astype(np.float64)


@np.errstate(over="ignore")
def _single(scores: np.ndarray) -> np.ndarray:
    return scores.astype(np.float32)


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    """Whether np.lexsort of these keys would keep the order."""
    undecided = np.ones(max(len(keys[0]) - 1, 0), bool)  # neighbours with equal keys so far
    for key in reversed(keys):
        if (undecided & (key[1:] < key[:-1])).any():
            return False
        undecided &= key[1:] == key[:-1]
    return True


def categories(ids: pd.Series | pd.Index) -> pd.Categorical:
    """Ids as categories in string order."""
    codes, found = pd.factorize(ids)
    names = pd.Index(found, dtype="str")
    order = names.argsort()
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return pd.Categorical.from_codes(places[codes], names[order])


def ranks(run: pd.DataFrame) -> np.ndarray:
    """The rank of every hit, from 1."""
    first = np.diff(run["query_id"].cat.codes.to_numpy(), prepend=-1) != 0
    return np.arange(len(run)) - _last(first) + 1


def _last(chosen: np.ndarray) -> np.ndarray:
    """For every place, (places,), the last one up to it that is chosen, as the first one is."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), 0))


def top(run: pd.DataFrame, depth: int) -> pd.DataFrame:
    return run[ranks(run) <= depth]


def scores_by_query(run: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The scores of a run: query id -> document id -> score, best first."""
    queries, documents = run["query_id"].astype(object), run["doc_id"].astype(object)
    scores: dict[str, dict[str, float]] = {}
    for query, document, score in zip(queries, documents, run["score"].tolist(), strict=True):
        scores.setdefault(query, {})[document] = score
    return scores


def without_query(run: pd.DataFrame) -> pd.DataFrame:
    """The run without hits whose document id equals the query id (Anserini's -removeQuery)."""
    return run[run["query_id"].astype(object) != run["doc_id"].astype(object)]


def fold_passages(run: pd.DataFrame) -> pd.DataFrame:
    """A run of passages `document#number` as a run of documents, each with the score of its best passage."""
    passages = run["doc_id"].cat
    documents = pd.Categorical([id.partition(PASSAGE)[0] for id in passages.categories])
    folded = run.assign(doc_id=documents[passages.codes.to_numpy()])
    return sorted_run(folded.drop_duplicates(["query_id", "doc_id"]))  # the first is the best


def write_run(run: pd.DataFrame, path: Path, tag: str) -> None:
    """Write a run in TREC format, atomically, with the scores of `strictly_falling`, in the fewest digits that are read
    back as the same float64.

    Raises CaiError for a score that is not finite in single precision, in which trec_eval reads it.
    """
    write_parts([run], path, tag)


def write_parts(parts: Iterable[pd.DataFrame], path: Path, tag: str) -> None:
    """Write a run as `write_run` does, from parts that each have whole queries, in the order of their ids."""
    empty = True
    with atomic_write(path) as partial, partial.open("wb") as file:
        for run in parts:
            empty &= run.empty
            finite = np.isfinite(_single(run["score"].to_numpy()))
            for query, document, score in run[~finite].itertuples(index=False, name=None):
                raise CaiError(
                    f"{path}: the score of document {document!r} for query {query!r} is {score}, which is no finite "
                    "number of single precision"
                )
            scores = strictly_falling(run)
            columns = (pa.array(column) for column in (run["query_id"], run["doc_id"], ranks(run), scores))
            query, document, rank, score = (column.cast(pa.string()) for column in columns)
            lines = pc.binary_join_element_wise(query, "Q0", document, rank, score, f"{tag}\n", " ")
            file.write(lines.buffers()[2][: pc.sum(pc.binary_length(lines)).as_py() or 0])
    if empty:
        logger.warning("%s finds nothing for any query", tag)


def read_run(path: Path) -> pd.DataFrame:
    """Read a TREC run, from this package or any other tool. Hits are in the order of trec_eval: by falling scores in
    single precision, ties by falling document id, whatever their ranks.

    Raises CaiError for a malformed line, and for a document listed twice for a query.
    """
    return _checked(_read(path), path)


def read_parts(paths: Sequence[Path]) -> Iterator[list[pd.DataFrame]]:
    """Read several runs in parts: each part has the same whole queries of every run, in the order of their ids.

    A part ends with the query that takes it to PART hits. Raises CaiError as `read_run` does.
    """
    runs = [_read(path) for path in paths]
    hits = [run["query_id"].value_counts(sort=False) for run in runs]
    ends = pd.concat(hits, axis=1).fillna(0).sort_index().cumsum().to_numpy(int)  # (queries, runs)
    total = ends.sum(axis=1)
    if not len(total):  # no run has a hit
        yield [_checked(run, path) for run, path in zip(runs, paths, strict=True)]
        return
    cuts = np.searchsorted(total, np.arange(PART, total[-1], PART))
    starts = np.zeros(len(runs), int)
    for stops in ends[np.unique([*cuts, len(ends) - 1])]:
        parts = [run.iloc[start:stop] for run, start, stop in zip(runs, starts, stops, strict=True)]
        own = [part.assign(query_id=part["query_id"].cat.remove_unused_categories()) for part in parts]
        yield [_checked(part, path) for part, path in zip(own, paths, strict=True)]
        starts = stops


def queries_in(run: Path) -> set[str]:
    """The ids of the queries that a run has hits for. Raises CaiError as `read_run` does."""
    return set(_read(run)["query_id"].cat.categories)


def documents_in(run: Path) -> set[str]:
    """The ids of the documents that a run has. Raises CaiError as `read_run` does."""
    return set(_read(run)["doc_id"].unique())


def require_common(kind: str, total: int, ids: Mapping[str, Set[str]]) -> None:
    """Warn if two named sets of ids, of queries or of documents, have fewer than half of `total` in common. Raises
    CaiError if they have none."""
    (first, second), names = ids.values(), " and ".join(ids)
    if 2 * len(first & second) >= total:
        return
    folded = {id.casefold(): id for id in second - first}
    alike = min((id for id in first - second if id.casefold() in folded), default=None)
    unlike = [min(first - second, default=""), min(second - first, default="")]
    pair = [alike, folded[alike.casefold()]] if alike else unlike
    such = f"such as {pair[0]!r} and {pair[1]!r}"
    if first.isdisjoint(second):
        raise CaiError(f"{names} have no {kind} in common: their ids are {such}; the ids of both have to be the same")
    others = f"; others are {such}" if all(pair) else ""
    logger.warning("%s", f"{names} have only {len(first & second):,} of {total:,} {kind} in common{others}")


def _checked(hits: pd.DataFrame, path: Path) -> pd.DataFrame:
    run = _sorted(hits, lambda run: [-run["doc_id"].cat.codes.to_numpy(), -_single(run["score"].to_numpy())])
    documents = run["doc_id"].cat
    keys = np.sort(run["query_id"].cat.codes.to_numpy(np.int64) * len(documents.categories) + documents.codes)
    if (keys[1:] == keys[:-1]).any():
        raise _broken(path, "a document is listed twice")
    return _with_ties(run)


def _read(path: Path) -> pd.DataFrame:
    require_file(path, "run")
    return _read_once(path, path.stat().st_size, path.stat().st_mtime_ns)


@lru_cache(maxsize=2)  # consecutive fusions read the same runs
def _read_once(path: Path, size: int, mtime_ns: int) -> pd.DataFrame:
    """The hits of a file in the order of their queries, with documents as plain strings."""
    if require_if_ours(path) and not size:  # a system of ours that finds nothing
        return run_of({}).astype({"doc_id": object})
    try:
        run = _parse(path)
    except (pa.ArrowInvalid, ValueError):  # tabs or aligned columns of another tool, or a broken file
        with path.open("rb") as file:
            lines = b"".join(b" ".join(columns) + b"\n" for line in file if (columns := line.split()))
        try:
            run = _parse(io.BytesIO(lines))
        except (pa.ArrowInvalid, ValueError) as error:
            raise _broken(path, str(error)) from None
    if run.empty or not np.isfinite(run["score"]).all():
        raise _broken(path, "a score is not a number")
    run["query_id"] = categories(run["query_id"])
    queries = run["query_id"].cat.codes.to_numpy()
    return run if _is_sorted([queries]) else run.iloc[np.argsort(queries, kind="stable")]


def _parse(data: Path | io.BytesIO) -> pd.DataFrame:
    """Parse lines with columns separated by single spaces into `query_id`, `doc_id` and `score`."""
    columns = {"query_id": pa.dictionary(pa.int32(), pa.string()), "doc_id": pa.string(), "score": pa.float64()}
    table = csv.read_csv(
        data,
        csv.ReadOptions(column_names=["query_id", "q0", "doc_id", "rank", "score", "tag"]),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(include_columns=list(columns), column_types=columns, strings_can_be_null=False),
    )
    blank = pc.any(pc.match_substring_regex(table["doc_id"], BLANK)).as_py()
    run = table.to_pandas(split_blocks=True, self_destruct=True)
    if blank or any(id.split() != [id] for id in run["query_id"].cat.categories):
        raise ValueError("an id is empty or has white space")
    return run


def _broken(path: Path, reason: str) -> CaiError:
    """An error that names the first malformed or repeated line, or gives `reason` if there is none."""
    seen = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            columns = line.split()
            try:
                if columns and (len(columns) != 6 or not np.isfinite(float(columns[4]))):
                    raise ValueError
            except ValueError:
                return CaiError(f"{path}:{number}: expected `query Q0 document rank score tag`")
            if columns and (hit := (columns[0], columns[2])) in seen:
                query, document = (part.decode(errors="replace") for part in hit)
                return CaiError(f"{path}:{number}: document {document!r} is listed twice for query {query!r}")
            seen.add(tuple(columns[0:3:2]))
    return CaiError(f"{path}: not a TREC run ({reason})" if any(seen) else f"{path}: the run is empty")


def run_digest(run: Path) -> str:
    """A digest of a run: of its recipe if this package made it, else of its bytes."""
    require_file(run, "run")
    manifest = require_if_ours(run)
    return manifest.digest if manifest else file_digest(run)


def documents_digest(runs: Sequence[Path], others: Sequence[str | None] | None = None) -> list[str | None] | None:
    """The digest of the documents that runs were searched in, see Collection.documents_digest; None if it is unknown.

    Raises CaiError for runs of different documents, also of others than those with the digest `others`.
    """
    found = {run: manifest.stats.get("documents_digest") for run in runs if (manifest := read_manifest(run))}
    for run, own in found.items():
        if not same_documents(own, others):
            raise CaiError(f"{run} is of other documents than there are now: search again")
        if other := next((path for path, of_other in found.items() if not same_documents(own, of_other)), None):
            raise CaiError(f"{run} and {other} are of different documents: search again, in indexes of the same ones")
    return next((own for own in found.values() if own), None)


def add_latency(own: float, runs: Sequence[Path]) -> float | None:
    """`own` plus the latencies of the runs, in ms per query; None if that of a run is unknown."""
    manifests = [read_manifest(run) for run in runs]
    latencies = [manifest.stats["ms_per_query"] for manifest in manifests if manifest]
    return own + sum(latencies) if len(latencies) == len(runs) and None not in latencies else None


def removes_query(setting: Literal["auto", "always", "never"], qrels: Mapping[str, Mapping[str, int]] | None) -> bool:
    """Whether to remove hits that have the id of their query from a run.

    They are the query itself where queries are documents of the collection, as in ArguAna. With `auto`, they are kept
    if there are no qrels, or, with a warning, if the qrels judge one relevant: then the ids are equal by chance.
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
