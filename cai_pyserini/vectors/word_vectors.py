"""Dense vectors of words, learned from the vectors of text spans that contain them.

Dense encoders are not trained on single words. So the word vectors W (words, width) are fitted by ridge regression:
their sums approximate the vectors E (contexts, width) of texts that contain the words, and W is shrunk towards the
vectors A (words, width) of the words encoded alone:

    W = argmin sum over contexts c of weight(c) · |x(c) W - e(c)|² + RIDGE · |W - A|²

Contexts are short spans, which are encoded for this, and documents, whose vectors are there already. Documents have a
smaller weight, because a long text says less about each of its words. X (contexts, words) has equal entries for the
words of a context, in rows of length 1. A word without contexts keeps the vector of the word alone; uninformative words
get short vectors.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.core import jsonl
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.vectors.encode import encode_texts
from cai_pyserini.vectors.shards import Vectors, paired

RIDGE = 1.0
DOCUMENTS = 20_000  # documents that are contexts, at most
DOCUMENT_WEIGHT = 0.25
LENGTH = 16  # tokens of a word, without the prompt for documents
CONTEXT_LENGTH = 32  # tokens of a context
PRECISION = 1e-3  # relative, of the solution
STEPS = 100  # maximum, of the solver
COLUMNS = 512  # solved at a time


class Regression(NamedTuple):
    """The inputs of the regression."""

    contexts: csr_matrix  # X
    targets: np.ndarray  # E
    weights: np.ndarray  # (contexts,)
    alone: np.ndarray  # A


def word_vectors(
    words: Vectors, dense: Vectors, lexicon: Mapping[str, str], columns: np.ndarray, encoder: Encoder
) -> np.ndarray:
    """The float32 vectors (lexicon, width) of a lexicon, word -> form, whose words have these `columns` in the counts
    of the words stage; learned from its contexts, and from the documents, with their dense vectors by the encoder."""
    return learn(read_regression(words, dense, lexicon, columns, encoder))


def read_regression(
    words: Vectors, dense: Vectors, lexicon: Mapping[str, str], columns: np.ndarray, encoder: Encoder
) -> Regression:
    """The regression for a lexicon, with the contexts of the words stage, and documents."""
    contexts = [line for _, line in jsonl.read(words.folder / "contexts.jsonl", ["text"])]
    numbers = {word: number for number, word in enumerate(lexicon)}
    rows = [[numbers[word] for word in line["words"] if word in numbers] for line in contexts]
    indices = np.array([number for row in rows for number in row], np.int32)
    entries = np.ones(len(indices), np.float32), indices, np.cumsum([0, *map(len, rows)])
    counts = csr_matrix(entries, shape=(len(contexts), len(lexicon)))
    texts, forms = [line["text"] for line in contexts], [*lexicon.values()]
    return regression(texts, counts, *_documents(words, dense, columns), forms, encoder)


def _documents(words: Vectors, dense: Vectors, columns: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
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
    encoder: Encoder,
) -> Regression:
    """The regression for contexts and documents, with the counts (texts, words) of both, and a form of each word."""
    occurs = vstack([counts, document_counts], format="csr").sign()
    scaled = diags_array(1 / np.sqrt(np.maximum(occurs.getnnz(axis=1), 1)).astype(np.float32)) @ occurs
    targets = np.vstack([_encode(contexts, encoder, CONTEXT_LENGTH, "contexts"), document_vectors])
    weights = np.repeat(np.array([1, DOCUMENT_WEIGHT], np.float32), [len(contexts), len(document_vectors)])
    return Regression(scaled, targets, weights, _encode(forms, encoder, LENGTH, "words"))


def learn(regression: Regression) -> np.ndarray:
    """Solve the regression: W."""
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


def _encode(texts: list[str], encoder: Encoder, length: int, unit: str) -> np.ndarray:
    if prompt := encoder.config.document_prompt:  # word vectors are compared with document vectors
        with_prompt = length + len(encoder.tokenizer.encode([prompt], None, special=False)[0])
        length = max(length, min(with_prompt, encoder.max_length("documents")))
    with progress(iter(texts), len(texts), f"encode {unit}", unit) as bar:
        vectors = encode_texts(encoder, [*texts, ""], length, bar.update)  # at least one text, to know the width
    return np.asarray(vectors[: len(texts)], np.float32)
