"""Queries in any language to the joint index of an English collection, without words or models of that language.

A regression learns, from a multilingual dense encoder's vector of a text, the query with which the index is searched
for the English text: weights of SPLADE's word pieces and of BM25's words,

    q = W f(x),   f(x) = [x; relu(R x + b)],   R random, W by ridge regression

It is trained on the English titles of the collection, then also on pairs of other texts (--pairs: lines of language,
text and English, such as the entries of dictionaries) and on names of other terms. Measured with names of HPO's terms
(--names: LANGUAGE.tsv, lines of id and name) that were never trained on, nor any other name of these terms but, in the
collection, their English titles.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from scipy.linalg import solve
from scipy.sparse import csr_matrix, hstack

from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.runs.seeds import over_seeds
from cai_pyserini.runs.significance import p_text
from cai_pyserini.vectors.queries import WordQueries

FEATURES, GAIN = 2000, 6.0
RIDGE = 1e-3  # of the mean variance of the features
KEPT = 24, 10  # word pieces and words of a query
BLOCK = 8192  # texts at a time
QUERIES = 500  # names per language
Sums = tuple[np.ndarray, np.ndarray]


class Pair(NamedTuple):
    """A text, and its English translation, which is the text itself if it is English."""

    text: str
    english: str


class Index:
    """A joint index, as a matrix of impacts (documents, terms); its first `pieces` terms are SPLADE's."""

    def __init__(self, impacts: Path):
        self.encoder = EncoderModel(load_encoder("splade-tiny"), "cpu", "bfloat16")
        self.words = WordQueries(Analyzer(), load_encoder(str(impacts / "encoder.yaml")))
        self.scale, self.pieces = self.words.config.query_scale, len(self.encoder.tokenizer)
        terms = {term: place for place, term in enumerate(self.encoder.tokenizer.terms)}
        self.ids, values, columns, starts = list[str](), list[int](), list[int](), [0]
        for file in sorted(impacts.glob("*.jsonl")):
            for _, document in jsonl.read(file, ["id"]):
                self.ids.append(document["id"])
                values += document["vector"].values()
                columns += (terms.setdefault(term, len(terms)) for term in document["vector"])
                starts.append(len(values))
        self.terms = terms
        self.impacts = csr_matrix((np.array(values, np.float32), columns, starts), (len(self.ids), len(terms)))

    def queries(self, texts: Sequence[str]) -> csr_matrix:
        """The weights of English texts as queries (texts, terms)."""
        values, columns, starts = list[float](), list[int](), [0]
        for text in texts:
            known = {word: impact for word, impact in self.words.impacts(text).items() if word in self.terms}
            values += (impact / self.scale for impact in known.values())
            columns += (self.terms[word] - self.pieces for word in known)
            starts.append(len(values))
        words = csr_matrix((values, columns, starts), (len(texts), len(self.terms) - self.pieces), dtype=np.float32)
        return hstack([self.encoder.load("documents").encode(texts, 64), words], format="csr")


def ndcg(queries: csr_matrix, documents: csr_matrix, relevant: Sequence[int]) -> np.ndarray:
    """nDCG@10 of queries, by impacts (queries or documents, terms); each has one relevant document, given by its row.
    Ties keep the order of documents."""
    places = np.array(relevant)
    scores = (queries @ documents.T).toarray()
    own = scores[np.arange(len(scores)), places][:, None]
    ranks = (scores > own).sum(1) + ((scores == own) & (np.arange(documents.shape[0]) < places[:, None])).sum(1)
    return np.where((ranks < 10) & (own[:, 0] > 0), 1 / np.log2(ranks + 2), 0)


