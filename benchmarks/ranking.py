"""What the defaults of joint indexes, smoothing, expansion and BM25 + SPLADE + dense were chosen from: nDCG@10 of
variants of each, of exact scores of float vectors.

joint    the weight of BM25 in a joint index
smooth   near documents whose SPLADE vectors are mixed with a document's
counts   words of near documents that are counted in BM25
expand   words near documents: which, and their weight
words    the vectors of these words
three    BM25 + SPLADE + dense: weights, and smooth parts

Takes run folders of `run_beir.sh COLLECTION --dense minilm`. At most --queries queries of each are scored, a fixed
sample; matrices of all scores are in memory, for collections of up to some 20,000 documents. p is that of a paired
t-test against the first row, without correction.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from unittest.mock import patch

import harness
import numpy as np
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import Bm25Parameters, load_encoder
from cai_pyserini.core.tables import markdown
from cai_pyserini.experiments.artifacts import DenseEncoder, EncodedQueries, SpladeEncoder
from cai_pyserini.experiments.index_artifacts import NearDocuments, index_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import SINGLE
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import idf_weights
from cai_pyserini.models.rows import largest
from cai_pyserini.runs.measures import mean, measure
from cai_pyserini.runs.significance import compare, p_text
from cai_pyserini.runs.trec import run_of
from cai_pyserini.vectors import near_words as learning
from cai_pyserini.vectors.bm25 import ASSOCIATED_FACTOR, Bm25, stored_lengths, weights_of
from cai_pyserini.vectors.near_documents import POWER
from cai_pyserini.vectors.near_words import WordAssociations
from cai_pyserini.vectors.neighbours import NEIGHBOURS
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Shard, Vectors
from cai_pyserini.vectors.weighting import term_matrix

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
        joint, encoded, words = SINGLE["joint-splade-idf"], SpladeEncoder(run), run.folder / "words"
        raw, dense = encoded.documents().vectors(), DenseEncoder(run).documents().vectors()
        self.ids = [id for shard in raw for id in shard.ids]
        self.documents: csr_matrix = vstack([shard.vectors for shard in raw], format="csr")
        smoothed = NearDocuments(encoded).vectors()
        self.smoothed: csr_matrix = vstack([shard.vectors for shard in smoothed], format="csr")
        self.near = np.vstack([shard.vectors for shard in dense])
        encoder = load_encoder(str(index_of(joint, run).output))
        self.idf = diags_array(idf_weights(encoder, raw.vocabulary))
        bm25, analyze = Bm25(words), Analyzer()
        self.weights = _stacked(bm25.shards())
        near_words = run.folder / "near-words"
        self.counted = _stacked(Bm25(words, near_words=near_words, documents_only=True).shards())
        columns = {word: column for column, word in enumerate(bm25.words)}
        asked = {"queries": [run.topics[query] for query in self.queries], "spans": [text for text, _ in bm25.spans]}
        self.splade = {kind: encode_queries(encoded.opened(), texts) for kind, texts in asked.items()}
        self.bags = {kind: encode_queries(encoded.opened(), texts, "bow") for kind, texts in asked.items()}
        self.words = {kind: _counts([analyze(text) for text in texts], columns) for kind, texts in asked.items()}
        self.bm25 = {kind: (counts @ self.weights.T).toarray() for kind, counts in self.words.items()}
        self.columns = columns
        lexicon = [line for _, line in jsonl.read(words / "lexicon.jsonl", ["word", "form"])]
        self.parts = Vectors(words, "words"), dense
        self.lexicon = {line["word"]: line["form"] for line in lexicon}
        self.places = np.array([columns[word] for word in self.lexicon])
        counts = [shard.vectors for shard in bm25.counts]
        self.counts = vstack([csr_matrix((c.data, c.indices, c.indptr), (c.shape[0], len(columns))) for c in counts])
        self.lengths = np.asarray(self.counts.sum(1)).ravel()
        self.frequencies = self.counts.getnnz(axis=0)[self.places]
        self.word_idf, self.average = bm25.weighting.idf, bm25.weighting.average
        stored = Vectors(EncodedQueries(DenseEncoder(run)).output)
        self.dense_queries = np.vstack([shard.vectors for shard in stored])[rows]
        self.dense = self.dense_queries @ self.near.T

    def scores(self, documents: csr_matrix, kind: str = "queries", bow: bool = False) -> Scores:
        """SPLADE's, of raw documents, which are weighted with IDF."""
        return ((self.bags if bow else self.splade)[kind] @ (documents @ self.idf).T.tocsr()).toarray()

    def joint(self, documents: csr_matrix, factor: float = 1.0, bow: bool = False) -> Scores:
        """alpha * BM25 + SPLADE, with `factor` times the alpha that spans give."""
        alpha = factor * _spread(self.scores(documents, "spans", bow)) / _spread(self.bm25["spans"])
        return alpha * self.bm25["queries"] + self.scores(documents, bow=bow)

    def indexed(self, words: csr_matrix | Scores, factor: float = 1.0, bow: bool = True) -> Scores:
        """The scores of a smooth joint index with these weights of words (documents, words), or with these scores of
        them (queries, documents)."""
        scores = words if isinstance(words, np.ndarray) else (self.words["queries"] @ words.T).toarray()
        return factor * self.alpha[bow] * scores + self.smooth_scores[bow]

    @cached_property
    def smooth_scores(self) -> dict[bool, Scores]:
        """SPLADE's scores of smoothed documents: with its own queries, and with bag-of-words queries (True)."""
        return {bow: self.scores(self.smoothed, bow=bow) for bow in (False, True)}

    @cached_property
    def alpha(self) -> dict[bool, float]:
        spread = _spread(self.bm25["spans"])
        return {bow: _spread(self.scores(self.smoothed, "spans", bow)) / spread for bow in (False, True)}

    @cached_property
    def vectors(self) -> np.ndarray:
        """The learned vectors of the lexicon (words, width)."""
        return learning.learn(self.regression)

    @cached_property
    def regression(self) -> learning.Regression:
        """What the vectors are learned from."""
        return learning.read_regression(*self.parts, self.lexicon, self.places, EncoderModel(load_encoder("minilm")))

    @cached_property
    def near_words(self) -> csr_matrix:
        """The weights of words near documents."""
        return self.words_near(self.vectors, self.near)

    def words_near(self, vectors: np.ndarray, documents: np.ndarray) -> csr_matrix:
        """The weights of words with these vectors near documents with these."""
        documents = documents.astype(np.float32)
        near = WordAssociations.fit(vectors.astype(np.float32), self.frequencies, [documents], len(documents))
        return self.placed(near.words(documents))

    def placed(self, weights: csr_matrix) -> csr_matrix:
        """Weights of the lexicon (documents, lexicon), among those of all words."""
        shape = weights.shape[0], len(self.columns)
        return csr_matrix((weights.data, self.places[weights.indices], weights.indptr), shape=shape)

    @property
    def rates(self) -> csr_matrix:
        return diags_array(1 / np.maximum(self.lengths, 1)) @ self.counts

    @cached_property
    def mean_of_near(self) -> csr_matrix:
        """The shares of near documents, (documents, documents), as in the smooth stage."""
        near, cosines = _nearest(self.near)
        return _shares(near[:, :NEIGHBOURS], cosines[:, :NEIGHBOURS] ** POWER, len(near))

    def mixed_counts(self, rates: csr_matrix, share: float, words: int) -> csr_matrix:
        """The counts and, for the `words` of each document that have most, `share` of what they would be with these
        rates."""
        return self.counts + largest((diags_array(share * self.lengths) @ rates).tocsr(), words)

    def bm25_of(self, counts: csr_matrix, k1: float = 0.9, b: float = 0.4) -> csr_matrix:
        """BM25's weights of counts, in documents of the true lengths."""
        lengths = stored_lengths(self.lengths.astype(np.int64)) / self.average
        return weights_of(csr_matrix(counts), lengths, self.word_idf, Bm25Parameters(k1, b))

    def ndcg(self, scores: Scores) -> dict[str, float]:
        """nDCG@10 of every query."""
        best = np.argpartition(-scores, 20, axis=1)[:, :20]
        hits = {
            query: [(self.ids[d], float(row[d])) for d in top if not (self.removes_query and self.ids[d] == query)]
            for query, row, top in zip(self.queries, scores, best, strict=True)
        }
        return measure(self.qrels, run_of(hits), ["nDCG@10"])["nDCG@10"]


