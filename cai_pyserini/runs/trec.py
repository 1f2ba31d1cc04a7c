"""TREC runs: `query Q0 document rank score tag`, one line per hit.

In memory a run is a `Rankings`, sorted by query id, then by descending score; ties keep the order of the search. In the
run files of this package, scores are strictly descending, even in single precision, so that every tool reads the order
of the search; reading such a file restores the ties. Ties of other runs are read in the order of trec_eval.
"""

import codecs
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Literal, overload

import numpy as np

from cai_pyserini.core.artifact import file_digest, read_manifest, require_if_ours
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write, require_file
from cai_pyserini.core.identity import same_documents
from cai_pyserini.runs.rankings import Numbers, Rankings, last_true

logger = logging.getLogger(__name__)
Hits = Sequence[tuple[str, float]]  # document id and score

SUBNORMAL = (1 << 23) - 1  # how many numbers of single precision are between 0 and the smallest normal one
BLOCK = 1 << 18  # bytes of a run file that are parsed at a time
LINE = b"     \n"  # the separators of a line


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


def run_of(hits: Mapping[str, Hits]) -> Rankings:
    """The run with these hits by query id."""
    rankings = {query: Ranking.of(hits[query]) for query in sorted(hits) if hits[query]}
    queries = np.repeat(np.arange(len(rankings)), [*map(len, rankings.values())])
    documents = np.concatenate([NO_HITS.ids, *(ranking.ids for ranking in rankings.values())])
    scores = np.concatenate([NO_HITS.scores, *(ranking.scores for ranking in rankings.values())])
    numbers = Numbers[str]()
    doc_ids, places = numbers.sorted(numbers.of(documents))
    return sorted_run(Rankings([*rankings], doc_ids, queries, places, scores))


def sorted_run(run: Rankings) -> Rankings:
    """Sort the hits of a run. Scores become what `read_run` would return after the run is written."""
    run = run.sorted_by(-run.scores)
    return run.with_scores(_tied(strictly_descending(run), run.ranks))


def strictly_descending(run: Rankings) -> np.ndarray:
    """The scores of a run, (hits,), with ties lowered to the next smaller numbers of single precision."""
    return _descending(run.scores, run.ranks, run.queries)


def _descending(scores: np.ndarray, ranks: np.ndarray, queries: np.ndarray | int) -> np.ndarray:
    steps, offset = _steps(scores), queries << 33  # separates the queries
    lowered = np.minimum.accumulate(steps + ranks - offset) + offset - ranks
    return np.where(lowered < steps, _from_steps(lowered), scores)


