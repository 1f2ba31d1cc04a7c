"""What the defaults of joint indexes, smoothing, expansion and BM25 + SPLADE + dense were chosen from: nDCG@10 of
variants of each, of exact scores of float vectors.

Takes run folders of `run_beir.sh COLLECTION --dense minilm`. At most --queries queries of each are scored, a fixed
sample; matrices of all scores are in memory, for collections of up to some 20,000 documents. p is that of a paired
t-test against the first row, without correction.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.beir.run_folder import RunFolder
from cai_pyserini.beir.systems import SINGLE
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.rows import largest
from cai_pyserini.core.tables import markdown
from cai_pyserini.core.trec import run_of
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import encode_queries
from cai_pyserini.evaluate.measures import mean, measure
from cai_pyserini.evaluate.significance import compare, p_text
from cai_pyserini.expand import expand as stage
from cai_pyserini.expand import word_vectors as learning
from cai_pyserini.expand.expand import Near
from cai_pyserini.impact.bm25 import NEAR_WORDS, Bm25
from cai_pyserini.models.idf import idf_weights
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.words.analyzer import Analyzer

DEPTH = 100
SEED = 0
NEAREST = 60
Scores = np.ndarray  # (queries, documents)
Variants = Iterator[tuple[str, Scores]]


class Run:
    """Vectors and scores of a finished run; what is asked are its queries, and spans of its documents."""

    def __init__(self, folder: Path, limit: int):
        run = RunFolder(folder)
        self.name = run.collection.name
        rows = np.sort(np.random.default_rng(SEED).permutation(len(run.topics))[:limit])
        self.queries = [list(run.topics)[row] for row in rows]
        qrels = run.qrels or {}
        self.qrels = {query: qrels[query] for query in self.queries}
        self.removes_query = not any(grades.get(query, 0) > 0 for query, grades in qrels.items())
        splade, dense = SINGLE["splade-idf"], SINGLE["dense"]
        self.ids = [id for shard in run.documents(splade) for id in shard.ids]
        self.documents: csr_matrix = vstack([shard.vectors for shard in run.documents(splade)], format="csr")
        smoothed = Vectors(run.vectors_of(replace(splade, smooth=True)))
        self.smoothed: csr_matrix = vstack([shard.vectors for shard in smoothed], format="csr")
        self.near = np.vstack([shard.vectors for shard in run.documents(dense)])
        encoder = load_encoder(str(run.index(splade)))
        self.idf = diags_array(idf_weights(encoder, run.documents(splade).vocabulary))
        bm25, analyze = Bm25(run.words), Analyzer()
        words = vstack([shard.vectors for shard in bm25.shards()], format="csr").T.tocsr()
        columns = {word: column for column, word in enumerate(bm25.words)}
        asked = {"queries": [run.topics[query] for query in self.queries], "spans": [text for text, _ in bm25.spans]}
        self.splade = {kind: encode_queries(run.encoder(splade), texts) for kind, texts in asked.items()}
        self.bags = {kind: encode_queries(run.encoder(splade), texts, "bow") for kind, texts in asked.items()}
        self.words = {kind: _counts([analyze(text) for text in texts], columns) for kind, texts in asked.items()}
        self.bm25 = {kind: (counts @ words).toarray() for kind, counts in self.words.items()}
        self.columns, self.dense_vectors = columns, run.documents(dense)
        lexicon = [line for _, line in jsonl.read(run.words / "lexicon.jsonl", ["word", "form"])]
        self.folder, self.lexicon = run.words, {line["word"]: line["form"] for line in lexicon}
        stored = Vectors(run.vectors_of(dense, "queries"))
        self.dense_queries = np.vstack([shard.vectors for shard in stored])[rows]
        self.dense = self.dense_queries @ self.near.T

    def scores(self, documents: csr_matrix, kind: str = "queries", bow: bool = False) -> Scores:
        """SPLADE's, of raw documents, which are weighted with IDF."""
        return ((self.bags if bow else self.splade)[kind] @ (documents @ self.idf).T.tocsr()).toarray()

    def joint(self, documents: csr_matrix, factor: float = 1.0, bow: bool = False, more: Scores | float = 0) -> Scores:
        """alpha * (BM25 + more) + SPLADE, with `factor` times the alpha that spans give."""
        alpha = factor * _spread(self.scores(documents, "spans", bow)) / _spread(self.bm25["spans"])
        return alpha * (self.bm25["queries"] + more) + self.scores(documents, bow=bow)

    def ndcg(self, scores: Scores) -> dict[str, float]:
        """nDCG@10 of every query."""
        best = np.argpartition(-scores, 20, axis=1)[:, :20]
        hits = {
            query: [(self.ids[d], float(row[d])) for d in top if not (self.removes_query and self.ids[d] == query)]
            for query, row, top in zip(self.queries, scores, best, strict=True)
        }
        return measure(self.qrels, run_of(hits), ["nDCG@10"])["nDCG@10"]


