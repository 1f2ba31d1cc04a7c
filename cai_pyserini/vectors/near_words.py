"""Expand documents with words that they may not contain: associated words and neighbours' words.

A dense encoder decides which words are associated with a document. Their weights are added to those of BM25:

    z(w, d) = (w · d - mean of w · d' over all documents d') / deviation
    weight(w, d) = z(w, d)    for positive z(w, d) with the largest z(w, d) * df(w)^(1/4), 100 per document on average

w and d are dense vectors of a word and of a document; `deviation` is the root mean square of the numerator over all
words and documents. A word's products are centred on their mean, because some words are similar to everything, but not
divided by their own deviation, which is larger for more informative words. Words in more documents keep smaller
weights, because they are more likely to be searched for.

Neighbours' words have rates, from which counts are derived that are added to the document's own:

    rate(w, d) = mean of tf(w, d') / length(d') over the neighbours d' of d    for the 50 words with the largest mean

The mean is that of near_documents. A Lucene index thus gets the dense encoder's knowledge, above all synonyms, and is
searched without a model.

Dense encoders are not trained on single words. So the word vectors W (words, width) are fitted by ridge regression:
their sums approximate the vectors E (contexts, width) of texts that contain the words, and W is shrunk towards the
vectors A (words, width) of the words encoded alone:

    W = argmin sum over contexts c of weight(c) · |x(c) W - e(c)|² + RIDGE · |W - A|²

Contexts are short spans, which are encoded for this, and documents, whose vectors are there already. Documents have a
smaller weight, because a long text says less about each of its words. X (contexts, words) has equal entries for the
words of a context, in rows of length 1. A word without contexts keeps the vector of the word alone; uninformative words
get short vectors.

The vectors of some encoders, above all multilingual ones, lie in a narrow cone: most of each is their mean, which
would add up in a sum of words. So contexts, documents and words alone are then centred, each on their own mean. What
such an encoder says about single words is less certain, so the weights are a third.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from scipy.sparse import csr_matrix, diags_array, hstack, vstack

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.vectors.encode import encode_texts
from cai_pyserini.vectors.near_documents import neighbour_means, stored_rows
from cai_pyserini.vectors.neighbours import TINY
from cai_pyserini.vectors.shards import SHARD_NAMES, Shard, Vectors, paired, shard_progress, work_folder, write_shards

ASSOCIATED_WORDS = 100  # per document, on average
SAMPLE = 500  # documents from which the threshold of the weights is estimated
NEIGHBOUR_WORDS = 50  # per document
BATCH = 256  # documents compared at a time
# Of the regression that learns word vectors.
RIDGE = 1.0
DOCUMENTS = 20_000  # documents that are contexts, at most
DOCUMENT_WEIGHT = 0.25
NARROW = 0.6  # share of their mean in the mean square of vectors, above which they lie in a narrow cone
NARROW_DIVISOR = 3  # of their weights
LENGTH = 16  # tokens of a word, without the prompt for documents
CONTEXT_LENGTH = 32  # tokens of a context
PRECISION = 1e-3  # relative, of the solution
STEPS = 100  # maximum, of the solver
COLUMNS = 512  # solved at a time


def find_near_words(words: Vectors, dense: Vectors, near: Vectors, encoder: EncoderModel, output: Path) -> Path:
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
        vectors = learn(read_regression(words, dense, lexicon, lexicon_columns, encoder))
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
        if _is_narrow(mean, np.trace(products) / count):
            deviation *= NARROW_DIVISOR
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


class Regression(NamedTuple):
    """The inputs of the regression."""

    contexts: csr_matrix  # X
    targets: np.ndarray  # E
    weights: np.ndarray  # (contexts,)
    alone: np.ndarray  # A


def read_regression(
    words: Vectors, dense: Vectors, lexicon: Mapping[str, str], columns: np.ndarray, encoder: EncoderModel
) -> Regression:
    """The regression for a lexicon, word -> form, whose words have these `columns` in the counts of the words stage,
    from its contexts, and from documents with their dense vectors by the encoder."""
    contexts = [line for _, line in jsonl.read(words.folder / "contexts.jsonl", ["text"])]
    numbers = {word: number for number, word in enumerate(lexicon)}
    rows = [[numbers[word] for word in line["words"] if word in numbers] for line in contexts]
    indices = np.array([number for row in rows for number in row], np.int32)
    entries = np.ones(len(indices), np.float32), indices, np.cumsum([0, *map(len, rows)])
    counts = csr_matrix(entries, shape=(len(contexts), len(lexicon)))
    texts, forms = [line["text"] for line in contexts], [*lexicon.values()]
    return regression(texts, counts, *_document_contexts(words, dense, columns), forms, encoder)


def _document_contexts(words: Vectors, dense: Vectors, columns: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
    """The counts of a lexicon, (documents, lexicon), and the dense vectors of documents, evenly spaced."""
    step, seen = max(1, -(-len(words) // DOCUMENTS)), 0
    counts, vectors = [], []
    for counted, encoded in paired(words, dense):
        sample = slice(-seen % step, None, step)
        seen += len(counted.ids)
        wide = counted.vectors[sample]
        wide.resize(wide.shape[0], max(wide.shape[1], columns.max(initial=0) + 1))
        counts.append(wide[:, columns])
        vectors.append(encoded.vectors[sample])
    return vstack(counts, format="csr"), np.vstack(vectors).astype(np.float32)


def regression(
    contexts: list[str],
    counts: csr_matrix,
    document_counts: csr_matrix,
    document_vectors: np.ndarray,
    forms: list[str],
    encoder: EncoderModel,
) -> Regression:
    """The regression for contexts and documents, with the counts (texts, words) of both, and a form of each word."""
    occurs = vstack([counts, document_counts], format="csr").sign()
    scaled = diags_array(1 / np.sqrt(np.maximum(occurs.getnnz(axis=1), 1)).astype(np.float32)) @ occurs
    encoded = [
        _encode(contexts, encoder, CONTEXT_LENGTH, "contexts"),
        document_vectors,
        _encode(forms, encoder, LENGTH, "words"),
    ]
    count = max(len(document_vectors), 1)
    if _is_narrow(document_vectors.sum(0) / count, float((document_vectors**2).sum()) / count):
        encoded = [vectors - vectors.sum(0) / max(len(vectors), 1) for vectors in encoded]
    weights = np.repeat(np.array([1, DOCUMENT_WEIGHT], np.float32), [len(contexts), len(document_vectors)])
    return Regression(scaled, np.vstack(encoded[:2]), weights, encoded[2])


def _is_narrow(mean: np.ndarray, mean_square: float) -> bool:
    return float(mean @ mean) > NARROW * mean_square


def learn(regression: Regression) -> np.ndarray:
    """Solve the regression: W, float32 (words, width)."""
    roots, alone = np.sqrt(regression.weights), regression.alone
    contexts, learned = csr_matrix(diags_array(roots) @ regression.contexts), np.empty_like(alone)
    for start in range(0, alone.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        learned[:, part] = _learn(contexts, roots[:, None] * regression.targets[:, part], alone[:, part])
    return learned


def _learn(contexts: csr_matrix, targets: np.ndarray, alone: np.ndarray) -> np.ndarray:
    def normal_equations(flat: np.ndarray) -> np.ndarray:
        change = flat.reshape(alone.shape)
        return (contexts.T @ (contexts @ change) + RIDGE * change).ravel()

    from scipy.sparse.linalg import LinearOperator, cg  # which few runs need

    operator = LinearOperator((alone.size, alone.size), matvec=normal_equations, dtype=np.float32)
    right_side = contexts.T @ (targets - contexts @ alone)
    change, _ = cg(operator, right_side.ravel(), rtol=PRECISION, maxiter=STEPS)
    return alone + change.reshape(alone.shape)


def _encode(texts: list[str], encoder: EncoderModel, length: int, unit: str) -> np.ndarray:
    if prompt := encoder.config.document_prompt:  # word vectors are compared with document vectors
        with_prompt = length + len(encoder.tokenizer.encode([prompt], None, special=False)[0])
        length = max(length, min(with_prompt, encoder.max_length("documents")))
    with progress(iter(texts), len(texts), f"encode {unit}", unit) as bar:
        vectors = encode_texts(encoder, [*texts, ""], length, bar.update)  # at least one text, to know the width
    return np.asarray(vectors[: len(texts)], np.float32)
