"""TREC runs: query Q0 document rank score tag, a line a hit."""

from pathlib import Path
from typing import TYPE_CHECKING

from cai_pyserini.artifact import beside
from cai_pyserini.cli import CaiError

if TYPE_CHECKING:
    import pandas as pd

Hits = list[tuple[str, float]]  # document id and score, best first
Run = dict[str, Hits]  # query id -> hits


def write_run(run: Run, path: Path, tag: str) -> None:
    """Write a run in TREC format, whole or not at all."""
    with beside(path) as partial, partial.open("w", encoding="utf-8") as file:
        for query, hits in run.items():
            file.writelines(f"{query} Q0 {doc} {rank} {score:.6f} {tag}\n" for rank, (doc, score) in enumerate(hits, 1))


def read_run(path: Path) -> "pd.DataFrame":
    """A run of any origin as columns `query_id`, `doc_id` and `score`, best first within a query, ties by document id.

    Raises CaiError for a line that is no hit, and for a document that a query has twice.
    """
    import pandas as pd

    names = ["query_id", "q0", "doc_id", "rank", "score", "tag"]
    try:
        run = pd.read_csv(
            path,
            sep=r"\s+",
            names=[*names, "more"],
            dtype=str,
            keep_default_na=False,
            na_values=[""],
            quoting=3,
            index_col=False,
            skip_blank_lines=False,
        )
        run = run[run.query_id.notna()]
    except FileNotFoundError:
        raise CaiError(f"no run {path}") from None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise CaiError(f"{path}: not a TREC run ({str(error).strip()})") from None
    scores = pd.to_numeric(run["score"], errors="coerce")
    broken = run["tag"].isna() | scores.isna() | run["more"].notna()
    if broken.any():
        raise CaiError(f"{path}:{run.index[broken][0] + 1}: expected query Q0 document rank score tag")
    if not len(run):
        raise CaiError(f"{path}: the run is empty")
    run = run[["query_id", "doc_id"]].assign(score=scores)
    twice = run.duplicated(["query_id", "doc_id"])
    if twice.any():
        row, query, document = next(run[twice].itertuples())[:3]
        raise CaiError(f"{path}:{row + 1}: document {document!r} is there twice for query {query!r}")
    return run.sort_values(["query_id", "score", "doc_id"], ascending=[True, False, True], ignore_index=True)
