"""Rankings without labels that were tried and not kept: nDCG@10 of exact scores of float vectors, as in ranking.py.

index     what else could be in one index that needs no model for a query: words of neighbours or of near spans
          in BM25, associated words found otherwise, other weights
pairs     pairs of words that follow one another, in BM25 beside words
queries   a weight for every term of a query, learned from BM25 + SPLADE + dense on spans of documents
static    queries' dense vectors without a model, as sums of the vectors of words
three     BM25 + SPLADE + dense of smoothed dense vectors, with associated words, or as a joint index and dense; final
          scores mixed with those of neighbours; weights for each query
windows   SPLADE and dense vectors of windows of the documents beside those of whole documents
recipes   of the last ones, how well each finds the sources of pseudo queries: could these choose?

Takes run folders of `run_beir.sh COLLECTION --dense minilm`. At most --queries queries of each are scored; p is that of
a paired t-test against the first row, without correction. `recipes` shows the judges' nDCG@10, too.
"""

from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import harness
import numpy as np
import torch
from ranking import Run, Scores, Variants, _best, _counts, _shares, _spread, _z, table
from scipy.sparse import csr_matrix, diags_array, hstack

from cai_pyserini.collections.passages import passages
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import BM25
from cai_pyserini.core.tables import markdown
from cai_pyserini.experiments.artifacts import DenseEncoder, SpladeEncoder
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.choice import mean_by_source
from cai_pyserini.trainer.simulated import SimulatedRetrieval, smoothed
from cai_pyserini.vectors.bm25 import ASSOCIATED_FACTOR, NEIGHBOUR_FACTOR, stored_lengths, weights_of
from cai_pyserini.vectors.near_documents import POWER
from cai_pyserini.vectors.near_words import NEIGHBOUR_WORDS
from cai_pyserini.vectors.queries import encode_queries

SPANS, HELD = 6000, 600  # spans that teach weights of terms, and how many of these only measure the loss
TERMS, BEST = 64, 50  # terms of a span, and best documents of the teacher and of the student
WINDOW = 48  # words
BALANCE = (2, 1, 2)  # weights of BM25, SPLADE and dense
JUDGES_SEED = 42


class Tried(Run):
    """A run with what the tries are made of."""

    def __init__(self, folder: Path, limit: int):
        super().__init__(folder, limit)
        self.run = RunFolder(folder)
        lines = [line for _, line in jsonl.read(self.run.folder / "words" / "contexts.jsonl", ["text"])]
        self.targets = self.regression.targets[: len(lines)]
        self.context_words = _counts([line["words"] for line in lines], self.columns)
        splade = SpladeEncoder(self.run).opened()
        self.context_bags = encode_queries(splade, [line["text"] for line in lines], "bow")


