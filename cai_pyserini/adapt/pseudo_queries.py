"""Pseudo queries: training pairs of a collection's own documents, without queries and labels.

A query is a part of a document, its title or a sentence of its text, as in the Inverse Cloze Task (Lee et al. 2019), or
one that a model has written for it, and the document is its positive. The document keeps that part: SPLADE matches
words, and a training in which it cannot unlearns that. Hard negatives are drawn from what BM25 and the encoder itself,
its documents weighted with IDF, find for the query. A dense encoder as teacher finds negatives too, and the margins
come from the scores

    SCALE * sum over systems s of w_s * (score_s - mean_s) / deviation_s

where w is 1 for BM25 and SPLADE and 2 for the teacher; mean and deviation are those of the documents that were found.
"""

import logging
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from scipy.sparse import diags_array

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import EncoderConfig, IndexConfig, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.idf.idf import Idf
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.splade import Splade
from cai_pyserini.trainer import generate
from cai_pyserini.trainer.settings import inherited

STAGE = "adapt: pseudo queries"
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
SHORTEST = 4  # words of a sentence that is a query
DEPTH = 50  # a hard negative is among this many best documents of one of the systems
SAMPLE = 100_000  # documents: more would need much memory and teach little more
NEGATIVES = 4  # per pseudo query; each makes an example of its own
TEACHER_WEIGHTS = (1.0, 1.0, 2.0)  # of BM25, the encoder with IDF, and the teacher
SCALE = 3.0  # brings margins to the size of SPLADE's

Pair = tuple[int, str]  # row of a document, and a query for it


@dataclass(frozen=True)
class PseudoQueries:
    """What a training file of pseudo queries is made from."""

    collection: IndexConfig
    encoder: EncoderConfig  # SPLADE
    output: Path
    queries: int  # at most
    seed: int
    device: str = "auto"
    generated: Path | None = None  # BEIR folder of generated queries, used instead of parts of documents
    teacher: EncoderConfig | None = None  # dense; without one, examples have no margins

    def recipe(self) -> artifact.Recipe:
        """What the training file depends on."""
        encoders = {"encoder": self.encoder} | ({"teacher": self.teacher} if self.teacher else {})
        return {
            "stage": STAGE,
            "documents": open_collection(self.collection).fingerprint("documents"),
            "checkpoints": {name: checkpoint_digest(checkpoint_folder(config)) for name, config in encoders.items()},
            "encoders": {name: inherited(config) for name, config in encoders.items()},
            "generated": self.generated and artifact.require(self.generated, generate.STAGE).digest,
            "settings": {"queries": self.queries, "negatives": NEGATIVES, "seed": self.seed},
        }

    def write(self) -> Path:
        """Write the training file. Raises CaiError for a collection that makes no example."""

        def write(path: Path) -> artifact.Stats:
            count = jsonl.write(path, self._examples())
            if not count:
                raise CaiError(
                    f"collection {self.collection.name} makes no training examples: it has no title, and no sentence "
                    f"of {SHORTEST} words"
                )
            return {"examples": count}

        return artifact.make(self.output, self.recipe(), write, folder=False)

    def _examples(self) -> Iterator[dict[str, Any]]:
        draw = random.Random(self.seed)
        documents, pairs = self._generated(self.generated) if self.generated else self._own(draw)
        pairs = draw.sample(pairs, min(self.queries, len(pairs)))
        queries = [query for _, query in pairs]
        systems = [_bm25(documents, queries), _splade(documents, queries, self.encoder, self.device)]
        if self.teacher:
            systems.append(_dense(documents, queries, self.teacher, self.device))
        bar = progress(pairs, len(pairs), "negatives", "query")
        for (document, query), *scores in zip(bar, *systems, strict=True):
            found = sorted({int(i) for s in scores for i in np.argsort(-s)[:DEPTH] if s[i] > 0} | {document})
            others = [i for i in found if i != document]
            if len(others) < NEGATIVES:
                continue
            negatives = draw.sample(others, NEGATIVES)
            example: dict[str, Any] = {
                "query": query,
                "positive": documents[document],
                "negatives": [documents[i] for i in negatives],
            }
            if self.teacher:
                example["margins"] = margins(scores, found, document, negatives)
            yield example

    def _own(self, draw: random.Random) -> tuple[list[str], list[Pair]]:
        """Documents, or a sample of them, and their pseudo queries."""
        collection = open_collection(self.collection)
        records = list(collection.records())
        if len(records) > SAMPLE:
            records = [records[i] for i in draw.sample(range(len(records)), SAMPLE)]
        titles, texts = [record.title for record in records], [record.text for record in records]
        documents = [collection.contents_of(record) for record in records]
        return documents, list(pseudo_queries(titles, texts, draw))

    @staticmethod
    def _generated(folder: Path) -> tuple[list[str], list[Pair]]:
        """Documents, and the queries generated for them."""
        collection = open_collection(load_index_config(str(folder)))
        documents = list(collection.documents())
        rows = {document.id: row for row, document in enumerate(documents)}
        topics, qrels = collection.topics("train"), collection.qrels("train")
        pairs = [(rows[document], topics[query]) for query, judged in qrels.items() for document in judged]
        return [document.contents for document in documents], pairs