class Vectors:
    """Vectors of texts by multilingual-e5-small, as queries. Each is encoded once and kept in a file."""

    def __init__(self, file: Path, texts: Sequence[str]):
        self.rows = dict[str, int]()
        self.vectors: np.ndarray = np.zeros((0, 384), np.float32)
        if file.exists():
            stored = np.load(file)
            self.rows, self.vectors = (
                {text: row for row, text in enumerate(stored["texts"].tolist())},
                stored["vectors"],
            )
        if new := [text for text in dict.fromkeys(texts) if text not in self.rows]:
            config = load_encoder("e5-small").replace(document_prompt="query: ")
            encoded = EncoderModel(config, "cpu", "bfloat16").load("documents").encode(new, 48)
            self.rows |= {text: row for row, text in enumerate(new, len(self.rows))}
            self.vectors = np.vstack([self.vectors, encoded])
            np.savez(file, texts=np.array([*self.rows]), vectors=self.vectors)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return self.vectors[[self.rows[text] for text in texts]]

    def remove_languages(self, english: Sequence[str], others: Sequence[Sequence[str]]) -> None:
        """Remove the directions in which the means of texts in other languages differ from the mean of English ones."""
        differences = [self(texts).mean(0) - self(english).mean(0) for texts in others]
        basis = np.linalg.qr(np.array(differences).T)[0]
        self.vectors = self.vectors - self.vectors @ basis @ basis.T
        self.vectors /= np.linalg.norm(self.vectors, axis=1, keepdims=True)


class Connector:
    """The regression. It is solved from the sums of its normal equations, which add up over sources of pairs."""

    def __init__(self, vectors: Vectors, mean: np.ndarray, seed: int):
        draw = np.random.default_rng(seed)
        self.vectors, self.mean = vectors, mean
        self.random = (GAIN * draw.normal(size=(len(mean), FEATURES))).astype(np.float32)
        self.bias = draw.uniform(-1, 1, FEATURES).astype(np.float32)

    def features(self, texts: Sequence[str]) -> np.ndarray:
        """f(x) and a constant, float32 (texts, width + FEATURES + 1)."""
        x = self.vectors(texts) - self.mean
        random = np.maximum(x @ self.random + self.bias, 0) / np.sqrt(FEATURES)
        return np.hstack([4 * x, random, np.ones((len(x), 1))]).astype(np.float32)

    def sums(self, pairs: Sequence[Pair], queries: csr_matrix) -> Sums:
        """F'F and F'Q of pairs with the queries Q (pairs, terms) of their English texts."""
        products, targets = 0.0, 0.0
        for start in range(0, len(pairs), BLOCK):
            block = self.features([pair.text for pair in pairs[start : start + BLOCK]])
            products = products + block.T @ block
            targets = targets + block.T @ queries[start : start + BLOCK]
        return np.asarray(products), np.asarray(targets)

    def solve(self, sources: Sequence[Sums]) -> np.ndarray:
        """W' (features, terms) of sources together."""
        products, targets = (sum(part).astype(float) for part in zip(*sources, strict=True))
        count = products[-1, -1]
        variances = products.diagonal() / count - np.square(products[-1] / count)
        products[np.diag_indices(len(products) - 1)] += RIDGE * count * variances.mean()  # not of the constant
        return solve(products, targets, assume_a="pos")

    def queries(self, weights: np.ndarray, texts: Sequence[str], pieces: int) -> np.ndarray:
        """The queries of texts (texts, terms): the largest weights of word pieces, and of words."""
        found = np.maximum(self.features(texts) @ weights, 0)
        for part, kept in zip((found[:, :pieces], found[:, pieces:]), KEPT, strict=True):
            part[part <= -np.partition(-part, kept, 1)[:, kept, None]] = 0
        return found