def _tied(scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Undo `_descending`: successive scores that are one step apart become the first of them."""
    steps = _steps(scores)
    down = np.diff(steps, prepend=0)
    tied = ((down == 0) | ((down == -1) & (scores == _from_steps(steps)))) & (ranks > 1)
    return np.asarray(scores[last_true(~tied)])


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


def top(run: Rankings, depth: int) -> Rankings:
    return run[run.ranks <= depth]


def scores_by_query(run: Rankings) -> dict[str, dict[str, float]]:
    """Scores by query id and document id, best first."""
    scores: dict[str, dict[str, float]] = {}
    for query, document, score in run:
        scores.setdefault(query, {})[document] = score
    return scores


def without_query(run: Rankings) -> Rankings:
    """The run without hits whose document id equals the query id (Anserini's -removeQuery)."""
    return run[np.array([query != document for query, document, _ in run], bool)]


def write_run(run: Rankings, path: Path, tag: str) -> None:
    """Write a run atomically in TREC format, with the scores of `strictly_descending`, in the fewest digits that give
    the same float64 when read.

    Raises CaiError for a score that is not finite in single precision, which trec_eval uses.
    """
    write_parts([run], path, tag)


def write_parts(parts: Iterable[Rankings], path: Path, tag: str) -> None:
    """Write a run as `write_run` does, from parts with whole queries in the order of their ids."""
    empty = True
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for run in parts:
            empty &= not len(run)
            for query, document, score in run[~np.isfinite(_single(run.scores))]:
                raise CaiError(
                    f"{path}: the score of document {document!r} for query {query!r} is {score}, which is not finite "
                    "in single precision"
                )
            columns = zip(*run.columns, run.ranks.tolist(), strictly_descending(run).tolist(), strict=True)
            file.writelines(f"{query} Q0 {id} {rank} {score!r} {tag}\n" for query, id, rank, score in columns)
    if empty:
        logger.warning("%s finds nothing for any query", tag)


def read_run(path: Path) -> Rankings:
    """Read a TREC run, from this package or any other tool. Hits are in the order of trec_eval, whatever their ranks:
    by descending score in single precision, ties by descending document id.

    Raises CaiError for a malformed line, and for a document listed twice for a query.
    """
    require_file(path, "run")
    return _read(path, path.stat().st_size, path.stat().st_mtime_ns)


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
def _read(path: Path, size: int, mtime_ns: int) -> Rankings:
    if require_if_ours(path) and not size:  # our own run, in which no query has a hit
        return run_of({})
    hits = _parse(path)
    run = hits.sorted_by(-hits.documents, -_single(hits.scores))
    keys = np.sort(run.queries * len(run.doc_ids) + run.documents)
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        query, document = divmod(int(repeated[0]), len(run.doc_ids))
        ids = run.doc_ids[document], run.query_ids[query]
        raise CaiError(f"{path}: document {ids[0]!r} is listed twice for query {ids[1]!r}")
    return run.with_scores(_tied(run.scores, run.ranks))


def _parse(path: Path) -> Rankings:
    """The hits in the order of the file; white space separates columns. Raises CaiError for a malformed line."""
    queries, documents, end = Numbers[bytes](), Numbers[bytes](), 0
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    with path.open("rb") as file:
        file.seek(len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0)
        while block := file.read(BLOCK) + file.readline():
            values, scores = _columns(block, path, end)
            parts.append((queries.of(values[::6]), documents.of(values[2::6]), scores))
            end += block.count(b"\n")
    try:
        if not queries:
            raise ValueError("it is empty")
        numbers = [np.concatenate(column) for column in zip(*parts, strict=True)]
        query_ids, query_places = _decoded(queries, numbers[0])
        doc_ids, doc_places = _decoded(documents, numbers[1])
    except ValueError as error:
        raise CaiError(f"{path}: not a TREC run ({error})") from None
    return Rankings(query_ids, doc_ids, query_places, doc_places, numbers[2])


def _columns(block: bytes, path: Path, before: int) -> tuple[list[bytes], np.ndarray]:
    """The values of lines of six columns, one line after the other, and their scores. Raises CaiError for a malformed
    line, which is counted from `before`; blank ones are skipped."""
    values, characters = block.split(), np.frombuffer(block, np.uint8)
    separators = characters[(characters == ord(" ")) | (characters == ord("\n"))].tobytes()
    if separators == LINE * (len(values) // 6) and len(separators) == len(values):  # no other white space
        try:
            scores = np.array([*map(float, values[4::6])])
            if np.isfinite(scores).all() and b"_" not in b"".join(values[4::6]):
                return values, scores
        except ValueError:
            pass  # which line it is, is found below
    rows = [line.split() for line in block.split(b"\n")]
    if wrong := next((number for number, row in enumerate(rows, before + 1) if row and not _is_hit(row)), None):
        raise CaiError(f"{path}:{wrong}: expected `query Q0 document rank score tag`")
    return values, np.array([*map(float, values[4::6])], np.float64)


def _decoded(ids: Numbers[bytes], numbers: np.ndarray) -> tuple[list[str], np.ndarray]:
    """As `Numbers.sorted`, with ids as strings. Raises ValueError for ids that are no UTF-8 or have white space."""
    ordered, places = ids.sorted(numbers)
    decoded = [id.decode() for id in ordered]
    if wrong := next((id for id in decoded if id.split() != [id]), None):
        raise ValueError(f"the id {wrong!r} has white space")
    return decoded, places


def _is_hit(columns: Sequence[bytes]) -> bool:
    try:
        return len(columns) == 6 and b"_" not in columns[4] and math.isfinite(float(columns[4]))
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
