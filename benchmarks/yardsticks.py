"""TREC Deep Learning 2019 and 2020 beside five published rankings: BM25, BM25 + RM3, TAS-B, ada2 and SPLADE++ ED.

The collection is a pool: the best 100 passages of the five for each query. It is a BEIR folder with `runs/NAME.trec`,
the rankings, and `qrels/test.tsv`, all judgments of NIST, also of passages that are not in the pool: they belong to the
ideal ranking. The first 43 queries are those of 2019. Which passages are ranked for a query:

pool     all of the pool
bm25     the published BM25's best 100, as a reranker does. A published ranking: those that it has, then the others
union    the best 100 of the five
others   the best 100 of the other four, as if a published ranking had not contributed to the pool

Document frequencies in a pool are not those of the 8.8 million passages that it was taken from. --statistics takes them
from the pool, or from wordfreq, which has the frequencies f of English words in books, news, Wikipedia, subtitles and
the web. N * (1 - exp(-f * L)) passages have a word (for a stem or a piece, f is the sum over its words), at least those
of the pool; L is the mean length of its passages.

    pip install wordfreq==3.1.1
    python benchmarks/yardsticks.py path/to/msmarco-dl --output runs/dl
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np
from scipy.sparse import csr_matrix, vstack

from cai_pyserini.collections.beir_folder import read_judgments
from cai_pyserini.core.tables import markdown
from cai_pyserini.experiments import artifacts
from cai_pyserini.experiments.artifacts import DenseEncoder, SpladeEncoder
from cai_pyserini.experiments.chosen_artifacts import Weights
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import WEIGHTINGS, DenseSystem, SpladeSystem, System, TextSystem, WordSystem
from cai_pyserini.indexes.analyzer import Analyzer, exact_words
from cai_pyserini.models.idf import Idf
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.measures import mean, measure
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.significance import Significance, p_text
from cai_pyserini.runs.trec import Ranking, read_run, run_of
from cai_pyserini.vectors.bm25 import ASSOCIATED_FACTOR, WordWeighting
from cai_pyserini.vectors.quantization import weighted
from cai_pyserini.vectors.queries import Representation, encode_queries
from cai_pyserini.vectors.shards import Shard
from cai_pyserini.vectors.weighting import balanced_alpha, term_matrix

YEARS = {"DL19": slice(43), "DL20": slice(43, None)}  # of the queries
PASSAGES = 8_841_823  # of MS MARCO
HITS = 1000  # of a ranking, of which fusions take the best 100
TINY = 1e-6  # of reciprocal ranks within 100, which differ by more than that
BATCH = 4096  # passages scored at a time
KINDS: tuple[Representation, ...] = ("splade", "bow")
PUBLISHED = {
    "BM25": "BM25",
    "BM25_RM3": "BM25 + RM3",
    "D_BERT_KD_TASB": "TAS-B",
    "OPEN_AI_ADA2": "ada2",
    "SPLADE_P_P_ENSEMBLE_DISTIL": "SPLADE++ ED",
}
MEASURES = ("nDCG@10", "Judged@10", "nDCG(judged_only=True)@10")
SYSTEMS = (
    *("bm25", "splade-doc-idf", "splade", "splade-idf", "joint-doc", "joint", "joint-doc-near", "joint-near"),
    *("joint-splade-doc-near", "joint-splade-near", "dense", "hybrid-splade-idf-dense-zscore", "trio-doc", "trio"),
)
COMPARED = ("joint-doc-near", "joint-near", "joint-splade-near", "trio-doc", "trio")


class Statistics(NamedTuple):
    """The document frequencies of pieces (vocabulary,), which say of how many documents, and of words (words,)."""

    pieces: Idf
    words: np.ndarray


class Pool:
    """What a run on the pool has: raw vectors and counts of its passages, its queries, and the published rankings."""

    def __init__(self, source: Path, run: RunFolder):
        self.run, self.topics = run, run.topics
        self.qrels: dict[str, dict[str, int]] = defaultdict(dict)
        for judgment in read_judgments(source / "qrels" / "test.tsv"):
            self.qrels[judgment.query][judgment.document] = judgment.grade
        self.published = {name: read_run(source / "runs" / f"{stem}.trec") for stem, name in PUBLISHED.items()}
        raw, near = (index_of(parse_system(name), run).open_impacts() for name in ("joint", "joint-near"))
        assert raw and near and near.bm25 and near.bm25.near_vectors
        self.encoder, self.bm25, width = SpladeEncoder(run).opened(), near.bm25, len(near.bm25.words)
        self.idf = Idf.load(artifacts.Idf(SpladeEncoder(run), "idf").output)
        self.ids = [id for shard in raw.vectors for id in shard.ids]
        self.splade = {False: _stacked(raw.vectors), True: _stacked(near.vectors)}  # True: mixed with near ones
        self.counts, expansion = _stacked(near.bm25.counts, width), _stacked(near.bm25.near_vectors, 2 * width)
        self.associated, self.rates = expansion[:, :width], expansion[:, width:]
        vectors = np.vstack([shard.vectors for shard in DenseEncoder(run).documents().vectors()])
        self.dense = index_of(parse_system("dense"), run).queries(None).encoded[0] @ vectors.T
        analyze, self.vectors = Analyzer(), {}
        for of, texts in {"topics": [*self.topics.values()], "spans": [text for text, _ in near.bm25.spans]}.items():
            counts = [Counter(analyze(text)) for text in texts]
            self.vectors[of, "words"] = term_matrix(counts, near.bm25.words)
            self.vectors |= {(of, kind): encode_queries(self.encoder, texts, kind) for kind in KINDS}

    @cached_property
    def designs(self) -> dict[str, np.ndarray]:
        """The passages that are ranked for each query, by design."""
        best = {name: self.placed(run) > 0 for name, run in self.published.items()}
        every, union = np.ones_like(best["BM25"]), np.logical_or.reduce([*best.values()])
        return {"pool": every, "bm25": best["BM25"], "union": union}

    def restrictions(self, name: str) -> dict[str, np.ndarray]:
        """The same for a published ranking."""
        others = [self.placed(run) > 0 for other, run in self.published.items() if other != name]
        return {design: self.designs[design] for design in ("union", "bm25")} | {"others": np.logical_or.reduce(others)}

    def order(self, name: str) -> np.ndarray:
        """Scores (queries, passages) that rank the passages of a published ranking first, then those of BM25."""
        return self.placed(self.published[name]) + TINY * self.placed(self.published["BM25"])

    def placed(self, run: Rankings) -> np.ndarray:
        """The reciprocal ranks of a run's passages, 0 elsewhere, (queries, passages)."""
        rows, columns = ({id: place for place, id in enumerate(ids)} for ids in (self.topics, self.ids))
        places = [(rows[query], columns[document]) for query, document, _ in run]
        found = np.zeros((len(rows), len(columns)))
        found[tuple(np.array(places).T)] = 1 / run.ranks
        return found

    def ranked(self, scores: np.ndarray, candidates: np.ndarray) -> Rankings:
        """The candidates of each query by descending scores, at most HITS."""
        hits = {}
        for query, row, mask in zip(self.topics, scores, candidates, strict=True):
            places = np.flatnonzero(mask)
            places = places[np.argsort(-row[places], kind="stable")[:HITS]]
            hits[query] = Ranking([self.ids[place] for place in places], row[places])
        return run_of(hits)

    @property
    def statistics(self) -> Statistics:
        """Those of the pool."""
        return Statistics(self.idf, self.counts.getnnz(axis=0))

    def general_statistics(self) -> Statistics:
        """Those of wordfreq, for as many passages as MS MARCO has."""
        import wordfreq

        texts = [record.contents for record in self.run.collection.documents()]
        tokens = [exact_words(text) for text in texts]
        frequencies = wordfreq.get_frequency_dict("en", "large")
        numbers = {word for words in tokens for word in words if any(map(str.isdigit, word))}
        frequencies |= {word: wordfreq.word_frequency(word, "en", "large") for word in numbers}
        length, shares, own = np.mean([*map(len, tokens)]), np.array([*frequencies.values()]), self.statistics

        def documents(parts: Sequence[Sequence[int]], least: np.ndarray) -> np.ndarray:
            of_words = np.repeat(shares, [*map(len, parts)])
            sums = np.bincount([*chain.from_iterable(parts)], of_words, len(least))
            return np.maximum(least, PASSAGES * -np.expm1(-length * sums))

        columns = {word: column for column, word in enumerate(self.bm25.words)}
        words = [[columns[word] for word in each if word in columns] for each in Analyzer().many([*frequencies])]
        pieces = self.encoder.tokenizer.encode([*frequencies], max_length=None, special=False)
        frequencies_of_pieces = documents(pieces, own.pieces.frequencies)
        idf = replace(own.pieces, documents=PASSAGES, frequencies=frequencies_of_pieces)
        return Statistics(idf, documents(words, own.words))


