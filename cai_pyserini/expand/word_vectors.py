"""Dense vectors of words, learned from how an encoder encodes spans of the collection.

Alone, a word is hardly what a dense encoder was trained to read. So the vectors W (words, width) are those whose sums
come near the vectors E (contexts, width) of spans that have the words, by ridge regression towards the vectors A of
words alone:

    W = argmin |X W - E|² + RIDGE · |W - A|²

X (contexts, words) has equal entries for the words of a context, in rows of length 1. A word without contexts keeps its
vector alone; words that say little get short vectors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, diags_array
from scipy.sparse.linalg import LinearOperator, cg

from cai_pyserini.core import jsonl
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encode import encode_texts
from cai_pyserini.encode.encoder import Encoder

RIDGE = 1.0
LENGTH = 16  # word pieces read of a word, after the prompt for documents
CONTEXT_LENGTH = 32  # and of a context
PRECISION = 1e-3  # of the solution, relative
STEPS = 100  # of the solver, at most
COLUMNS = 512  # solved at a time


class Regression(NamedTuple):
    """X, E and A of the formula."""

    contexts: csr_matrix
    targets: np.ndarray
    alone: np.ndarray


def word_vectors(folder: Path, lexicon: Mapping[str, str], encoder: Encoder) -> np.ndarray:
    """The vectors (lexicon, width), float32, of a lexicon, word -> form, with the contexts in a folder of the words
    stage."""
    return learn(*read_regression(folder, lexicon, encoder))


def read_regression(folder: Path, lexicon: Mapping[str, str], encoder: Encoder) -> Regression:
    """What the vectors of a lexicon are learned from, with the contexts in a folder of the words stage."""
    contexts = [line for _, line in jsonl.read(folder / "contexts.jsonl", ["text"])]
    places = {word: place for place, word in enumerate(lexicon)}
    found = [[places[word] for word in line["words"] if word in places] for line in contexts]
    indices = np.array([place for words in found for place in words], np.int32)
    entries = np.ones(len(indices), np.float32), indices, np.cumsum([0, *map(len, found)])
    counts = csr_matrix(entries, shape=(len(contexts), len(lexicon)))
    return regression([line["text"] for line in contexts], counts, [*lexicon.values()], encoder)


def regression(contexts: list[str], counts: csr_matrix, forms: list[str], encoder: Encoder) -> Regression:
    """What vectors of words are learned from: contexts, their counts of words (contexts, words), and a form of each
    word."""
    has = counts.sign()
    scaled = diags_array(1 / np.sqrt(np.maximum(has.getnnz(axis=1), 1)).astype(np.float32)) @ has
    alone = _encode(forms, encoder, LENGTH, "encode words")
    return Regression(scaled, _encode(contexts, encoder, CONTEXT_LENGTH, "encode contexts"), alone)


def learn(contexts: csr_matrix, targets: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """The formula's W for X, E and A."""
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
    wanted = contexts.T @ (targets - contexts @ alone)
    change, _ = cg(operator, wanted.ravel(), rtol=PRECISION, maxiter=STEPS)
    return alone + change.reshape(alone.shape)


def _encode(texts: list[str], encoder: Encoder, length: int, task: str) -> np.ndarray:
    if prompt := encoder.config.document_prompt:  # of documents, with whose vectors those of words are compared
        with_prompt = length + len(encoder.tokenizer.encode([prompt], None, special=False)[0])
        length = max(length, min(with_prompt, encoder.max_length("documents")))
    with progress(iter(texts), len(texts), task) as bar:
        vectors = encode_texts(encoder, [*texts, ""], length, bar.update)
    return np.asarray(vectors[: len(texts)], np.float32)  # at least one text is encoded, so that there is a width