class Names:
    """Names of HPO's terms by language. Terms whose hash is divisible by three are held out, and all those that have a
    name in a language with few names."""

    def __init__(self, folder: Path):
        records = [*Hpo().records()]
        self.titles = {record.id: record.title for record in records}
        self.contents = [f"{record.title} {record.text}" for record in records]
        named: dict[str, dict[str, str]] = {}
        for file in sorted(folder.glob("*.tsv")):
            rows = (line.partition("\t") for line in file.read_text("utf-8").splitlines())
            named[file.stem] = {id: name.strip() for id, _, name in rows if id in self.titles}
        few = [language for language, names in named.items() if len(names) < 2 * QUERIES]
        held = {id for id in self.titles if _hash(id) % 3 == 0}.union(*(named[language] for language in few))
        self.measured = {
            language: {id: names[id] for id in sorted(names.keys() & held, key=_hash)[:QUERIES]}
            for language, names in named.items()
        }
        self.others = {
            language: {id: name for id, name in names.items() if id not in held}
            for language, names in named.items()
            if language not in few
        }

    @property
    def sources(self) -> dict[str, list[Pair]]:
        return {
            f"names {language}": [Pair(name, self.titles[id]) for id, name in names.items()]
            for language, names in self.others.items()
        }


def _hash(id: str) -> int:
    return int(sha256(id.encode()).hexdigest(), 16)


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("run", type=Path, help="run folder of hpo with --dense and the system joint-near")
    parser.add_argument("--names", type=Path, required=True, help="folder of LANGUAGE.tsv")
    parser.add_argument("--pairs", type=Path, help="TSV of language, text and English text")
    parser.add_argument("--vectors", type=Path, required=True, help="file for e5-small's vectors")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()

    index, names = Index(args.run / "impacts" / "joint-splade-idf-near"), Names(args.names)
    sources = {"titles": [Pair(title, title) for title in names.titles.values()], **names.sources}
    if args.pairs:
        lines = args.pairs.read_text("utf-8").splitlines()
        sources["pairs"] = [Pair(*line.split("\t")[1:]) for line in lines]
    asked = [names.values() for names in names.measured.values()]
    texts = [*(pair.text for pairs in sources.values() for pair in pairs), *chain.from_iterable(asked)]
    vectors = Vectors(args.vectors, texts)
    unlabelled = [[pair.text for pair in pairs] for pairs in names.sources.values()]
    vectors.remove_languages([*names.titles.values()], unlabelled)

    targets = {name: index.queries([pair.english for pair in pairs]) for name, pairs in sources.items()}
    used = np.unique(np.concatenate([queries.indices for queries in targets.values()]))
    pieces, documents = int(np.searchsorted(used, index.pieces)), index.impacts[:, used]
    relevant = {language: [index.ids.index(id) for id in named] for language, named in names.measured.items()}
    english = {}
    for language, named in names.measured.items():
        queries = index.queries([names.titles[id] for id in named])[:, used]
        english[language] = ndcg((queries * index.scale).rint(), documents, relevant[language]).mean()

    trainings = [["titles"], *(["titles", name] for name in sources if name != "titles"), [*sources]]
    values: dict[tuple[int, str], list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        connector = Connector(vectors, vectors([*names.titles.values()]).mean(0), seed)
        sums = {name: connector.sums(pairs, targets[name][:, used]) for name, pairs in sources.items()}
        for number, training in enumerate(trainings):
            weights = connector.solve([sums[name] for name in training])
            for language, named in names.measured.items():
                queries = csr_matrix(connector.queries(weights, [*named.values()], pieces))
                found = ndcg((queries * index.scale).rint(), documents, relevant[language]).tolist()
                values.setdefault((number, language), []).append(dict(zip(named, found, strict=True)))
    rows: list[list[Any]] = [["English names", "", *(f"{mean:.4f}" for mean in english.values())]]
    for number, training in enumerate(trainings):
        rows.append([" + ".join(training), f"{sum(len(sources[name]) for name in training):,}"])
        for language, mean in english.items():
            found, p = values[number, language], over_seeds(values[0, language], values[number, language]).p
            share = harness.mean_by_seed(found) / mean
            rows[-1].append(f"{harness.mean_by_seed(found):.4f} ({share:.2f}, {p_text(p)})")
    header = ["trained on", "pairs", *(f"{language}: {len(named)}" for language, named in names.measured.items())]
    harness.show("nDCG@10 (share of English; p of the difference to titles)", header, rows)


if __name__ == "__main__":
    main()