class Scorer:
    """Scores of systems, exact ones of float vectors, with the document frequencies of a collection. `alpha` multiplies
    the weight of BM25 in joint systems, `weights` are those of BM25, SPLADE and dense in their fusion."""

    def __init__(self, pool: Pool, statistics: Statistics, alpha: float, weights: Sequence[float] | None):
        self.pool, self.statistics, self.alpha, self.weights = pool, statistics, alpha, weights
        documents, words = statistics.pieces.documents, statistics.words
        length = float(pool.counts.sum() / (pool.counts.getnnz(axis=1) > 0).sum())
        self.bm25 = WordWeighting(np.log1p((documents - words + 0.5) / (words + 0.5)), length, pool.bm25.parameters)
        self.words = self.bm25.weights(pool.counts)
        near = self.bm25.weights(pool.counts, pool.rates)
        self.near_words = {False: near, True: near + ASSOCIATED_FACTOR * pool.associated}  # True: with associated words
        self.alphas: dict[tuple[bool, str | None], Mapping[str, float]] = {}

    def run(self, system: System, candidates: np.ndarray) -> Rankings:
        """The ranking of the candidates of each query (queries, passages)."""
        if not system.parts:
            return self.pool.ranked(self.scores(system), candidates)
        weights = self.weights if system.balanced else None
        runs = [self.run(part, candidates) for part in system.parts]
        return fuse_runs(runs, system.fusion, hits=HITS, weights=weights)

    def scores(self, system: System) -> np.ndarray:
        """The scores of all passages (queries, passages)."""
        pool = self.pool
        match system:
            case DenseSystem(adapted=False, formula=None):
                return pool.dense
            case TextSystem(generated=False) | WordSystem(adapted=False):
                words = self.near_words[False] if system.near else self.words
                return (pool.vectors["topics", "words"] @ words.T).toarray()
            case SpladeSystem(adapted=False) if system.weighting != "auto":
                weights = self.pieces(system.near, system.weighting)
                scores = (pool.vectors["topics", system.query] @ weights.T).toarray()
                if not system.joint:
                    return scores
                words = self.near_words[True] if system.near else self.words
                alpha = self.alpha * self.balance(system.near, system.weighting)[system.query]
                return scores + alpha * (pool.vectors["topics", "words"] @ words.T).toarray()
        raise SystemExit(
            f"{system.name} cannot be ranked with: choose systems of bm25, splade and dense, without -auto"
        )

    def pieces(self, near: bool, weighting: str | None) -> csr_matrix:
        """SPLADE's weights of passages (passages, vocabulary)."""
        if weighting is None:
            return self.pool.splade[near]
        formula, power = WEIGHTINGS[weighting]
        idf = replace(self.statistics.pieces, formula=formula)
        return weighted(self.pool.splade[near], idf.weights(power or 1.0))

    def balance(self, near: bool, weighting: str | None) -> Mapping[str, float]:
        """The weight of BM25 in a joint index, as estimated from spans of the passages."""
        if (near, weighting) not in self.alphas:
            queries = {kind: self.pool.vectors["spans", kind] for kind in KINDS}
            rows = [slice(start, start + BATCH) for start in range(0, len(self.pool.ids), BATCH)]
            pieces = self.pieces(near, weighting)
            parts = ((pieces[batch], self.words[batch]) for batch in rows)
            self.alphas[near, weighting] = balanced_alpha(queries, self.pool.vectors["spans", "words"], parts)
        return self.alphas[near, weighting]


