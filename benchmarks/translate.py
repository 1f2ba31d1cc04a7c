"""Words translated by glossaries: names of HPO's terms in other languages search the English definitions.

    python benchmarks/translate.py words words-icd10 words-all --grams grams --names data/hpo-labels

The arguments are folders of `cai-pyserini stage words`: one of HPO without a glossary, and others with one. Queries are
the names of held-out terms (connector.Names), and the English names of these terms. The systems are BM25 of words,
translated ones included, and bm25-grams, as indexes have them but without quantization.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import connector
import harness
import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack
from scipy.stats import ttest_rel

from cai_pyserini.core.grams import weighted_grams
from cai_pyserini.core.text import normalized
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.runs.significance import p_text
from cai_pyserini.vectors.bm25 import Bm25


class Index:
    """The weights of documents, of words and of n-grams, which queries may leave out."""

    def __init__(self, words: Path, grams: Path):
        self.bm25 = Bm25(words, grams=grams)
        self.analyze, shards = Analyzer(self.bm25.language), [*self.bm25.shards()]
        self.weights = vstack([shard.vectors for shard in shards], format="csr")
        self.places = {id: place for place, id in enumerate(id for shard in shards for id in shard.ids)}

    def ndcg(self, queries: Mapping[str, str], with_grams: bool) -> np.ndarray:
        """nDCG@10 of queries by the id of their relevant documents."""
        texts = [*map(normalized, queries.values())]
        words = [Counter(self.analyze(text)) for text in texts]
        grams = [weighted_grams(text) if with_grams else {} for text in texts]
        (_, names), (_, gram_names) = self.bm25.terms
        terms = hstack([matrix(words, names), matrix(grams, gram_names)], format="csr")
        return connector.ndcg(terms, self.weights, [self.places[id] for id in queries])


def matrix(texts: Iterable[Mapping[str, float]], names: Iterable[str]) -> csr_matrix:
    """The weights of texts as a matrix (texts, names)."""
    columns, values, indices, starts = {name: column for column, name in enumerate(names)}, [], [], [0]
    for text in texts:
        known = {columns[name]: weight for name, weight in text.items() if name in columns}
        values += known.values()
        indices += known
        starts.append(len(values))
    return csr_matrix((np.array(values, np.float32), indices, starts), (len(starts) - 1, len(columns)))


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("words", type=Path, nargs="+", help="folders of the words stage; the first without a glossary")
    parser.add_argument("--grams", type=Path, required=True, help="folder of the words stage with --grams")
    parser.add_argument("--names", type=Path, required=True, help="folder of LANGUAGE.tsv")
    parser.add_argument("--skip", type=int, default=0, help="names per language to leave out, for a second sample")
    args = parser.parse_args()

    connector.QUERIES += args.skip
    names = connector.Names(args.names)
    asked = {language: dict([*named.items()][args.skip :]) for language, named in names.measured.items()}
    first: dict[tuple[str, str, int], np.ndarray] = {}
    rows = []
    for folder in args.words:
        index = Index(folder, args.grams)
        per_document = index.weights.nnz / index.weights.shape[0]
        for system, with_grams in (("words", False), ("bm25-grams", True)):
            rows.append([folder.name, system, f"{per_document:.0f}"])
            for language, named in asked.items():
                means = []
                for queries in (named, {id: names.titles[id] for id in named}):
                    values = index.ndcg(queries, with_grams)
                    before = first.setdefault((system, language, len(means)), values)
                    p = "" if values is before else f" ({p_text(ttest_rel(values, before).pvalue)})"
                    means.append(values.mean())
                    rows[-1].append(f"{values.mean():.4f}{p}")
                rows[-1].append(f"{means[0] / means[1]:.2f}")
    header = ["glossary", "system", "impacts"]
    for language, named in asked.items():
        header += [f"{language}: {len(named)}", "English", "share"]
    harness.show("nDCG@10 (p of the difference to no glossary)", header, rows)


if __name__ == "__main__":
    main()