def index(run: Tried) -> Variants:
    """One index, bag-of-words queries."""
    counted, near = run.counted, ASSOCIATED_FACTOR * run.near_words
    yield "joint-doc-near", run.indexed(counted + near)
    yield "joint-near", run.indexed(counted + near, bow=False)
    spans = diags_array(1 / np.maximum(np.asarray(run.context_words.sum(1)).ravel(), 1)) @ run.context_words
    best, cosines = [], []
    for start in range(0, len(run.near), 500):
        products = run.near[start : start + 500] @ run.targets.T
        best.append(np.argpartition(-products, 50, 1)[:, :50])
        cosines.append(np.take_along_axis(products, best[-1], 1))
    rates = _shares(np.vstack(best), np.vstack(cosines) ** 8, len(run.targets)) @ spans
    yield "words of near spans in place of documents", run.indexed(run.bm25_of(run.mixed_counts(rates, 0.6, 50)) + near)
    variances, directions = np.linalg.eigh(np.cov(run.near.T))
    for power in (0.25, 0.5):
        scales = (np.maximum(variances, 1e-6) / variances.mean()) ** (-power / 2)
        whiten = (directions * scales) @ directions.T
        whitened = run.words_near(run.vectors @ whiten, run.near @ whiten)
        yield f"associated words in a space whitened by {power}", run.indexed(counted + ASSOCIATED_FACTOR * whitened)
    mixed = run.near + 0.5 * (run.mean_of_near @ run.near)
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    yield (
        "associated words of documents mixed with neighbours",
        run.indexed(counted + ASSOCIATED_FACTOR * run.words_near(run.vectors, mixed)),
    )
    contexts = np.asarray((run.context_words[:, run.places] > 0).sum(0)).ravel()
    trusted = run.vectors * (contexts / (contexts + 3))[:, None]
    yield (
        "vectors of words times n / (n + 3), of n contexts",
        run.indexed(counted + ASSOCIATED_FACTOR * run.words_near(trusted, run.near)),
    )
    mixed_counts = run.mixed_counts(run.mean_of_near @ run.rates, NEIGHBOUR_FACTOR, NEIGHBOUR_WORDS)
    for k1, b in ((1.2, 0.75), (0.9, 0.7), (0.6, 0.4)):
        yield f"k1 {k1}, b {b}", run.indexed(run.bm25_of(mixed_counts, k1, b) + near)
    for factor in (0.7, 1.4):
        yield f"{factor} × alpha", run.indexed(counted + near, factor)
    words = (run.words["queries"] @ (counted + near).T).toarray()
    inverse = len(run.ids) / np.maximum(run.documents.getnnz(axis=0), 1)
    for power in (1.0, 0.5):
        yield f"IDF of expanded documents, to the power {power}", _with_idf(run, words, np.log(inverse) ** power)


def _with_idf(run: Tried, words: Scores, idf: np.ndarray) -> Scores:
    """Scores of a smooth joint index with another IDF of SPLADE's terms."""
    documents = run.smoothed @ diags_array(idf)
    splade, spans = ((run.bags[kind] @ documents.T).toarray() for kind in ("queries", "spans"))
    return _spread(spans) / _spread(run.bm25["spans"]) * words + splade


def pairs(run: Tried) -> Variants:
    """BM25 of pairs of words that follow one another, times a factor, beside that of words."""
    analyze, words = Analyzer(), run.words["queries"] @ (run.counted + ASSOCIATED_FACTOR * run.near_words).T
    asked = [[*pairwise(analyze(run.run.topics[query]))] for query in run.queries]
    columns = {pair: column for column, pair in enumerate(dict.fromkeys(chain.from_iterable(asked)))}
    contents = {document.id: document.contents for document in run.run.collection.documents()}
    queries = _counts(asked, columns)
    documents = _counts([pairwise(analyze(contents[id])) for id in run.ids], columns)
    frequencies = documents.getnnz(axis=0)
    idf = np.log1p((len(run.ids) - frequencies + 0.5) / (frequencies + 0.5))
    lengths = stored_lengths(run.lengths.astype(np.int64)) / run.average
    scores = (queries.sign() @ weights_of(documents, lengths, idf, BM25).T).toarray()
    for factor in (0, 0.1, 0.2, 0.4, 0.8):
        yield f"{factor}", run.indexed(words.toarray() + factor * scores)
        yield f"{factor}, SPLADE's queries", run.indexed(words.toarray() + factor * scores, bow=False)


def queries(run: Tried) -> Variants:
    """Weights u of query terms, by gradient descent on the cross entropy of the softmax of BM25 + SPLADE + dense and of
    the index, over the best documents of both for a span, but the one that BM25 finds first: its source."""
    words = run.alpha[True] * (run.counted + ASSOCIATED_FACTOR * run.near_words)
    documents = hstack([words, run.smoothed @ run.idf], format="csr")
    asked = hstack([run.words["queries"], run.bags["queries"]], format="csr")
    yield "without", (asked @ documents.T).toarray()
    for name, regularizer, temperature in (("", 0.005, 1.0), (", sharper", 0.02, 0.5)):
        weights = _term_weights(run, documents, regularizer, temperature)
        for power in (1.0, 0.5):
            scaled = (asked @ diags_array(weights**power) @ documents.T).toarray()
            yield f"learned{name}, to the power {power}", scaled


