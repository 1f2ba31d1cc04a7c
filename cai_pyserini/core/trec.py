"""TREC runs: `query Q0 document rank score tag`, one line per hit.

In memory a run is a DataFrame with the columns `query_id` and `doc_id` (categories) and `score` (float64), sorted by
query id, then by falling score, then by document id.
"""

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from cai_pyserini.core.artifact import atomic_write
from cai_pyserini.core.config import PASSAGE
from cai_pyserini.core.errors import CaiError

Hits = Sequence[tuple[str, float]]  # document id and score


def run_of(hits: Mapping[str, Hits]) -> pd.DataFrame:
    """Build a run from the hits of each query, by query id."""
    queries = np.repeat(np.array(list(hits), object), [len(found) for found in hits.values()])
    documents = np.array([document for found in hits.values() for document, _ in found], object)
    scores = np.array([score for found in hits.values() for _, score in found], np.float64)
    return sorted_run(pd.DataFrame({"query_id": queries, "doc_id": documents, "score": scores}))


def sorted_run(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of a run, and make its ids categories in string order."""
    ids = {name: _categories(frame[name]) for name in ("query_id", "doc_id")}
    keys = ids["doc_id"].codes, -frame["score"].to_numpy(), ids["query_id"].codes  # the last one counts most
    sorted_frame = pd.DataFrame(ids | {"score": -keys[1]})
    return sorted_frame if _is_sorted(keys) else sorted_frame.iloc[np.lexsort(keys)].reset_index(drop=True)


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    """Whether np.lexsort of these keys would change nothing."""
    undecided = np.ones(max(len(keys[0]) - 1, 0), bool)  # pairs of neighbours that are equal so far
    for key in reversed(keys):
        if (undecided & (key[1:] < key[:-1])).any():
            return False
        undecided &= key[1:] == key[:-1]
    return True


def _categories(ids: pd.Series) -> pd.Categorical:
    column = pd.Categorical(ids)
    used = sorted(column.remove_unused_categories().categories)
    return column.set_categories(pd.Index(used, dtype="str"))  # that of a run without hits would be another


def ranks(run: pd.DataFrame) -> np.ndarray:
    """The rank of every hit, from 1."""
    return run.groupby("query_id", sort=False, observed=True).cumcount().to_numpy() + 1


def top(run: pd.DataFrame, depth: int) -> pd.DataFrame:
    """The best `depth` hits of each query."""
    return run[ranks(run) <= depth]


def scores_by_query(run: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The scores of a run: query id -> document id -> score, best first."""
    queries, documents = run["query_id"].astype(object), run["doc_id"].astype(object)
    scores: dict[str, dict[str, float]] = {}
    for query, document, score in zip(queries, documents, run["score"].tolist(), strict=True):
        scores.setdefault(query, {})[document] = score
    return scores


def without_query(run: pd.DataFrame, passages: bool = False) -> pd.DataFrame:
    """The run without hits whose document id equals the query id (Anserini's -removeQuery); with `passages`, without
    passages of such documents."""
    documents = run["doc_id"].astype(object)
    if passages:
        documents = documents.str.partition(PASSAGE)[0]
    return run[run["query_id"].astype(object) != documents]


def fold_passages(run: pd.DataFrame) -> pd.DataFrame:
    """A run of passages `document#number` as a run of documents, each with the score of its best passage."""
    passages = run["doc_id"].cat
    documents = pd.Categorical([id.partition(PASSAGE)[0] for id in passages.categories])
    folded = run.assign(doc_id=documents[passages.codes.to_numpy()])
    return sorted_run(folded.drop_duplicates(["query_id", "doc_id"]))  # the first is the best


def write_run(run: pd.DataFrame, path: Path, tag: str) -> None:
    """Write a run in TREC format, atomically, with six decimal places."""
    queries, documents = (run[name].astype(object).tolist() for name in ("query_id", "doc_id"))
    rows = zip(queries, documents, ranks(run).tolist(), run["score"].tolist(), strict=True)
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines([f"{query} Q0 {doc} {rank} {score:.6f} {tag}\n" for query, doc, rank, score in rows])


def read_run(path: Path) -> pd.DataFrame:
    """Read a TREC run, from this package or any other tool.

    Raises CaiError for a malformed line, and for a document listed twice for a query.
    """
    if not path.is_file():
        raise CaiError(f"{path} is a folder, not a run" if path.is_dir() else f"no run {path}")
    status = path.stat()
    return _read_run(path, status.st_size, status.st_mtime_ns).copy()


@lru_cache(maxsize=4)  # fusions read the same runs one after the other
def _read_run(path: Path, size: int, mtime_ns: int) -> pd.DataFrame:
    try:
        run = _parse(path)
    except (pa.ArrowInvalid, ValueError):  # tabs or aligned columns, from another tool; or a broken file
        with path.open("rb") as file:
            lines = b"".join(b" ".join(columns) + b"\n" for line in file if (columns := line.split()))
        try:
            run = _parse(io.BytesIO(lines))
        except (pa.ArrowInvalid, ValueError) as error:
            raise _broken(path, str(error)) from None
    if run.empty or not np.isfinite(run["score"]).all() or run.duplicated(["query_id", "doc_id"]).any():
        raise _broken(path, "a score is not a number")
    return sorted_run(run)


def _parse(data: Path | io.BytesIO) -> pd.DataFrame:
    """Parse lines with columns separated by single spaces into `query_id`, `doc_id` and `score`."""
    ids = pa.dictionary(pa.int32(), pa.string())
    columns = {"query_id": ids, "doc_id": ids, "score": pa.float64()}
    run = csv.read_csv(
        data,
        csv.ReadOptions(column_names=["query_id", "q0", "doc_id", "rank", "score", "tag"]),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(include_columns=list(columns), column_types=columns, strings_can_be_null=False),
    ).to_pandas()
    if any(id.split() != [id] for name in ("query_id", "doc_id") for id in run[name].cat.categories):
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