def _counts(texts: Sequence[Iterable[str] | Mapping[str, int]], columns: dict[str, int]) -> csr_matrix:
    """Counts of known words (texts, words), of the words of texts or of their counts."""
    entries = [(row, columns[w], n) for row, text in enumerate(texts) for w, n in Counter(text).items() if w in columns]
    rows, indices, counts = np.array(entries).T
    return csr_matrix((counts.astype(np.float32), (rows, indices)), shape=(len(texts), len(columns)))


def _best(scores: Scores) -> np.ndarray:
    return np.partition(scores, -DEPTH, axis=1)[:, -DEPTH:]


def _spread(scores: Scores) -> float:
    """The mean standard deviation of the best scores."""
    return float(_best(scores).std(1).mean())


def _minmax(scores: Scores) -> Scores:
    best = _best(scores)
    low, high = best.min(1, keepdims=True), best.max(1, keepdims=True)
    return np.clip((scores - low) / np.maximum(high - low, 1e-9), 0, None)


def _z(scores: Scores) -> Scores:
    best = _best(scores)
    return (scores - best.mean(1, keepdims=True)) / np.maximum(best.std(1, keepdims=True), 1e-9)


def joint(run: Run) -> Variants:
    """alpha: the factor by which it is off."""
    for doc, bow in (("", False), ("-doc", True)):
        yield f"min-max{doc}", _minmax(run.bm25["queries"]) + _minmax(run.scores(run.documents, bow=bow))
        for factor in (0.5, 0.7, 1.0, 1.4, 2.0):
            yield f"joint{doc}, {factor} × alpha", run.joint(run.documents, factor, bow)


def smooth(run: Run) -> Variants:
    """Neighbours, the power of their cosine that weights them, and their share."""
    budget = np.diff(run.documents.indptr)
    weighted = run.documents @ run.idf
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1)).ravel())
    unit = diags_array(1 / np.maximum(lengths, 1e-9)) @ weighted
    yield "joint", run.joint(run.documents)
    for kind, vectors in (("dense", run.near), ("SPLADE", unit.tocsr())):
        near, cosines = _nearest(vectors)
        for power, count in ((0, 10), (0, 20), (4, 20), (8, 20), (4, 40), (4, 60)):
            shares = np.clip(cosines[:, :count], 0, None) ** power
            shares /= np.maximum(shares.sum(1, keepdims=True), 1e-9)
            rows = np.repeat(np.arange(len(near)), count)
            mean_of = csr_matrix((shares.ravel(), (rows, near[:, :count].ravel())), shape=(len(near),) * 2)
            neighbours = mean_of @ run.documents
            for weight in (0.1, 0.2, 0.3, 0.4, 0.5):
                mixed = ((1 - weight) * run.documents + weight * neighbours).tocsr()
                yield f"{kind}, {count}, cosine^{power}, {weight}", run.joint(largest(mixed, budget))


def expand(run: Run) -> Variants:
    """Words near documents: how many, the least z, and their weight beside BM25."""
    yield "joint", run.joint(run.documents)
    yield "joint, bag-of-words queries", run.joint(run.documents, bow=True)
    near = _near(run, learning.word_vectors(run.folder, run.lexicon, Encoder(load_encoder("minilm"))))
    for words, least in ((100, 1), (50, 1), (200, 1), (100, 0), (100, 2)):
        scores = _scores(run, near, words, least)
        for weight in (0.25, 0.5, 0.75):
            yield f"{words} words, z > {least}, weight {weight}", run.joint(run.documents, more=weight * scores)
    default = NEAR_WORDS * _scores(run, near)
    yield "default, bag-of-words queries", run.joint(run.documents, bow=True, more=default)
    others = _z(run.scores(run.documents)) + 2 * _z(run.dense)
    yield "BM25 + SPLADE + dense, 2 : 1 : 2", 2 * _z(run.bm25["queries"]) + others
    yield "default in BM25 + SPLADE + dense", 2 * _z(run.bm25["queries"] + default) + others