def _stacked(shards: Iterable[Shard]) -> csr_matrix:
    return vstack([shard.vectors for shard in shards], format="csr")


def _shares(near: np.ndarray, weights: np.ndarray, columns: int) -> csr_matrix:
    weights = np.clip(weights, 0, None)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-9)
    rows = np.repeat(np.arange(len(near)), near.shape[1])
    return csr_matrix((weights.ravel(), (rows, near.ravel())), shape=(len(near), columns))


def _counts(texts: Sequence[Iterable[str] | Mapping[str, int]], columns: dict[str, int]) -> csr_matrix:
    """Counts of known words (texts, words), of the words of texts or of their counts."""
    return term_matrix([Counter(text) for text in texts], [*columns])


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
            neighbours = _shares(near[:, :count], shares, len(near)) @ run.documents
            for weight in (0.1, 0.2, 0.3, 0.4, 0.5):
                mixed = ((1 - weight) * run.documents + weight * neighbours).tocsr()
                yield f"{kind}, {count}, cosine^{power}, {weight}", run.joint(largest(mixed, budget))


def _both(run: Run, name: str, words: csr_matrix | Scores) -> Variants:
    """A smooth joint index with bag-of-words queries, and with SPLADE's."""
    yield name, run.indexed(words)
    yield f"{name}, SPLADE's queries", run.indexed(words, bow=False)


