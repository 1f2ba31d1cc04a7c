"""Dense vectors of words, learned from the vectors of text spans that contain them.

Dense encoders are not trained on single words. So the word vectors W (words, width) are fitted by ridge regression:
their sums approximate the vectors E (contexts, width) of spans that contain the words, and W is shrunk towards the
vectors A (words, width) of the words encoded alone:

    W = argmin |X W - E|² + RIDGE · |W - A|²

X (contexts, words) has equal entries for the words of a context, in rows of length 1. A word without contexts keeps the
vector of the word alone; uninformative words get short vectors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, diags_array
from scipy.sparse.linalg import LinearOperator, cg

from cai_pyserini.core import jsonl
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.vectors.encode import encode_texts

RIDGE = 1.0
LENGTH = 16  # tokens of a word, without the prompt for documents
CONTEXT_LENGTH = 32  # tokens of a context
PRECISION = 1e-3  # relative, of the solution
STEPS = 100  # maximum, of the solver
COLUMNS = 512  # solved at a time


class Regression(NamedTuple):
    """The inputs of the regression."""

    contexts: csr_matrix  # X
    targets: np.ndarray  # E
    alone: np.ndarray  # A


def word_vectors(folder: Path, lexicon: Mapping[str, str], encoder: Encoder) -> np.ndarray:
    """The float32 vectors (lexicon, width) of a lexicon, word -> form, from the contexts in a folder of the words
    stage."""
    return learn(*read_regression(folder, lexicon, encoder))


def read_regression(folder: Path, lexicon: Mapping[str, str], encoder: Encoder) -> Regression:
    """The regression for a lexicon, with the contexts in a folder of the words stage."""
    contexts = [line for _, line in jsonl.read(folder / "contexts.jsonl", ["text"])]
    columns = {word: column for column, word in enumerate(lexicon)}
    rows = [[columns[word] for word in line["words"] if word in columns] for line in contexts]
    indices = np.array([column for row in rows for column in row], np.int32)
    entries = np.ones(len(indices), np.float32), indices, np.cumsum([0, *map(len, rows)])
    counts = csr_matrix(entries, shape=(len(contexts), len(lexicon)))
    return regression([line["text"] for line in contexts], counts, [*lexicon.values()], encoder)


def regression(contexts: list[str], counts: csr_matrix, forms: list[str], encoder: Encoder) -> Regression:
    """The regression for contexts, their word counts (contexts, words), and a form of each word."""
    occurs = counts.sign()
    scaled = diags_array(1 / np.sqrt(np.maximum(occurs.getnnz(axis=1), 1)).astype(np.float32)) @ occurs
    alone = _encode(forms, encoder, LENGTH, "words")
    return Regression(scaled, _encode(contexts, encoder, CONTEXT_LENGTH, "contexts"), alone)


def learn(contexts: csr_matrix, targets: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """Solve the regression: W for X, E and A."""
    learned = np.empty_like(alone)
    for start in range(0, alone.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        learned[:, part] = _learn(contexts, targets[:, part], alone[:, part])
    return learned


def _learn(contexts: csr_matrix, targets: np.ndarray, alone: np.ndarray) -> np.ndarray:
    def normal_equations(flat: np.ndarray) -> np.ndarray:
        change = flat.reshape(alone.shape)
        return (contexts.T @ (contexts @ change) + RIDGE * change).ravel()

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