def pseudo_queries(titles: Sequence[str], texts: Sequence[str], draw: random.Random) -> Iterator[Pair]:
    """The title of each document, and one sentence of its text."""
    for document, (title, text) in enumerate(zip(titles, texts, strict=True)):
        if title.strip():
            yield document, title
        sentences = [s for s in SENTENCE_END.split(text) if len(s.split()) >= SHORTEST]
        if sentences:
            yield document, draw.choice(sentences)


def margins(scores: Sequence[np.ndarray], found: list[int], positive: int, negatives: list[int]) -> list[float]:
    """The margins of the negatives by the scores (documents,) of BM25, the encoder and the teacher for a query."""
    combined = np.zeros(1 + len(negatives))
    for weight, of_system in zip(TEACHER_WEIGHTS, scores, strict=True):
        of_found = of_system[found]
        standardized = (of_system[[positive, *negatives]] - of_found.mean()) / max(float(of_found.std()), 1e-6)
        combined += weight * standardized
    return [round(SCALE * float(combined[0] - other), 4) for other in combined[1:]]


def _bm25(documents: list[str], queries: list[str]) -> Iterator[np.ndarray]:
    """BM25 scores of all documents for each query."""
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    words = partial(
        bm25s.tokenize, stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False
    )
    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index(words(documents), show_progress=False)
    for query in words(queries):
        yield index.get_scores(query) if query else np.zeros(len(documents), np.float32)


def _splade(documents: list[str], queries: list[str], encoder: EncoderConfig, device: str) -> Iterator[np.ndarray]:
    """Scores of all documents, weighted with their IDF, for each query."""
    splade = Splade(checkpoint_folder(encoder), device)
    idf = Idf.of(documents, splade.tokenizer).weights(encoder.idf_power)
    with progress(documents, len(documents), "encode documents") as bar:
        vectors = splade.encode(documents, encoder.max_document_length, done=bar.update)
    weighted = (vectors @ diags_array(idf)).T.tocsr()
    for query in splade.encode(queries, encoder.max_query_length):
        yield (query.reshape(1, -1) @ weighted).toarray()[0]


def _dense(documents: list[str], queries: list[str], encoder: EncoderConfig, device: str) -> Iterator[np.ndarray]:
    """Cosines of all documents for each query."""
    dense = Dense(checkpoint_folder(encoder), device)
    with progress(documents, len(documents), "encode documents") as bar:
        vectors = dense.encode(documents, encoder.max_document_length, done=bar.update)
    for query in dense.encode(queries, encoder.max_query_length):
        yield vectors @ query
