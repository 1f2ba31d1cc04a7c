"""Which terms should the first of two steps of a search keep? Postings read, and what is lost, by how they are chosen.

Terms are ordered by their weight times IDF to some power, times their largest impact if it says so; the first so many
are kept, or as few as make up a share of the sum. The documents with the best sums for these terms are scored by the
whole query, as in a search in two steps, but with sparse matrices. Champion lists have, of each term, the share of the
documents with the largest impacts. What is lost is of the nDCG@10 of the exact search; recall is of its 10 best
documents.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np

QUERIES = 1000  # at most, drawn at random
MASSES = (0.4, 0.5, 0.55, 0.6, 0.7, 0.8)
Rule = tuple[str, float, bool, Callable[[np.ndarray], int], float]


def rules(shares: list[float]) -> Iterator[Rule]:
    """Name, power of IDF, whether times the largest impact, a function from the values of a query's terms, largest
    first, to how many are kept, and the share of the documents in champion lists; 1 without them."""
    for name, power, largest in (
        ("weight", 0.0, False),
        ("weight * IDF^0.5", 0.5, False),
        ("weight * IDF", 1.0, False),
        ("weight * IDF^2", 2.0, False),
        ("weight * largest impact", 0.0, True),
        ("weight * largest impact * IDF", 1.0, True),
    ):
        for kept in (5, 8, 12):
            yield f"{name}, {kept} terms", power, largest, lambda values, kept=kept: kept, 1.0
    for share, mass in product([1.0, *shares], MASSES):
        champions = f", champions {share:.1%}" if share < 1 else ""
        yield f"weight * IDF, mass {mass}{champions}", 1.0, False, partial(_of_mass, mass), share


def _of_mass(mass: float, values: np.ndarray) -> int:
    return int(np.searchsorted(values.cumsum() / values.sum(), mass)) + 1


def champions(by_term: Any, share: float) -> Any:
    """The impacts (documents, terms) in champion lists."""
    kept, most = by_term.copy(), max(1, int(share * by_term.shape[0]))
    for column in np.flatnonzero(np.diff(by_term.indptr) > most):
        values = kept.data[by_term.indptr[column] : by_term.indptr[column + 1]]
        least = np.partition(values, -most)[-most]
        values[values < (least if (values >= least).sum() == most else min(least + 1, values.max()))] = 0
    kept.eliminate_zeros()
    return kept


def compare(collection: str, encoder: str, rescored: int, shares: list[float]) -> harness.Result:
    """Rows of the table, and the nDCG@10 and the postings of the exact search."""
    from cai_pyserini.runs.measures import mean
    from cai_pyserini.runs.measures import measure as measures
    from cai_pyserini.runs.trec import run_of

    with TemporaryDirectory() as folder:
        vectors = harness.write_impacts(collection, encoder, folder, "impacts")
        written, source = f"{folder}/queries.json", {"collection": collection, "encoder": encoder}
        harness.fresh(harness.write_queries, **source, limit=None, output=written)
        queries = json.loads(Path(written).read_text())
        impacts, ids, places = read_impacts(Path(vectors))
    qrels = harness.opened(collection)[2]
    judged = [query for query in queries if any(grade > 0 for grade in qrels.get(query, {}).values())]
    judged = [*np.random.default_rng(0).permutation(judged)[:QUERIES]]
    by_term = impacts.tocsc()
    frequencies = np.diff(by_term.indptr)
    idf = np.log1p(len(ids) / np.maximum(frequencies, 1))
    largest = by_term.max(axis=0).toarray().ravel()
    known = {query: [(places[t], w) for t, w in queries[query].items() if t in places] for query in judged}
    pairs = {query: tuple(map(np.array, zip(*terms, strict=True))) for query, terms in known.items() if terms}
    whole = {query: by_term[:, terms] @ weights for query, (terms, weights) in pairs.items()}

    def ndcg(found: dict[str, np.ndarray]) -> float:
        hits = {q: [(ids[d], float(whole[q][d])) for d in documents] for q, documents in found.items()}
        return mean(measures({q: qrels[q] for q in pairs}, run_of(hits), ["nDCG@10"])["nDCG@10"])

    exact = {query: best(scores, 10) for query, scores in whole.items()}
    lists = {share: champions(by_term, share) for share in (1.0, *shares)}
    base, rows = ndcg(exact), []
    for name, power, times_largest, count, share in rules(shares):
        found, read, kept = {}, 0, 0
        for query, (terms, weights) in pairs.items():
            values = weights * idf[terms] ** power * (largest[terms] if times_largest else 1)
            order = np.argsort(-values, kind="stable")
            chosen = order[: count(values[order])]
            postings = lists[share][:, terms[chosen]]
            kept, read = kept + len(chosen), read + postings.nnz
            candidates = best(postings @ weights[chosen], rescored)
            found[query] = candidates[best(whole[query][candidates], 10)]
        recall = float(np.mean([np.isin(exact[query], found[query]).mean() for query in pairs]))
        rows.append([name, kept / len(pairs), read / len(pairs), ndcg(found) / base - 1, recall])
    read_by_exact = float(np.mean([frequencies[terms].sum() for terms, _ in pairs.values()]))
    return {"rows": rows, "ndcg": base, "read": read_by_exact}


def read_impacts(folder: Path) -> tuple[Any, list[str], dict[str, int]]:
    """The impacts (documents, terms), the ids of documents, and the column of each term."""
    from scipy.sparse import csr_matrix

    places: dict[str, int] = {}
    ids, columns, values, ends = [], [], [], [0]
    for file in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, file.open()):
            ids.append(line["id"])
            columns += [places.setdefault(term, len(places)) for term in line["vector"]]
            values += line["vector"].values()
            ends.append(len(values))
    return csr_matrix((np.array(values, np.float64), columns, ends), shape=(len(ids), len(places))), ids, places


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the `count` largest positive scores, largest first."""
    positive = np.flatnonzero(scores > 0)
    return positive[np.argsort(-scores[positive], kind="stable")[:count]]


def main() -> None:
    parser = harness.parser(__doc__, repeats=None)
    parser.add_argument("--rescored", type=int, default=400)
    parser.add_argument(
        "--champions", type=float, nargs="+", default=[0.01, 0.02, 0.04], help="shares of the documents"
    )
    args = parser.parse_args()
    arguments = {"collection": args.collection, "encoder": args.encoder, "rescored": args.rescored}
    result = harness.fresh(compare, **arguments, shares=args.champions)
    cells = [
        [name, f"{kept:.1f}", f"{read:,.0f}", f"{loss:+.2%}", f"{recall:.3f}"]
        for name, kept, read, loss, recall in result["rows"]
    ]
    exact = ["exact", "", f"{result['read']:,.0f}", f"{result['ndcg']:.4f}", "1.000"]
    header = ["terms of the first step", "terms", "postings per query", "nDCG@10", "recall@10"]
    harness.show(f"First step, {args.rescored} rescored ({Path(args.collection).name})", header, [exact, *cells])


if __name__ == "__main__":
    main()