def _term_weights(run: Tried, documents: csr_matrix, regularizer: float, temperature: float) -> np.ndarray:
    torch.manual_seed(0)
    spans = np.random.default_rng(0).permutation(len(run.targets))[:SPANS]
    asked = hstack([run.context_words[spans], run.context_bags[spans]], format="csr")
    splade, count = (run.documents @ run.idf).T.tocsr(), len(spans)
    blocks = torch.zeros(count, TERMS, 2 * BEST, dtype=torch.float16)
    teacher = torch.full((count, 2 * BEST), -1e4)
    terms, counts = torch.zeros(count, TERMS, dtype=torch.long), torch.zeros(count, TERMS)
    for start in range(0, count, 250):
        rows = spans[start : start + 250]
        bm25 = (run.context_words[rows] @ run.weights.T).toarray()
        systems = bm25, (run.context_bags[rows] @ splade).toarray(), run.targets[rows] @ run.near.T
        taught = sum(weight * _z(scores) for weight, scores in zip(BALANCE, systems, strict=True))
        learned = (asked[start : start + 250] @ documents.T).toarray()
        for place, source in enumerate(bm25.argmax(1)):
            row = start + place
            taught[place, source] = learned[place, source] = -1e9
            tops = (np.argpartition(-scores[place], BEST)[:BEST] for scores in (taught, learned))
            best = np.unique(np.concatenate([*tops]))
            term = asked[row].indices[:TERMS]
            terms[row, : len(term)], counts[row, : len(term)] = (
                torch.tensor(term),
                torch.tensor(asked[row].data[:TERMS]),
            )
            blocks[row, : len(term), : len(best)] = torch.from_numpy(documents[best][:, term].toarray().T)
            teacher[row, : len(best)] = torch.from_numpy(taught[place, best])
    target, absent = torch.softmax(teacher / temperature, 1), teacher < -1e3
    products = (blocks.float() * counts[:, :, None]).sum(1)
    unit = products[~absent].std()
    logs, scale = torch.zeros(documents.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([logs, scale], lr=0.05)
    for _ in range(12):
        for batch in (HELD + torch.randperm(count - HELD)).split(128):
            scaled = torch.exp(logs[terms[batch]]) * counts[batch]
            scores = (blocks[batch].float() * scaled[:, :, None]).sum(1) * 2 * scale.exp() / unit
            student = torch.log_softmax(scores.masked_fill(absent[batch], -1e4), 1)
            loss = -(target[batch] * student).sum(1).mean() + regularizer * len(batch) / count * (logs**2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return np.exp(logs.detach().numpy())


def static(run: Tried) -> Variants:
    """Dense vectors of queries from those of their words."""
    yield "joint-doc-near", run.indexed(run.counted + ASSOCIATED_FACTOR * run.near_words)
    sums = run.words["queries"][:, run.places] @ run.vectors
    scores = (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)) @ run.near.T
    yield "static", scores
    yield "dense", run.dense
    bm25, splade = _z(run.bm25["queries"]), _z(run.smooth_scores[True])
    for weights in ((2, 1, 2), (2, 1, 1), (1, 1, 1)):
        parts = zip(weights, (bm25, splade, _z(scores)), strict=True)
        yield f"BM25, SPLADE smooth, static, {weights}", sum(weight * part for weight, part in parts)


def three(run: Tried) -> Variants:
    """BM25 + SPLADE + dense, of other parts."""
    parts = real(run)
    for recipe in RECIPES:
        yield str(recipe), recipe.scores(parts, _z)
    name, fused = str(RECIPES[0]), RECIPES[0].scores(parts, _z)
    near = (run.mean_of_near @ fused.T).T
    for share in (0.2, 0.4):
        yield f"{name}, scores mixed with those of neighbours, {share}", (1 - share) * fused + share * near
    yield f"{name}, in a unit common to all queries", RECIPES[0].scores(parts, _in_common_unit)
    covered = _covered(run, parts["bm25"])[:, None]
    bm25 = RECIPES[0].weight * _z(parts["bm25"])
    for power in (0.5, 1.0):
        more = ((covered / covered.mean()) ** power - 1) * bm25
        yield f"{name}, BM25 times what its best document covers of a query, to the power {power}", fused + more


def _in_common_unit(scores: Scores) -> Scores:
    best = _best(scores)
    return (scores - best.mean(1, keepdims=True)) / best.std(1).mean()


def _covered(run: Tried, bm25: Scores) -> np.ndarray:
    """BM25's best score of every query, as a share of the IDF of all words of the query, known or not."""
    analyze, count = Analyzer(), len(run.ids)
    unknown = np.log1p((count + 0.5) / 0.5)
    idf = [
        sum(
            run.word_idf[run.columns[word]] if word in run.columns else unknown
            for word in analyze(run.run.topics[query])
        )
        for query in run.queries
    ]
    return bm25.max(1) / np.maximum(idf, 1e-9)


def windows(run: Tried) -> Variants:
    """Vectors of windows: SPLADE's largest weight of each term, and the dense vector that is nearest to the query."""
    contents = {document.id: document.contents for document in run.run.collection.documents()}
    found = [(row, text) for row, id in enumerate(run.ids) for text, _ in passages(contents[id], WINDOW, WINDOW // 2)]
    rows, texts = np.array([row for row, _ in found]), [text for _, text in found]
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    encoder = SpladeEncoder(run.run).opened()
    of_windows = run.documents
    vectors = csr_matrix(encoder.load("documents").encode(texts, encoder.config.max_document_length))
    for place in range(np.diff(starts, append=len(rows)).max()):
        chosen = np.minimum(starts + place, np.append(starts[1:], len(rows)) - 1)
        of_windows = of_windows.maximum(vectors[chosen])
    dense = DenseEncoder(run.run).opened()
    products = run.dense_queries @ np.asarray(dense.load("documents").encode(texts, dense.config.max_document_length)).T
    nearest = np.maximum.reduceat(products, starts, axis=1)
    parts = real(run)
    kinds = {
        "": run.dense,
        ", mean of document and nearest window": (run.dense + nearest) / 2,
        ", nearest window": nearest,
    }
    for name, scores in kinds.items():
        yield f"{RECIPES[0]}{name}", RECIPES[0].scores(parts | {"dense": scores}, _z)
    yield f"{RECIPES[0]}, SPLADE of windows", RECIPES[0].scores(parts | {"splade": run.scores(of_windows)}, _z)
    for name, scores in kinds.items():
        yield f"dense{name}", scores
    for bow, kind in ((True, "doc-"), (False, "")):
        yield f"joint-splade-{kind}idf", run.joint(run.documents, bow=bow)
        yield f"joint-splade-{kind}idf, SPLADE of windows", run.joint(of_windows, bow=bow)


class Recipe:
    """w * z(BM25) + z(SPLADE) + 2 * z(dense), BM25 with associated words or without, dense vectors mixed with those of
    neighbours or not; or w * z(joint) + 2 * z(dense). BM25 has neighbours' words, and SPLADE is smooth."""

    def __init__(self, weight: float, near: bool = False, smooth: bool = False, joint: bool = False):
        self.weight, self.near, self.smooth, self.joint = weight, near, smooth, joint

    def __str__(self) -> str:
        parts = ["joint"] if self.joint else ["BM25", "SPLADE"]
        parts[0] += " with associated words" * self.near
        return f"{self.weight:g} : {' + '.join([*parts, 'dense'])}{' mixed with neighbours' * self.smooth}"

    def scores(self, parts: dict[str, Scores], z: Callable[[Scores], Scores]) -> Scores:
        words = parts["bm25"] + ASSOCIATED_FACTOR * parts["near"] * self.near
        dense = 2 * z(parts["dense, smooth" if self.smooth else "dense"])
        if self.joint:
            return self.weight * z(parts["alpha"] * words + parts["splade"]) + dense
        return self.weight * z(words) + z(parts["splade"]) + dense


RECIPES = [Recipe(weight, near) for weight in (2, 1, 0.5) for near in (False, True)]
RECIPES += [Recipe(weight, smooth=True) for weight in (2, 1, 0.5)]
RECIPES += [Recipe(weight, near, joint=True) for weight in (1, 2, 3) for near in (False, True)]


def real(run: Tried) -> dict[str, Scores]:
    """The scores that recipes are made of, for the queries of the run."""
    mixed = run.near + 2 / 3 * (run.mean_of_near @ run.near)  # 0.6 : 0.4
    return {
        "bm25": (run.words["queries"] @ run.counted.T).toarray(),
        "near": (run.words["queries"] @ run.near_words.T).toarray(),
        "splade": run.smooth_scores[False],
        "dense": run.dense,
        "dense, smooth": run.dense_queries @ mixed.T,
        "alpha": np.float32(run.alpha[False]),
    }


def judges(run: Tried) -> tuple[dict[str, Scores], SimulatedRetrieval]:
    """The same for pseudo queries, whose sources have lost the queries' words."""
    splade, dense = (kind(run.run).config() for kind in (SpladeEncoder, DenseEncoder))
    data = AdaptationData(run.run.experiment.collection, splade, dense, run.run.vectors, 0, JUDGES_SEED, "auto")
    served = SimulatedRetrieval.for_pseudo_queries(data, data.held_out)
    vectors, of_splade, idf = served.dense(None), served.old_splade, diags_array(data.idf)
    rows = smoothed(of_splade.rows, vectors.neighbours)
    shares = vectors.neighbours.power(POWER)
    means = diags_array(1 / np.maximum(shares.sum(1).A1, 1e-9)) @ shares @ vectors.rows[: shares.shape[1]]
    asked = of_splade.queries["splade"]
    words, near = served.bm25.queries(served.queries), (vectors.words - vectors.bm25) / ASSOCIATED_FACTOR
    pairs = {
        "bm25": (words, vectors.bm25),
        "near": (words, near),
        "splade": (asked, rows @ idf),
        "dense": (vectors.queries, vectors.rows),
        "dense, smooth": (vectors.queries, vectors.rows + 2 / 3 * means),
    }
    scores = {
        name: np.nan_to_num(served.product_scores(*pair), neginf=0) for name, pair in pairs.items()
    }  # of copies, 0
    return scores | {"alpha": np.float32(served.alpha(of_splade, rows)["splade"])}, served


def recipes(runs: list[Tried]) -> list[list[str]]:
    """nDCG@10 of the queries, and in brackets that of the judges, of every recipe."""
    rows = [["", *(run.name for run in runs)], *([str(recipe)] for recipe in RECIPES)]
    for run in runs:
        parts, (judged, served) = real(run), judges(run)
        for recipe, row in zip(RECIPES, rows[1:], strict=True):
            found = mean_by_source(served.ndcg(recipe.scores(judged, _z)), served.sources).mean()
            row.append(f"{np.mean([*run.ndcg(recipe.scores(parts, _z)).values()]):.4f} ({found:.4f})")
    return rows


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("run_folders", nargs="+", type=Path, help="run folders")
    parser.add_argument("--of", required=True, choices=[*TRIES, "recipes"], help="what was tried")
    parser.add_argument("--queries", type=int, default=1000, help="queries of each, at most")
    args = parser.parse_args()
    runs = [Tried(folder, args.queries) for folder in args.run_folders]
    print(markdown(recipes(runs) if args.of == "recipes" else table(runs, TRIES[args.of])))


TRIES = {"index": index, "pairs": pairs, "queries": queries, "static": static, "three": three, "windows": windows}

if __name__ == "__main__":
    main()
