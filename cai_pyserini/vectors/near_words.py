"""Expand documents with words that they may not contain: associated words and neighbours' words.

A dense encoder decides which words are associated with a document. Their weights are added to those of BM25:

    z(w, d) = (w · d - mean of w · d' over all documents d') / deviation
    weight(w, d) = z(w, d)    for positive z(w, d) with the largest z(w, d) * df(w)^(1/4), 100 per document on average

w and d are dense vectors of a word (see word_vectors) and of a document; `deviation` is the root mean square of the
numerator over all words and documents. A word's products are centred on their mean, because some words are similar to
everything, but not divided by their own deviation, which is larger for more informative words. Words in more documents
keep smaller weights, because they are more likely to be searched for.

Neighbours' words have rates, from which counts are derived that are added to the document's own:

    rate(w, d) = mean of tf(w, d') / length(d') over the neighbours d' of d    for the 50 words with the largest mean

The mean is that of near_documents. A Lucene index thus gets the dense encoder's knowledge, above all
synonyms, and is searched without a model.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
from scipy.sparse import csr_matrix, diags_array, hstack, vstack

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.vectors.near_documents import neighbour_means, stored_rows
from cai_pyserini.vectors.shards import SHARD_NAMES, Shard, Vectors, paired, shard_progress, work_folder, write_shards
from cai_pyserini.vectors.word_vectors import word_vectors

ASSOCIATED_WORDS = 100  # per document, on average
SAMPLE = 500  # documents from which the threshold of the weights is estimated
NEIGHBOUR_WORDS = 50  # per document
BATCH = 256  # documents compared at a time
TINY = 1e-9


def find_near_words(words: Vectors, dense: Vectors, near: Vectors, encoder: Encoder, output: Path) -> Path:
    """Write weights and rates, side by side (documents, 2 * words), to a folder of shards; both have the columns of
    `words`, the counts of the words stage. `near` has the neighbours by the dense vectors, and `encoder` is the encoder
    of these vectors. If interrupted, the same call continues with the first missing shard.

    Raises CaiError for vectors of another encoder or of other documents than the words, and for neighbours found by
    other vectors; only dense vectors have any.
    """
    inputs = {"words": words.manifest.digest, "vectors": dense.manifest.digest, "near": near.manifest.digest}
    recipe = artifact.recipe("expand", {**inputs, "encoder": encoder.identity("documents")})

    def write(folder: Path) -> artifact.Stats:
        encoder.require_identity(dense.encoder, dense.folder)
        if near.manifest.recipe["inputs"]["vectors"] != dense.manifest.digest:
            raise CaiError(f"{near.folder} was not made from {dense.folder}: run the near stage with these vectors")
        lines = jsonl.read(words.folder / "lexicon.jsonl", ["word", "form"])
        lexicon = {line["word"]: line["form"] for _, line in lines}
        all_words = jsonl.Lines(words.folder / "words.txt")
        columns = {word: column for column, word in enumerate(all_words) if word in lexicon}
        lexicon_columns = np.array([columns[word] for word in lexicon], np.int32)
        vectors = word_vectors(words, dense, lexicon, lexicon_columns, encoder)
        width, digest = len(all_words), artifact.digest(recipe)
        work = work_folder(folder, digest)

        def word_rates() -> Iterable[csr_matrix]:
            return (rates(counts) for _, counts, _ in shard_progress(words, len(words), "rates of words"))

        rows = stored_rows(work, width, word_rates)
        frequencies = np.zeros(width, np.int64)
        matrix: csr_matrix
        for _, matrix, _ in words:
            frequencies += np.bincount(matrix.indices, minlength=width)
        parts = (shard.vectors for shard in shard_progress(dense, len(dense), "moments"))
        associations = WordAssociations.fit(vectors, frequencies[lexicon_columns], parts, len(dense))

        def expanded(part: tuple[tuple[Shard, Shard], Shard]) -> Shard:
            (counted, encoded), products = part
            means = neighbour_means(rows, products.vectors, NEIGHBOUR_WORDS)
            weights = associations.words(encoded.vectors)
            return Shard(counted.ids, side_by_side(weights, lexicon_columns, means, counted.vectors, encoded.vectors))

        documents = shard_progress(zip(paired(words, dense), near, strict=True), len(words), "expand")
        counts = write_shards(folder, digest, documents, expanded)
        shutil.rmtree(work)
        stats = {"encoder": {"kind": "words"}, "documents_digest": words.documents_digest}
        return counts | stats | {"lexicon": len(lexicon), "words": words.manifest.digest}

    return artifact.make(output, recipe, write, resumable=True, names=SHARD_NAMES)


def rates(counts: csr_matrix) -> csr_matrix:
    """The rate of each word in each document, from counts (documents, words)."""
    return csr_matrix(diags_array(1 / np.maximum(counts.sum(1).A1, 1)) @ counts)


def side_by_side(
    weights: csr_matrix, columns: np.ndarray, means: csr_matrix, counts: csr_matrix, vectors: np.ndarray
) -> csr_matrix:
    """Weights (documents, lexicon) of associated words, moved to the `columns` of the lexicon, and mean rates
    (documents, words), side by side; without those of documents that have no words in `counts`, or a zero vector."""
    moved = csr_matrix((weights.data, columns[weights.indices], weights.indptr), shape=means.shape)
    moved.sort_indices()
    both = hstack([moved, means], format="csr")
    expandable = (np.diff(counts.indptr) > 0) & vectors.any(axis=1)
    both.data *= np.repeat(expandable, np.diff(both.indptr))
    both.eliminate_zeros()
    return both


class WordAssociations:
    """Finds the words of a lexicon that are associated with documents, by dense vectors."""

    def __init__(self, vectors: np.ndarray, means: np.ndarray, deviation: float):
        """`vectors` (words, width) of the lexicon, `means` (words,) of each word's products with all documents, and the
        deviation of all products from these means."""
        self._vectors, self._means, self._deviation = vectors, means, deviation
        self._thresholds = np.zeros(len(vectors), np.float32)  # minimum z of each word

    @classmethod
    def fit(cls, vectors: np.ndarray, frequencies: np.ndarray, documents: Iterable[np.ndarray], size: int) -> Self:
        """Compare words with these vectors (words, width) and document frequencies (words,) to `size` documents, in
        parts (documents, width)."""
        count, sums, products = 0, np.zeros(vectors.shape[1]), np.zeros((vectors.shape[1],) * 2)
        sample = [np.zeros((0, vectors.shape[1]), np.float32)]
        step = -(-size // SAMPLE)
        for part in documents:
            sample.append(part[-count % step :: step])
            count += len(part)
            sums += part.sum(0)
            products += part.T.astype(np.float64) @ part
        mean = sums / count
        variances = np.einsum("wi,ij,wj->w", vectors, products / count - np.outer(mean, mean), vectors, optimize=True)
        deviation = float(np.sqrt(max(variances.sum() / max(len(vectors), 1), TINY)))
        fitted = cls(vectors, (vectors @ mean).astype(np.float32), deviation)
        root = np.float_power(frequencies, 0.25).astype(np.float32)
        scores = (fitted._z(np.vstack(sample)) * root).ravel()
        keep = ASSOCIATED_WORDS * sum(map(len, sample))
        if keep < len(scores):
            fitted._thresholds = max(np.partition(scores, -keep)[-keep], np.float32(0)) / root
        return fitted

    def words(self, documents: np.ndarray) -> csr_matrix:
        """The weights (documents, lexicon) of the words associated with documents (documents, width)."""
        parts = []
        for start in range(0, max(len(documents), 1), BATCH):
            z = self._z(documents[start : start + BATCH])
            parts.append(csr_matrix(np.where(z > self._thresholds, z, 0)))
        return vstack(parts, format="csr")

    def _z(self, documents: np.ndarray) -> np.ndarray:
        return (documents @ self._vectors.T - self._means) / np.float32(self._deviation)
