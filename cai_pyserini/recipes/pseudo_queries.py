"""Pseudo queries: training pairs of a collection's own documents, without queries and labels.

A query is a part of a document, its title or a sentence of its text, or one that a model has written for it, and the
document is its positive. The document keeps that part: SPLADE matches words, and a training in which it cannot unlearns
that. Hard negatives are drawn from what BM25 and the encoder itself, its documents weighted with IDF, find for the
query. With a dense encoder as teacher, it finds negatives too, and the margin of a negative is that of

    SCALE * sum over systems s of w_s * (score_s - mean_s) / deviation_s

where w is 1 for BM25 and SPLADE and 2 for the teacher; mean and deviation are those of the documents that were found.
"""

import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import diags_array

from cai_pyserini import cli
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import EncoderConfig, IndexConfig, checkpoint_folder, load_index_config
from cai_pyserini.idf import Idf
from cai_pyserini.splade import Splade

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
SHORTEST = 4  # words of a sentence that is a query
DEPTH = 50  # a hard negative is among so many of the best of each system
SAMPLE = 100_000  # documents: more would need much memory and teach little more
TEACHER_WEIGHTS = (1.0, 1.0, 2.0)  # of BM25, the encoder with IDF, and the teacher
SCALE = 3.0  # brings margins to the size of SPLADE's


def pseudo_queries(titles: Sequence[str], texts: Sequence[str], draw: random.Random) -> Iterator[tuple[int, str]]:
    """Document and query: each title, and one sentence of each text."""
    for document, (title, text) in enumerate(zip(titles, texts, strict=True)):
        if title.strip():
            yield document, title
        sentences = [s for s in SENTENCE_END.split(text) if len(s.split()) >= SHORTEST]
        if sentences:
            yield document, draw.choice(sentences)


def write_examples(
    config: IndexConfig,
    encoder: EncoderConfig,
    path: Path,
    queries: int,
    negatives: int,
    draw: random.Random,
    device: str,
    generated: Path | None = None,
    teacher: EncoderConfig | None = None,
) -> int:
    """Write a training file of at most `queries` pseudo queries, or of those in the BEIR folder `generated`, with
    `negatives` each, and the margins of a dense `teacher` where there is one. Returns how many there are."""
    documents, pairs = _generated(generated) if generated else _own(config, draw)
    pairs = draw.sample(pairs, min(queries, len(pairs)))
    texts = [query for _, query in pairs]
    systems = [_bm25(documents, texts), _splade(documents, texts, encoder, device)]
    if teacher:
        systems.append(_dense(documents, texts, teacher, device))
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for (document, query), *scores in zip(
            cli.progress(pairs, len(pairs), "negatives", "query"), *systems, strict=True
        ):
            found = sorted({int(i) for s in scores for i in np.argsort(-s)[:DEPTH] if s[i] > 0} | {document})
            others = [i for i in found if i != document]
            if len(others) < negatives:
                continue
            drawn = draw.sample(others, negatives)
            line = {"query": query, "positive": documents[document], "negatives": [documents[i] for i in drawn]}
            if teacher:
                line["margins"] = _margins(scores, found, document, drawn)
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    if not count:
        raise CaiError(
            f"collection {config.name} gives no training examples: no title, and no sentence of {SHORTEST} words"
        )
    return count


def _own(config: IndexConfig, draw: random.Random) -> tuple[list[str], list[tuple[int, str]]]:
    """Documents, or a sample of them, and pseudo queries."""
    titles, texts, documents = (
        [document.contents for document in open_collection(replace(config, fields=fields)).documents()]
        for fields in (["title"], ["text"], config.fields)
    )
    if len(documents) > SAMPLE:
        kept = draw.sample(range(len(documents)), SAMPLE)
        titles, texts, documents = ([column[i] for i in kept] for column in (titles, texts, documents))
    return documents, list(pseudo_queries(titles, texts, draw))


def _generated(folder: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """Documents, and the queries generated for them."""
    collection = open_collection(load_index_config(str(folder)))
    documents = list(collection.documents())
    rows = {document.id: row for row, document in enumerate(documents)}
    topics, qrels = collection.topics("train"), collection.qrels("train")
    pairs = [(rows[document], topics[query]) for query, judged in qrels.items() for document in judged]
    return [document.contents for document in documents], pairs


def _margins(scores: Sequence[np.ndarray], found: list[int], positive: int, negatives: list[int]) -> list[float]:
    teacher = np.zeros(1 + len(negatives))
    for weight, of_system in zip(TEACHER_WEIGHTS, scores, strict=True):
        part = of_system[found]
        teacher += weight * (of_system[[positive, *negatives]] - part.mean()) / max(float(part.std()), 1e-6)
    return [round(SCALE * float(teacher[0] - other), 4) for other in teacher[1:]]


def _bm25(documents: list[str], queries: list[str]) -> Iterator[np.ndarray]:
    """Scores of all documents, query by query."""
    import bm25s
    import Stemmer

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    words = partial(
        bm25s.tokenize, stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False
    )
    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index(words(documents), show_progress=False)
    for query in words(queries):
        yield index.get_scores(query) if query else np.zeros(len(documents), np.float32)


def _splade(documents: list[str], queries: list[str], encoder: EncoderConfig, device: str) -> Iterator[np.ndarray]:
    """Scores of all documents, weighted with the IDF of their own, query by query."""
    splade = Splade(checkpoint_folder(encoder), device)
    idf = Idf.of(documents, splade.tokenizer).weights(encoder.idf_power)
    with cli.progress(documents, len(documents), "encode documents") as bar:
        vectors = splade.encode(documents, encoder.max_document_length, done=bar.update)
    weighted = (vectors @ diags_array(idf)).T.tocsr()
    for query in splade.encode(queries, encoder.max_query_length):
        yield (query.reshape(1, -1) @ weighted).toarray()[0]


def _dense(documents: list[str], queries: list[str], encoder: EncoderConfig, device: str) -> Iterator[np.ndarray]:
    """Cosines of all documents, query by query."""
    from cai_pyserini.dense import Dense

    dense = Dense(checkpoint_folder(encoder), device)
    with cli.progress(documents, len(documents), "encode documents") as bar:
        vectors = dense.encode(documents, encoder.max_document_length, done=bar.update).toarray()
    for query in dense.encode(queries, encoder.max_query_length).toarray():
        yield vectors @ query
