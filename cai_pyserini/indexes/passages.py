"""Search an index of passages for documents, each with the score of its best passage (MaxP)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cai_pyserini.core.config import document_of
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.queries import Query

FIRST = 3  # passages per document that are searched for first
DEEPER = 4  # how many times as many are searched for next, for the queries that have found too few documents


class Folded(NamedTuple):
    """A ranking of documents, each with the score of its best passage, and the ids of these passages by document."""

    ranking: Ranking
    passages: Mapping[str, str]


def best_documents(searcher: Searcher, queries: Sequence[Query], hits: int, threads: int = 1) -> list[Folded]:
    """The best `hits` documents for each query, ties in the order of passages: as many as have a passage that matches,
    and a longer list begins with a shorter one, as far as the engine's lists of passages do."""
    depth = first_depth(searcher, hits)
    return _folded(searcher, queries, searcher.search_all(queries, depth, threads), hits, depth, threads)


def search_many(
    searcher: Searcher, queries: Mapping[str, Query], hits: int, threads: int
) -> Iterator[dict[str, Ranking]]:
    """As Searcher.search_many, the best documents of an index of passages."""
    depth = first_depth(searcher, hits)
    for batch in searcher.search_many(queries, depth, threads):
        searched = [queries[id] for id in batch]
        found = _folded(searcher, searched, [*batch.values()], hits, depth, threads)
        yield dict(zip(batch, (folded.ranking for folded in found), strict=True))


def first_depth(searcher: Searcher, hits: int) -> int:
    return max(hits, min(FIRST * hits, searcher.most_hits))


def _folded(
    searcher: Searcher, queries: Sequence[Query], rankings: Sequence[Ranking], hits: int, depth: int, threads: int
) -> list[Folded]:
    """The documents of rankings of up to `depth` passages or, if these are too few, of longer ones."""
    found = [fold_passages(ranking, hits) for ranking in rankings]
    if depth >= (most := min(searcher.documents, searcher.most_hits)):
        return found
    short = [number for number, ranking in enumerate(rankings) if len(ranking) == depth]
    short = [number for number in short if _known(found[number].ranking, rankings[number], searcher) < hits]
    if short:
        queries, depth = [queries[number] for number in short], min(DEEPER * depth, most)
        longer = _folded(searcher, queries, searcher.search_all(queries, depth, threads), hits, depth, threads)
        for number, folded in zip(short, longer, strict=True):
            found[number] = folded
    return found


def _known(documents: Ranking, passages: Ranking, searcher: Searcher) -> int:
    """How many documents certainly come next to each other at the top, if there are more passages than these."""
    return int(np.sum(documents.scores > passages.scores[-1])) if searcher.cuts_ties else len(documents)


def fold_passages(ranking: Ranking, depth: int) -> Folded:
    """The best `depth` documents of a ranking of passages `document#number`, in the order of their best passages."""
    passages = ranking.ids.tolist()
    documents = [*map(document_of, passages)]
    first = dict(zip(reversed(documents), reversed(range(len(documents))), strict=True))
    places = sorted(first.values())[:depth]
    best = {documents[place]: passages[place] for place in places}
    return Folded(Ranking([*best], ranking.scores[places]), best)
