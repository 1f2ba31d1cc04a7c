"""TREC runs: `query Q0 document rank score tag`, one line per hit.

In memory a run is a DataFrame with the columns `query_id` and `doc_id` (categories) and `score` (float64), sorted by
query id, then by falling score, then by document id.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cai_pyserini.core.artifact import atomic_write
from cai_pyserini.core.errors import CaiError

Hits = Sequence[tuple[str, float]]  # document id and score
COLUMNS = ["query_id", "q0", "doc_id", "rank", "score", "tag", "more"]


def run_of(hits: Mapping[str, Hits]) -> pd.DataFrame:
    """A run of the hits of each query, by query id."""
    queries = np.repeat(np.array(list(hits), object), [len(found) for found in hits.values()])
    documents = np.array([document for found in hits.values() for document, _ in found], object)
    scores = np.array([score for found in hits.values() for _, score in found], np.float64)
    return sorted_run(pd.DataFrame({"query_id": queries, "doc_id": documents, "score": scores}))


def sorted_run(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run in order, with ids as categories in the order of strings."""
    columns = {name: _categories(frame[name]) for name in ("query_id", "doc_id")}
    scores = frame["score"].to_numpy()
    order = np.lexsort((columns["doc_id"].codes, -scores, columns["query_id"].codes))
    return pd.DataFrame({name: column[order] for name, column in columns.items()} | {"score": scores[order]})


def _categories(ids: pd.Series) -> pd.Categorical:
    column = pd.Categorical(ids)
    return column.set_categories(sorted(column.remove_unused_categories().categories))


def ranks(run: pd.DataFrame) -> np.ndarray:
    """The rank of every hit, from 1."""
    return run.groupby("query_id", sort=False, observed=True).cumcount().to_numpy() + 1


def top(run: pd.DataFrame, depth: int) -> pd.DataFrame:
    """The best `depth` hits of each query."""
    return run[ranks(run) <= depth]


def scores_by_query(run: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Query id -> document id -> score, best first."""
    queries, documents = run["query_id"].astype(object), run["doc_id"].astype(object)
    scores: dict[str, dict[str, float]] = {}
    for query, document, score in zip(queries, documents, run["score"].tolist(), strict=True):
        scores.setdefault(query, {})[document] = score
    return scores


def without_query(run: pd.DataFrame) -> pd.DataFrame:
    """A run without the hits whose document id is that of the query (Anserini's -removeQuery)."""
    return run[run["query_id"].astype(object) != run["doc_id"].astype(object)]


def write_run(run: pd.DataFrame, path: Path, tag: str) -> None:
    """Write a run in TREC format, atomically, with six decimal places."""
    rows = zip(run["query_id"].astype(object), run["doc_id"].astype(object), ranks(run), run["score"], strict=True)
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(f"{query} Q0 {doc} {rank} {score:.6f} {tag}\n" for query, doc, rank, score in rows)


def read_run(path: Path) -> pd.DataFrame:
    """Read a run of any origin.

    Raises CaiError for a line that is not a hit, and for a document that a query has twice.
    """
    try:
        run = pd.read_csv(
            path,
            sep=r"\s+",
            names=COLUMNS,
            # "category" would turn ids into numbers if all of them look like numbers
            dtype=dict.fromkeys(COLUMNS, "str") | {"score": np.float64},
            keep_default_na=False,
            na_values=[""],
            quoting=3,
            index_col=False,
            skip_blank_lines=False,  # so that row i is line i + 1
        )
        run = run[run["query_id"].notna()]
    except FileNotFoundError:
        raise CaiError(f"no run {path}") from None
    except IsADirectoryError:
        raise CaiError(f"{path} is a folder, not a run") from None
    except pd.errors.EmptyDataError:
        raise CaiError(f"{path}: the run is empty") from None
    except ValueError as error:  # a score that is not a number, or bytes that are not UTF-8
        raise _broken(path, str(error).strip()) from None
    if run["tag"].isna().any() or run["more"].notna().any() or not np.isfinite(run["score"]).all():
        raise _broken(path, "not six columns separated by spaces or tabs")
    if run.empty:
        raise CaiError(f"{path}: the run is empty")
    duplicated = run[run.duplicated(["query_id", "doc_id"])]
    for row, query, document in duplicated[["query_id", "doc_id"]].itertuples(name=None):
        raise CaiError(f"{path}:{row + 1}: document {document!r} is listed twice for query {query!r}")
    return sorted_run(run[["query_id", "doc_id", "score"]])


def _broken(path: Path, reason: str) -> CaiError:
    """An error that names the first line that is not six columns with a number in the fifth, or else gives `reason`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            columns = line.split()
            try:
                if columns and (len(columns) != 6 or not np.isfinite(float(columns[4]))):
                    raise ValueError
            except ValueError:
                return CaiError(f"{path}:{number}: expected `query Q0 document rank score tag`")
    return CaiError(f"{path}: not a TREC run ({reason})")
