"""Which n-grams of words, added to the words of Anserini's analyzers, help BM25 most.

Every collection is a YAML file, which names the language, or a folder. N-grams are a BM25 of their own, with their own
lengths, times a weight, or in one bag with the words. Cells: the difference in nDCG@10 to the words alone, its p, and
how many times as many entries the documents' vectors have. Scores are the package's, without Lucene's quantization.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import harness
import regex

from cai_pyserini.core.grams import grams, weighted_grams
from cai_pyserini.core.text import without_accents

RUN = regex.compile(r"[\p{L}\p{M}\p{N}]+")


class Form(NamedTuple):
    """N-grams of documents, and of queries with their weights."""

    documents: Callable[[str], Sequence[str]]
    queries: Callable[[str], Mapping[str, float]]
    weight: float = 1.0
    one_bag: bool = False


def of_words(cut: Callable[[str], Sequence[str]]) -> Form:
    """The form with these parts of words; those of a word weigh 1 / √n each in a query if it has n."""
    cached = lru_cache(maxsize=1 << 16)(cut)

    def words(text: str) -> list[Sequence[str]]:
        return [cached(word) for word in RUN.findall(without_accents(text))]

    def weights(text: str) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for parts in words(text):
            for part in parts:
                found[part] += len(parts) ** -0.5
        return found

    return Form(lambda text: [part for parts in words(text) for part in parts], weights)


def substrings(word: str, length: int) -> list[str]:
    return [word[start : start + length] for start in range(max(1, len(word) - length + 1))]


FORMS = {
    "of the package": Form(grams, weighted_grams),
    "weight 0.5": Form(grams, weighted_grams, 0.5),
    "not divided by √n, weight 0.5": Form(grams, lambda text: Counter(grams(text)), 0.5),
    "one bag": Form(grams, lambda text: Counter(grams(text)), one_bag=True),
    "4 letters, no mark": of_words(lambda word: substrings(word, 4)),
    "4 letters, both ends marked": of_words(lambda word: substrings(f"_{word}_", 4)),
    "3 letters": of_words(lambda word: substrings(f"_{word}", 3)),
    "5 letters": of_words(lambda word: substrings(f"_{word}", 5)),
    "first 3 and 5 letters": of_words(lambda word: [*dict.fromkeys((word[:3], word[:5]))]),
    "single letters": of_words(list),
}


def compare(collection: str, forms: list[str]) -> harness.Result:
    """The column of a collection: its name with nDCG@10 of words alone, and the cells of forms."""
    import numpy as np
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction import DictVectorizer

    from cai_pyserini.core.config import BM25
    from cai_pyserini.indexes.analyzer import Analyzer
    from cai_pyserini.runs.measures import measure
    from cai_pyserini.runs.trec import run_of
    from cai_pyserini.vectors.bm25 import WordWeighting

    found, topics, qrels = harness.opened(collection)
    documents = [*found.documents()]
    ids, texts = [each.id for each in documents], [each.contents for each in documents]

    def matrices(*rows: Sequence[Mapping[str, float]]) -> list[csr_matrix]:
        """Counts of documents, and weights of queries, (texts, words) each."""
        vectorizer = DictVectorizer(dtype=np.float32)
        return [vectorizer.fit_transform(rows[0]), vectorizer.transform(rows[1])]

    def scores(counts: csr_matrix, weights: csr_matrix) -> np.ndarray:
        return (weights @ WordWeighting.of([counts], counts.shape[1], BM25).weights(counts).T).toarray()

    def ndcg(values: np.ndarray) -> dict[str, float]:
        hits = {}
        for topic, row in zip(topics, values, strict=True):
            hits[topic] = [(ids[place], row[place]) for place in np.argsort(-row, kind="stable")[:10] if row[place] > 0]
        return measure(qrels, run_of(hits), ["nDCG@10"])["nDCG@10"]

    analyzer = Analyzer(found.language)
    words = matrices([*map(Counter, analyzer.many(texts))], [*map(Counter, analyzer.many([*topics.values()]))])
    alone = scores(*words)
    base = ndcg(alone)
    column = [f"{found.name}, {harness.mean_by_seed([base]):.4f}"]
    for form in map(FORMS.__getitem__, forms):
        added = matrices([Counter(form.documents(text)) for text in texts], [*map(form.queries, topics.values())])
        together = [hstack(both, format="csr") for both in zip(words, added, strict=True)]
        values = ndcg(scores(*together) if form.one_bag else alone + form.weight * scores(*added))
        column.append(f"{', '.join(harness.compared([base], [values]))}, x{1 + added[0].nnz / words[0].nnz:.1f}")
    return {"column": column}


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("collections", nargs="+", help="such as data/ja.yaml, which names the language")
    parser.add_argument("--forms", nargs="+", choices=[*FORMS], default=[*FORMS], help="default: all")
    args = parser.parse_args()
    columns = [harness.fresh(compare, collection=name, forms=args.forms)["column"] for name in args.collections]
    header, *rows = zip(["", *args.forms], *columns, strict=True)
    harness.show("nDCG@10 with n-grams, difference to words alone, p, entries per document", header, rows)


if __name__ == "__main__":
    main()
