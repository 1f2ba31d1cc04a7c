"""Shards of impacts, made from shards of raw vectors. This imports no model, so that processes start fast."""

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, hstack

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.impact.bm25 import Bm25
from cai_pyserini.impact.quantization import Quantizer, prune, weighted
from cai_pyserini.vectors.shards import Shard, Vectors

if TYPE_CHECKING:  # loads torch
    from cai_pyserini.encode.queries import Queries


class Written(NamedTuple):
    """A shard that has been written."""

    number: int
    documents: int
    nonzeros: int
    loss: np.ndarray  # Quantizer.loss


class Terms(Sequence[str]):
    """The columns of impacts: the tokens of a vocabulary, and then words, which can be millions, after `prefix`."""

    def __init__(self, tokens: Sequence[str], words: Sequence[str], prefix: str):
        self._tokens, self._words, self._prefix = tokens, words, prefix

    def __len__(self) -> int:
        return len(self._tokens) + len(self._words)

    def __getitem__(self, column: Any) -> Any:
        word = range(len(self))[column] - len(self._tokens)
        return self._tokens[column] if word < 0 else self._prefix + self._words[word]

    def __iter__(self) -> Iterator[str]:
        yield from self._tokens
        yield from (self._prefix + word for word in self._words)


@dataclass(frozen=True)
class Impacts:
    """The impacts of a collection, as `config`, an encoder.yaml of the impact stage, says; with `bm25`, joint ones.

    Iterating yields int32 impacts (documents, columns), shard by shard; the columns are `terms`: the tokens of the
    vocabulary, and then the words. `weights` are the IDF of the tokens.
    """

    vectors: Vectors
    config: EncoderConfig
    terms: Terms
    weights: np.ndarray | None
    bm25: Bm25 | None = None

    @property
    def quantizer(self) -> Quantizer:
        """The quantizer of SPLADE's weights."""
        return Quantizer.of(self.config.bits, self.config.range or 1.0)

    def __iter__(self) -> Iterator[Shard]:
        return (self.shard(number)[0] for number in range(self.vectors.shards))

    def shard(self, number: int) -> tuple[Shard, np.ndarray]:
        """A shard of impacts, and Quantizer.loss of its SPLADE weights."""
        shard = self.vectors.shard(number)
        weights = weighted(shard.vectors, self.weights)
        impacts = self.quantizer.impacts(weights, shard.ids)
        loss = self.quantizer.loss(weights, impacts)
        impacts = prune(impacts, self.config)
        if self.bm25 and (joint := self.config.joint):
            words = self.bm25.shard(number)
            if words.ids != shard.ids:
                raise other_documents(self.vectors, self.bm25)
            of_words = Quantizer.of(joint.bits, joint.range).impacts(words.vectors, words.ids)
            impacts = hstack([impacts, of_words], format="csr")
        return Shard(shard.ids, impacts), loss

    def queries(self, queries: "Queries") -> csr_matrix:
        """Query weights (queries, columns), in the order of the topics."""
        encoded: dict[str, Any] = queries.for_search(self.config.query_scale)[0]
        return term_matrix(encoded.values(), self.terms)

    def write(self, folder: Path, numbers: Sequence[int]) -> Generator[Written]:
        """Write shards as JSON vectors."""
        for number in numbers:
            shard, loss = self.shard(number)
            with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json_vectors(shard.ids, shard.vectors, self.terms))
            yield Written(number, len(shard.ids), int(np.count_nonzero(shard.vectors.data)), loss)


def term_matrix(texts: Collection[Mapping[str, int]], terms: Sequence[str]) -> csr_matrix:
    """Weights of terms, as float32 (texts, terms); terms that are not in `terms` are left out."""
    used = {term for text in texts for term in text}
    columns = {term: column for column, term in enumerate(terms) if term in used}
    entries = [(row, columns[t], n) for row, text in enumerate(texts) for t, n in text.items() if t in columns]
    rows, indices, weights = np.array(entries, np.int64).reshape(-1, 3).T
    return csr_matrix((weights.astype(np.float32), (rows, indices)), shape=(len(texts), len(terms)))


def other_documents(vectors: Vectors, bm25: Bm25) -> CaiError:
    """The error for words of other documents than the vectors."""
    return CaiError(f"{vectors.folder} and {bm25.folder} have different documents: count the words again")


def json_vectors(ids: Sequence[str], impacts: csr_matrix, terms: Sequence[str]) -> list[str]:
    """One JSON line per row, with its newline; terms are in vocabulary order."""
    names = {column: json.dumps(terms[column], ensure_ascii=False) for column in np.unique(impacts.indices).tolist()}
    lines = []
    for row, id in enumerate(ids):
        entries = slice(impacts.indptr[row], impacts.indptr[row + 1])
        pairs = zip(impacts.indices[entries].tolist(), impacts.data[entries].tolist(), strict=True)
        vector = ", ".join([f"{names[column]}: {value}" for column, value in pairs])
        lines.append(f'{{"id": {json.dumps(id)}, "contents": "", "vector": {{{vector}}}}}\n')
    return lines