def counts(run: Run) -> Variants:
    """Words of near documents in BM25: the share of a document's length that they have, and how many words."""
    near = ASSOCIATED_FACTOR * run.near_words
    yield from _both(run, "own words", run.weights + near)
    for share, words in ((0.6, 25), (0.6, 50), (0.6, 100), (0.6, 150), (0.3, 50), (1.0, 50)):
        mixed = run.bm25_of(run.mixed_counts(run.mean_of_near @ run.rates, share, words))
        yield from _both(run, f"and {words} words of near documents, {share}", mixed + near)


def expand(run: Run) -> Variants:
    """Words near documents: how many, which, and their weight beside BM25."""
    mean = run.near.mean(0)
    variances = np.einsum("wi,ij,wj->w", run.vectors, np.cov(run.near.T, bias=True), run.vectors, optimize=True)
    z = ((run.near - mean) @ run.vectors.T / np.sqrt(variances.mean())).astype(np.float32)
    counted = (run.words["queries"] @ run.counted.T).toarray()

    def scores(weights: csr_matrix | np.ndarray, weight: float) -> Scores:
        asked = run.words["queries"][:, run.places]
        return counted + weight * np.asarray(
            asked @ weights.T if isinstance(weights, np.ndarray) else (asked @ weights.T).toarray()
        )

    def of_documents(words: int, least: float) -> csr_matrix:
        excess = np.maximum(z - least, 0)
        return largest(csr_matrix(np.where(excess >= np.partition(excess, -words, 1)[:, [-words]], excess, 0)), words)

    def worth(words: int, power: float) -> csr_matrix:
        value = z * run.frequencies.astype(np.float32) ** power
        return csr_matrix(np.where(value > max(np.partition(value.ravel(), -words * len(z))[-words * len(z)], 0), z, 0))

    yield from _both(run, "none", counted)
    old, one = of_documents(100, 1), of_documents(200, 0)
    yield from _both(run, "100 of each document, z - 1, 0.75", scores(old, 0.75))
    for weight in (0.5, 0.75):
        yield from _both(run, f"200 of each document, z, {weight}", scores(one, weight))
    for words in (100, 200):
        for power in (0.25, 0.5):
            kept = worth(words, power)
            for weight in (0.5, 0.6, 0.75):
                yield from _both(run, f"{words} on average, by z * df^{power}, {weight}", scores(kept, weight))
    for weight in (0.5, 0.75):
        yield from _both(run, f"all, even below 0, {weight}", scores(z, weight))