def _stacked(shards: Iterable[Shard], width: int | None = None) -> csr_matrix:
    """The vectors of all shards, with so many columns."""
    parts = [shard.vectors for shard in shards]
    for part in parts:
        part.resize(part.shape[0], width or part.shape[1])
    return vstack(parts, format="csr")


def _differences(values: Mapping[str, Mapping[str, float]], systems: Sequence[str]) -> list[list[str]]:
    """The differences of systems to each published ranking and their p, Holm-corrected for all."""
    found = Significance(values).compare([(name, system) for system in systems for name in PUBLISHED.values()])
    rows = [["", *PUBLISHED.values()]]
    for system in systems:
        compared = (found[name, system] for name in PUBLISHED.values())
        rows.append([system, *(f"{each.difference:+.3f}, {p_text(each.p)}" for each in compared)])
    return rows


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("source", type=Path, help="the pool")
    parser.add_argument("--dense", default="minilm", help="dense encoder")
    parser.add_argument("--output", type=Path, required=True, help="run folder")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, help="systems to rank with")
    parser.add_argument("--compare", nargs="+", default=COMPARED, help="systems to compare with the published rankings")
    parser.add_argument("--statistics", default="wordfreq", choices=["pool", "wordfreq"], help="document frequencies")
    parser.add_argument("--alpha", type=float, default=1.0, help="factor of BM25's weight in joint systems")
    parser.add_argument("--weights", type=float, nargs=3, help="of BM25, SPLADE and dense; default: as the run chose")
    args = parser.parse_args()
    if missing := {*args.compare} - {*args.systems}:
        parser.error(f"--compare {', '.join(sorted(missing))}: not among --systems")
    if absent := [stem for stem in PUBLISHED if not (args.source / "runs" / f"{stem}.trec").is_file()]:
        parser.error(f"no {args.source}/runs/{absent[0]}.trec; the rankings are {', '.join(PUBLISHED)}")
    made = ["joint", "joint-near", "trio"]
    harness.stage("run", str(args.source), dense=args.dense, systems=made, output=args.output)
    pool = Pool(args.source, RunFolder(args.output))
    statistics = pool.statistics if args.statistics == "pool" else pool.general_statistics()
    scorer = Scorer(pool, statistics, args.alpha, args.weights or Weights(pool.run).values())
    rows = [["", "passages", *(f"{year} {name}" for year in YEARS for name in ("nDCG@10", "Judged@10", "judged only"))]]
    values: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)

    def add(name: str, design: str, run: Rankings) -> None:
        found = measure(pool.qrels, run, MEASURES)
        values[design][name] = found["nDCG@10"]
        years = ([*pool.topics][queries] for queries in YEARS.values())
        means = (mean({id: of_query[id] for id in ids}) for ids in years for of_query in found.values())
        rows.append([name, design, *(f"{value:.4f}" for value in means)])

    for name in pool.published:
        for design, candidates in pool.restrictions(name).items():
            add(name, design, pool.ranked(pool.order(name), candidates))
    for design, candidates in pool.designs.items():
        for name in args.systems:
            add(name, design, scorer.run(parse_system(name), candidates))
    print(markdown(rows))
    for design, year in product(("bm25", "union"), (*YEARS, "both")):
        queries = [*pool.topics][YEARS.get(year, slice(None))]
        of_year = {name: {query: each[query] for query in queries} for name, each in values[design].items()}
        print(f"\nDifferences in nDCG@10 to published rankings and p, {year}, {design}\n")
        print(markdown(_differences(of_year, args.compare)))


if __name__ == "__main__":
    main()
