"""When does IDF of the collection help a SPLADE encoder, and what tells so without labels?

For each collection: nDCG@10 of documents that are weighted in several ways, for SPLADE's queries and for bags of word
pieces (-doc), alone and with BM25 (joint), of exact scores of float vectors; what was expected to tell the gain; and
the gain on pseudo queries, which search for the rest of their document. With --parts N, also for the documents that
have one of N common words, which are more alike than all: IDF, BM25 and all else are then of these documents alone.

Vectors, IDF and words are made in --output/COLLECTION/ENCODER, unless they are there: a run has the same folders, so
`--output runs/idf` takes those of `cai-pyserini run --config benchmarks/idf.yaml`. Several encoders are the seeds of a
training: values are means over them. p is that of a paired t-test against unweighted documents, or of crossed random
effects of seeds and queries, Holm-corrected for the weightings of a row. Of more than QUERIES queries, a sample is
scored.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import bm25s
import harness
import numpy as np
from scipy.sparse import csr_matrix, vstack
from scipy.stats import spearmanr

from cai_pyserini.collections.readers import open_collection
from cai_pyserini.collections.spans import random_span
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.words import count_words
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf
from cai_pyserini.runs.measures import measure
from cai_pyserini.runs.seeds import over_seeds
from cai_pyserini.runs.significance import holm_corrected, p_text
from cai_pyserini.runs.trec import run_of
from cai_pyserini.trainer.pseudo_queries import pseudo_queries, remainder
from cai_pyserini.vectors.bm25 import Bm25, WordWeighting
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.idf_power import noise
from cai_pyserini.vectors.quantization import weighted
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import balanced_alpha, term_matrix

QUERIES, SPANS, SOURCES = 2000, 500, 400  # at most; of pseudo queries, the documents
PART, PART_QUERIES = 300, 40  # documents and queries of a part, at least
LARGEST_PART, OVERLAP = 0.6, 0.4  # shares at most: of all documents, and of those of two parts
RARE, COMMON, CAP = 0.01, 0.1, 100
PASSAGES = 60_000  # of general text
BATCH = 400  # queries scored together
SEED = 0
KINDS = {"splade": "splade", "bow": "splade-doc"}
WEIGHTINGS = ("none", "sqrt", "power 0.75", "idf", "bm25idf", "capped")


class Source:
    """A collection and what is made of it."""

    def __init__(self, name: str, encoder: EncoderModel, folder: Path):
        config, self.encoder = load_index_config(name), encoder
        collection = open_collection(config)
        encode(collection, encoder, folder / "vectors" / "documents")
        count_words(collection, folder / "words")
        shards = [*Vectors(folder / "vectors" / "documents")]
        self.name, self.ids = collection.name, [id for shard in shards for id in shard.ids]
        self.raw: csr_matrix = vstack([shard.vectors for shard in shards], format="csr")
        records = {record.id: record for record in collection.records()}
        self.titles = [records[id].title for id in self.ids]
        self.contents = [collection.contents_of(records[id]) for id in self.ids]
        self.bags = encoder.tokenizer.bag_of_words(self.contents, 1_000_000)
        bm25 = Bm25(folder / "words")
        self.words, self.parameters, width = [*bm25.words], bm25.parameters, len(bm25.words)
        counts = [shard.vectors for shard in bm25.counts]
        self.counts = vstack([csr_matrix((c.data, c.indices, c.indptr), (c.shape[0], width)) for c in counts])
        topics, self.qrels = collection.topics(config.split), collection.qrels(config.split)
        judged = [query for query in topics if query in self.qrels]
        rows = np.sort(np.random.default_rng(SEED).permutation(len(judged))[:QUERIES])
        self.queries = {judged[row]: topics[judged[row]] for row in rows}
        self.encoded = self.encode([*self.queries.values()])
        self.spans = self.encode([text for text, words in bm25.spans if words][:SPANS])

    @cached_property
    def analyze(self) -> Analyzer:
        return Analyzer()

    def encode(self, texts: Sequence[str]) -> dict[str, csr_matrix]:
        """Queries of each kind (texts, vocabulary), and counts of their words (texts, words)."""
        kinds = {kind: encode_queries(self.encoder, texts, kind) for kind in KINDS}
        return kinds | {"words": term_matrix([Counter(self.analyze(text)) for text in texts], self.words)}

    def parts(self, most: int) -> Iterator[tuple[str, "Documents"]]:
        """The documents that have a common word, of which no two have mostly the same documents."""
        terms, frequencies, bags = self.encoder.tokenizer.terms, self.bags.getnnz(axis=0), self.bags.tocsc()
        found = list[np.ndarray]()
        for column in np.argsort(-frequencies).tolist():
            word, count = terms[column], frequencies[column]
            if count < PART or len(found) == most:
                break
            is_content = word.isalpha() and len(word) > 3 and word not in bm25s.stopwords.STOPWORDS_EN
            if is_content and count < LARGEST_PART * len(self.ids):
                rows = np.sort(bags[:, column].nonzero()[0])
                part = Documents(self, rows)
                is_new = all(len(np.intersect1d(rows, o)) <= OVERLAP * len(np.union1d(rows, o)) for o in found)
                if is_new and len(part.queries) >= PART_QUERIES:
                    found.append(rows)
                    yield f"{self.name}: {word}", part


class Documents:
    """Some documents of a source, by number, and the queries that they answer."""

    def __init__(self, source: Source, rows: np.ndarray):
        self.source, self.rows, self.raw = source, rows, source.raw[rows]
        self.ids = [source.ids[row] for row in rows]
        bags, counts, here = source.bags[rows], source.counts[rows], {*self.ids}
        self.idf = Idf(len(rows), bags.getnnz(axis=0), source.encoder.tokenizer.vocabulary)
        self.bags, self.words = bags, WordWeighting.of([counts], counts.shape[1], source.parameters).weights(counts)
        qrels = {query: {d: g for d, g in source.qrels[query].items() if d in here} for query in source.queries}
        self.numbers = [n for n, grades in enumerate(qrels.values()) if any(grade > 0 for grade in grades.values())]
        self.queries = [[*qrels][number] for number in self.numbers]
        self.qrels = {query: qrels[query] for query in self.queries}

    @cached_property
    def spans(self) -> dict[str, csr_matrix]:
        """Random spans of the documents, which stand for queries."""
        source, draw = self.source, random.Random(SEED)
        if len(self.rows) == len(source.ids):
            return source.spans
        rows = draw.sample([*self.rows], min(SPANS, len(self.rows)))
        return source.encode([span for row in rows if (span := random_span(source.contents[row], draw))])

    def weights(self, weighting: str) -> np.ndarray:
        """The weights of terms (vocabulary,)."""
        if weighting == "bm25idf":
            return Idf(self.idf.documents, self.idf.frequencies, self.idf.vocabulary, "bm25idf").weights()
        if weighting == "capped":  # rare terms are not raised; unseen ones count as rare
            idf = np.where(self.idf.frequencies > 0, self.idf.weights(), np.inf)
            return np.minimum(idf, np.log(CAP))
        return self.idf.weights({"none": 0.0, "sqrt": 0.5, "power 0.75": 0.75, "idf": 1.0}[weighting])

    def values(self, kind: str, weighting: str, joint: bool) -> dict[str, float]:
        """nDCG@10 of every query."""
        documents, encoded = weighted(self.raw, self.weights(weighting)), self.source.encoded
        parts = [(encoded[kind], documents.T.tocsr(), 1.0)]
        if joint:
            parts.append((encoded["words"], self.words.T.tocsr(), self.alpha(kind, documents)))
        hits, depth = {}, min(20, len(self.ids) - 1)
        for start in range(0, len(self.numbers), BATCH):
            chunk = self.numbers[start : start + BATCH]
            scores = sum(factor * (queries[chunk] @ matrix).toarray() for queries, matrix, factor in parts)
            for query, row in zip(self.queries[start:], scores, strict=False):
                best = np.argpartition(-row, depth)[:depth]
                hits[query] = [(self.ids[d], float(row[d])) for d in best if row[d] > 0 and self.ids[d] != query]
        return measure(self.qrels, run_of(hits), ["nDCG@10"])["nDCG@10"]

    def alpha(self, kind: str, documents: csr_matrix) -> float:
        return balanced_alpha({"bow": self.spans[kind]}, self.spans["words"], [(documents, self.words)])["bow"]

    def statistics(self, kind: str, general: Idf | None) -> dict[str, float]:
        """What was expected to tell the gain of IDF."""
        idf, frequencies, count = self.idf.weights(), self.idf.frequencies, self.idf.documents
        queries, common = self.spans[kind], frequencies > COMMON * count
        bags, total = self.spans["bow"], np.asarray(queries.sum(1)).ravel() + 1e-9
        own = self.raw.multiply(self.bags > 0)
        means, often = np.asarray(own.sum(0)).ravel() / np.maximum(frequencies, 1), frequencies >= 5
        a, b = np.random.default_rng(SEED).integers(0, count, (2, 2000))
        norms = np.sqrt(np.asarray(self.raw.multiply(self.raw).sum(1)).ravel()) + 1e-9
        products = np.asarray(self.raw[a].multiply(self.raw[b]).sum(1)).ravel() / (norms[a] * norms[b])
        mass = np.asarray(self.raw.sum(0)).ravel()
        found = {
            "rare": float((bags @ (frequencies <= RARE * count) / np.asarray(bags.sum(1)).ravel()).mean()),
            "words per document": float(np.mean([len(self.source.contents[row].split()) for row in self.rows])),
            "words per query": float(np.mean([len(self.source.queries[query].split()) for query in self.queries])),
            "weights follow idf": float(spearmanr(means[often], idf[often])[0]),
            "cosine": float(products[a != b].mean()),
            "common": float(mass[common].sum() / mass.sum()),
            "noise": noise(queries, [self.raw], common) or 0.0,
        }
        if general:
            rise = np.where((general.frequencies > 0) & (frequencies > 0), general.weights() - idf, 0).clip(0)
            found["common here"] = float((queries @ rise / total).mean())
        return found

    def pseudo(self, kind: str) -> dict[str, float]:
        """The gains of IDF in nDCG@10 of titles and spans that search for the rest of their document."""
        source, draw = self.source, random.Random(SEED)
        rows = draw.sample(range(len(self.rows)), min(SOURCES, len(self.rows)))
        texts = [source.contents[self.rows[row]] for row in rows]
        titles = [source.titles[self.rows[row]] for row in rows]
        asked = [each for each in pseudo_queries(titles, texts, draw) if each.kind in ("title", "span")]
        rest = [remainder(texts[each.document], each.text) for each in asked]
        model, length = source.encoder.load("documents"), source.encoder.config.max_document_length
        raw, queries = model.encode(rest, length), encode_queries(source.encoder, [each.text for each in asked], kind)
        numbers = np.array([rows[each.document] for each in asked])
        values = []
        for weighting in ("none", "idf"):
            weights = self.weights(weighting)
            own = np.asarray(queries.multiply(weighted(raw, weights)).sum(1)).ravel()
            scores = (queries @ weighted(self.raw, weights).T.tocsr()).toarray()
            scores[np.arange(len(scores)), numbers] = -1
            ranks = (scores >= own[:, None]).sum(1)
            values.append(np.where((ranks < 10) & (own > 0), 1 / np.log2(ranks + 2), 0))
        gains, kinds = values[1] - values[0], np.array([each.kind for each in asked])
        return {f"pseudo {name}": float(gains[kinds == name].mean()) for name in ("title", "span") if name in kinds}


def rows_of(name: str, seeds: Sequence[Documents], joint: bool) -> list[list[str]]:
    """A row of the table for each kind of query, from the same documents in the vectors of each seed."""
    rows = []
    for kind, system in KINDS.items():
        values = {weighting: [each.values(kind, weighting, joint) for each in seeds] for weighting in WEIGHTINGS}
        found = holm_corrected({w: over_seeds(values["none"], values[w]) for w in WEIGHTINGS[1:]})
        means = {weighting: np.mean([[*each.values()] for each in of]) for weighting, of in values.items()}
        cells = [f"{means[w]:.4f} ({c.difference:+.4f}, {p_text(c.p)})" for w, c in found.items()]
        rows.append([name, "joint-" * joint + system, f"{len(seeds[0].queries):,}", f"{means['none']:.4f}", *cells])
    return rows


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("collections", nargs="+", help="names in index_configs/, YAML files, or BEIR folders")
    parser.add_argument(
        "--encoder", nargs="+", default=["splade-tiny"], help="names in encoders/, or checkpoint folders"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of vectors, which are kept")
    parser.add_argument("--general", type=Path, help="a file of general_pairs.py, for document frequencies elsewhere")
    parser.add_argument("--parts", type=int, default=0, help="of each collection, at most")
    args = parser.parse_args()
    encoders, general = [EncoderModel(load_encoder(each)) for each in args.encoder], None
    if args.general:
        passages = (line["positive"] for _, line in islice(jsonl.read(args.general, ["positive"]), PASSAGES))
        general = Idf.count(passages, encoders[0].tokenizer)
    values, statistics = list[list[str]](), list[list[str]]()
    header: list[str] = []
    for collection in args.collections:
        folder = args.output / Path(collection).stem
        source, *others = [Source(collection, each, folder / each.config.name) for each in encoders]
        every = np.arange(len(source.ids))
        whole = [Documents(each, every) for each in (source, *others)]
        for joint in (False, True):
            values += rows_of(source.name, whole, joint)
        for name, documents in chain([(source.name, whole[0])], source.parts(args.parts)):
            if documents is not whole[0]:
                values += [row for joint in (False, True) for row in rows_of(name, [documents], joint)]
            for kind, system in KINDS.items():
                found = documents.statistics(kind, general)
                if documents is whole[0]:
                    found |= documents.pseudo(kind)
                header = header or [*found]
                numbers = (f"{value:.3f}" for value in found.values())
                statistics.append([name, system, f"{len(documents.ids):,}", *numbers])
    harness.show("nDCG@10 (difference to none, p)", ["", "system", "queries", *WEIGHTINGS], values)
    harness.show("What might tell the gain", ["", "system", "documents", *header], statistics)


if __name__ == "__main__":
    main()