def words(run: Run) -> Variants:
    """Vectors of words, encoded alone or learned, with near documents: in which units their products are compared, and
    what they are learned from."""
    given = run.regression
    contexts = given.contexts
    idf = diags_array(run.word_idf[run.places])
    weighted = contexts.sign() @ idf
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1)).ravel())
    is_span = given.weights == 1
    spans = learning.Regression(*(part[is_span] for part in given[:3]), given.alone)
    few = is_span.cumsum() <= is_span.sum() // 4

    def learned(ridge: float = learning.RIDGE) -> np.ndarray:
        with patch.object(learning, "RIDGE", ridge):
            return learning.learn(given)

    vectors = {
        "learned": learned(),
        "encoded alone": given.alone,
        "learned, words weighted with IDF": learning.learn(
            given._replace(contexts=diags_array(1 / np.maximum(lengths, 1e-9)) @ weighted)
        ),
        "learned from spans": learning.learn(spans),
        "learned from documents": learning.learn(given._replace(weights=np.where(is_span, 0, given.weights))),
        "learned from documents and a quarter of the spans": learning.learn(
            given._replace(weights=np.where(few | ~is_span, given.weights, 0))
        ),
        "learned, ridge 0.3": learned(0.3),
        "learned, ridge 3": learned(3.0),
    }
    for name, each in vectors.items():
        own = each / np.sqrt(np.einsum("wi,ij,wj->w", each, np.cov(run.near.T), each, optimize=True))[:, None]
        units = {"": each, ", in units of its own deviation": own}
        for unit, scaled in units.items() if name in ("learned", "encoded alone") else [("", each)]:
            near = run.words_near(scaled, run.near)
            yield from _both(run, f"{name}{unit}", run.counted + ASSOCIATED_FACTOR * near)


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
    """Weights of z-scores of BM25, SPLADE with IDF and the dense encoder, and what else could choose them; BM25 with
    words of near documents, and smooth SPLADE."""
    systems = [_z(run.bm25["queries"]), _z(run.scores(run.documents)), _z(run.dense)]
    counted, smooth = _z((run.words["queries"] @ run.counted.T).toarray()), _z(run.smooth_scores[False])

    def weighted(weights: Sequence[float]) -> Scores:
        return sum(weight * scores for weight, scores in zip(weights, systems, strict=True))

    for weights in ((2, 1, 2), (1, 1, 1), (1, 0, 1), (1, 1, 2), (2, 1, 1), (2, 1, 3), (3, 2, 4), (0, 1, 2)):
        yield " : ".join(map(str, weights)), weighted(weights)
    for weights in ((2, 1, 2), (1, 1, 2), (0.5, 1, 2)):
        first, second, third = weights
        dense = third * systems[2]
        shown = " : ".join(map(str, weights))
        yield f"{shown}, words of near documents", first * counted + second * systems[1] + dense
        yield f"{shown}, words of near documents and smooth SPLADE", first * counted + second * smooth + dense
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
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("run_folders", nargs="+", type=Path, help="run folders")
    parser.add_argument("--of", required=True, choices=VARIANTS, help="what to vary")
    parser.add_argument("--queries", type=int, default=1000, help="queries of each, at most")
    args = parser.parse_args()
    load = partial(Run, limit=args.queries)
    print(markdown(table([load(folder) for folder in args.run_folders], VARIANTS[args.of])))


VARIANTS = {"joint": joint, "smooth": smooth, "counts": counts, "expand": expand, "words": words, "three": three}

if __name__ == "__main__":
    main()
