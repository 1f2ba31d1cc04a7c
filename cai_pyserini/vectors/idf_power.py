"""Choose the power of IDF that documents are weighted with, from the documents alone.

A token that most documents have does not separate them, but its weights vary, and move documents up and down. The noise
of these tokens is their share of the variance of scores, which IDF reduces:

    noise = mean over queries of Cov(s_common, s) / Var(s)

over the best 100 documents by the score s of unweighted documents. s_common is the part of s from common tokens, which
more than a tenth of the documents have. Queries are the spans that alpha is estimated with (see vectors.weighting). The
power is 1 if the noise is 0.2 or more, otherwise 0.5; also for documents that are longer on average than what is read
of them, in which tokens are common because texts are long. For an encoder of documents alone, it depends on the
queries: 1 for bags of word pieces, in which no word counts more than another, and 0 if word pieces have weights of
their own. See docs/experiments/idf.md.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact, files
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf, idf_digest
from cai_pyserini.models.rows import with_data
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Vectors, require_same_documents, shard_progress

COMMON = 0.1  # share of the documents that have a common token
NOISY = 0.2
BEST = 100  # documents per query


class Choice(NamedTuple):
    """A power of IDF, and the reason as a clause."""

    power: float
    reason: str


def choose_power(vectors: Vectors, idf: Path, words: Path, encoder: EncoderModel, output: Path) -> Path:
    """Write {"idf_power": …}, chosen from the raw vectors of a SPLADE encoder, their IDF, and spans of the documents,
    which the words stage has drawn.

    Raises CaiError for vectors of another encoder, an IDF of another vocabulary, and words of other documents.
    """
    vectors.require("splade", "the tokens of dense vectors are weighted before")
    encoder.require_identity(vectors.encoder, vectors.folder)
    bm25 = Bm25(words)
    require_same_documents(vectors, bm25.counts)
    inputs = {"vectors": vectors.manifest.digest, "idf": idf_digest(idf), "words": bm25.counts.manifest.digest}
    recipe = artifact.recipe("idf power", inputs, query=encoder.config.query, queries=encoder.query_only_identity)

    def write(path: Path) -> artifact.Stats:
        counted, found = Idf.load(idf, encoder.tokenizer.vocabulary), None
        if encoder.config.query == "bow":
            chosen = for_bags(encoder.token_weights is not None)
        else:
            texts = [text for text, _ in bm25.spans]
            queries = encode_queries(encoder, texts) if texts else csr_matrix((0, len(counted.frequencies)))
            parts = (shard.vectors for shard in shard_progress(vectors, len(vectors), "noise of common tokens"))
            found = noise(queries, parts, counted.frequencies > COMMON * counted.documents)
            chosen = for_noise(found, bm25.weighting.average > encoder.max_length("documents"))
        files.write_text(path, files.json_text({"idf_power": chosen.power}))
        weighting = {0.0: "no IDF", 1.0: "idf"}.get(chosen.power, f"idf ** {chosen.power:g}")
        return {"idf_power": chosen.power, "noise": found, "decision": f"{weighting}, because {chosen.reason}"}

    return artifact.make(output, recipe, write, folder=False)


def for_bags(weighted: bool) -> Choice:
    """The power for queries that are bags of word pieces, with weights of their own if `weighted`."""
    if weighted:
        return Choice(0.0, "word pieces of queries have weights of their own")
    return Choice(1.0, "queries are bags of word pieces, which have no other weights")


def for_noise(noise: float | None, is_cut: bool = False) -> Choice:
    """The power for a noise of common tokens; None: unknown. With `is_cut`, documents are longer than what is read."""
    if is_cut:
        return Choice(0.5, "the encoder does not read most of the text of the documents, whose tokens are counted")
    if noise is None:
        return Choice(0.5, "the documents are too few or too short to measure how much their common tokens matter")
    tokens = f"tokens in more than {COMMON:.0%} of the documents cause {noise:.1%} of the variance of the best scores"
    if noise < NOISY:
        return Choice(0.5, f"{tokens}, less than {NOISY:.0%}")
    return Choice(1.0, f"{tokens}, {NOISY:.0%} or more")


def noise(queries: csr_matrix, documents: Iterable[csr_matrix], common: np.ndarray) -> float | None:
    """The mean share of `common` tokens (vocabulary,) in the variance of the best scores of queries (queries,
    vocabulary) for documents, in parts (documents, vocabulary); None if no query has scores that vary."""
    parts = [queries, with_data(queries, queries.data * common[queries.indices])]
    best = np.zeros((2, queries.shape[0], 0))  # scores, and their part from common tokens
    for part in documents:
        best = np.concatenate([best, [(each @ part.T).toarray() for each in parts]], axis=2)
        if best.shape[2] > BEST:
            best = np.take_along_axis(best, np.argpartition(-best[:1], BEST - 1, axis=2)[:, :, :BEST], axis=2)
    if not best.shape[2]:
        return None
    scores, of_common = best - best.mean(2, keepdims=True)
    variance = (scores**2).mean(1)
    varies = variance > 0
    shares = (scores * of_common).mean(1)[varies] / variance[varies]
    return round(float(shares.mean()), 4) if len(shares) else None