def words(run: Run) -> Variants:
    """Vectors of words, encoded alone or learned, with near documents: in which units their products are compared, how
    much near words weigh, and what they are learned from."""
    contexts, targets, alone = learning.read_evidence(run.folder, run.lexicon, Encoder(load_encoder("minilm")))
    idf = diags_array(Bm25(run.folder)._statistics[0][[run.columns[word] for word in run.lexicon]])
    weighted = contexts.sign() @ idf
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1)).ravel())
    few = slice(0, len(targets) // 4)

    def learned(ridge: float = learning.RIDGE) -> np.ndarray:
        with patch.object(learning, "RIDGE", ridge):
            return learning.learn(contexts, targets, alone)

    vectors = {
        "learned": learned(),
        "encoded alone": alone,
        "learned, words weighted with IDF": learning.learn(
            diags_array(1 / np.maximum(lengths, 1e-9)) @ weighted, targets, alone
        ),
        "learned from a quarter of the contexts": learning.learn(contexts[few], targets[few], alone),
        "learned, ridge 0.3": learned(0.3),
        "learned, ridge 3": learned(3.0),
    }
    for name, each in vectors.items():
        both = name in ("learned", "encoded alone")
        own = each / np.sqrt(np.einsum("wi,ij,wj->w", each, np.cov(run.near.T), each, optimize=True))[:, None]
        for units, scaled in (("", each), (", in units of its own deviation", own))[: 1 + both]:
            scores = _scores(run, _near(run, scaled))
            for weight in (NEAR_WORDS, 0.5)[: 1 + both]:
                variant = f"{name}{units}, weight {weight}"
                yield variant, run.joint(run.smoothed, more=weight * scores)
                yield f"{variant}, bag-of-words queries", run.joint(run.smoothed, bow=True, more=weight * scores)


def _near(run: Run, vectors: np.ndarray) -> Near:
    return Near.among(vectors.astype(np.float32), (shard.vectors for shard in run.dense_vectors))


def _scores(run: Run, near: Near, words: int = 100, least: float = 1) -> Scores:
    """The scores of queries by the words near documents."""
    stage.WORDS, stage.LEAST = words, least
    places = np.array([run.columns[word] for word in run.lexicon])
    weights = near.words(run.near)
    return (run.words["queries"][:, places] @ weights.T).toarray()


def _nearest(vectors: np.ndarray | csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """The NEAREST documents of each, best first, and their cosines."""
    near, cosines = [], []
    for start in range(0, vectors.shape[0], 1024):
        product = vectors[start : start + 1024] @ vectors.T
        similarity = product if isinstance(product, np.ndarray) else product.toarray()
        similarity[np.arange(len(similarity)), start + np.arange(len(similarity))] = -1
        found = np.argsort(-similarity, axis=1)[:, :NEAREST]
        near.append(found)
        cosines.append(np.take_along_axis(similarity, found, axis=1))
    return np.vstack(near), np.vstack(cosines)


def three(run: Run) -> Variants:
    """Weights of the z-scores of BM25, SPLADE with IDF and the dense encoder; and what else could choose them."""
    systems = [_z(run.bm25["queries"]), _z(run.scores(run.documents)), _z(run.dense)]

    def weighted(weights: Sequence[float]) -> Scores:
        return sum(weight * scores for weight, scores in zip(weights, systems, strict=True))

    for weights in ((2, 1, 2), (1, 1, 1), (1, 0, 1), (1, 1, 2), (2, 1, 1), (2, 1, 3), (3, 2, 4), (0, 1, 2)):
        yield " : ".join(map(str, weights)), weighted(weights)
    yield "by agreement with the others", weighted(_agreement(systems))
    yield "by agreement, times 2 : 1 : 2", weighted(_agreement(systems) * [2, 1, 2])
    yield "min-max of three", _minmax(systems[0]) + _minmax(systems[1]) + _minmax(systems[2])
    yield "min-max of BM25 and dense", _minmax(systems[0]) + _minmax(systems[2])
    for first, second in ((1, 1), (3, 2), (2, 3)):
        yield f"joint and dense, {first} : {second}", first * _z(run.joint(run.documents)) + second * systems[2]


def _agreement(systems: Sequence[Scores]) -> np.ndarray:
    """The correlation of each system with the sum of the others, over the union of the best, mean over queries."""
    best = [np.argpartition(-scores, DEPTH, axis=1)[:, :DEPTH] for scores in systems]
    found = np.zeros(len(systems))
    for row in range(len(systems[0])):
        union = np.unique(np.concatenate([top[row] for top in best]))
        values = np.array([scores[row, union] for scores in systems])
        found += [np.corrcoef(own, values.sum(0) - own)[0, 1] if own.std() else 0.0 for own in values]
    return np.maximum(found / len(systems[0]), 0)


def table(runs: Sequence[Run], variants: Callable[[Run], Variants]) -> list[list[str]]:
    """A row per variant: nDCG@10 and p of every run, and the mean."""
    values = {run.name: {name: run.ndcg(scores) for name, scores in variants(run)} for run in runs}
    first, *_ = names = list(values[runs[0].name])
    rows = [["", *(cell for run in runs for cell in (run.name, "p")), "mean"]]
    for name in names:
        cells = []
        for of_run in values.values():
            p = compare(of_run[first], {name: of_run[name]})[name].p
            cells += [f"{mean(of_run[name]):.4f}", "" if of_run[name] == of_run[first] else p_text(p)]
        rows.append([name, *cells, f"{np.mean([mean(of_run[name]) for of_run in values.values()]):.4f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folders", nargs="+", type=Path, help="run folders")
    parser.add_argument("--of", required=True, choices=VARIANTS, help="what to vary")
    parser.add_argument("--queries", type=int, default=1000, help="queries of each, at most")
    args = parser.parse_args()
    load = partial(Run, limit=args.queries)
    print(markdown(table([load(folder) for folder in args.run_folders], VARIANTS[args.of])))


VARIANTS = {"joint": joint, "smooth": smooth, "expand": expand, "words": words, "three": three}

if __name__ == "__main__":
    main()
