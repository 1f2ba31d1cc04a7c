"""The data of an adaptation: documents and their vectors, pseudo queries, the mixture of systems that filters them, and
the training file that is made from all of these.

Documents are encoded once, by the encode stage. A large collection is represented by a sample, whose vectors come from
the whole collection's if these exist.
"""

import random
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Collection, Record
from cai_pyserini.collections.copies import Copies
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.collections.spans import Reservoir
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import ENGLISH, EncoderConfig, IndexConfig, document_of, unless_english
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.device import Precision
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.rows import stacked
from cai_pyserini.runs.fusions import DEPTH
from cai_pyserini.trainer.mixture import LANGUAGES, MIN_DEVIATION, WEIGHTS, Bm25, Mixture, VectorSystem
from cai_pyserini.trainer.pseudo_queries import KINDS, PseudoQuery, passage, pseudo_queries, questions, remainder
from cai_pyserini.vectors.encode import encode, recipe
from cai_pyserini.vectors.quantization import weighted
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Matrix, Vectors

SAMPLE = 100_000  # documents; more would need much memory and improve little
HELD_OUT = 600  # documents whose queries are held out of the training, at most
SPREAD_QUERIES = 300  # pseudo queries that the spread of scores is measured with
NEGATIVES = 4  # negatives per pseudo query
NEGATIVES_DEPTH = 50  # negatives are drawn from this many best documents of each system
TEACHER = {"bm25": 0.5, "splade": 1.0, "dense": 2.0}
FOUND_DEPTH = 10  # a pseudo query is kept if its source is among this many best documents of the mixture


@dataclass(frozen=True)
class AdaptationData:
    """The inputs of an adaptation, and what is derived from them, when it is first needed."""

    collection: IndexConfig
    splade: EncoderConfig
    dense: EncoderConfig | None
    folder: Path  # of the sample and the vectors
    queries: int  # at most, for training
    seed: int
    device: str
    precision: Precision = "auto"  # of the document encoders
    planned: Container[Path] = ()  # folders of vectors that earlier steps write
    alpha: float | None = None  # weight of BM25 in joint systems; None: estimated
    weights: Sequence[float] = ()  # of BM25, SPLADE and dense in their fusion; empty: chosen
    depth: int = DEPTH  # documents per query that the fusion takes from each run
    held_out_share: float = 0.2  # of the documents, at most
    held_out_kinds: Sequence[str] = KINDS  # of pseudo queries

    @cached_property
    def full_collection(self) -> Collection:
        return open_collection(self.collection)

    @cached_property
    def documents(self) -> Collection:
        """The collection, or a BEIR folder with a sample of it."""
        collection = self.full_collection
        made_from = artifact.recipe("adapt: sample", {"documents": collection.fingerprint("documents")}, seed=self.seed)

        def write(folder: Path) -> artifact.Stats:
            sample: Reservoir[Record] = Reservoir(SAMPLE, random.Random(self.seed))
            for record in collection.records():
                sample.add(record)
            lines = ({"_id": record.id, "title": record.title, "text": record.text} for record in sample.items)
            return {"documents": jsonl.write(folder / "corpus.jsonl", lines), "of": sample.seen}

        if self._is_small:
            return collection
        folder = artifact.make(self.folder / "sample", made_from, write)
        return BeirFolder(folder, collection.name, collection.fields)

    @cached_property
    def _is_small(self) -> bool:
        return self.full_collection.size is not None and self.full_collection.size <= SAMPLE

    @cached_property
    def encoders(self) -> list[EncoderModel]:
        """The SPLADE encoder, and the dense one if there is one."""
        return [EncoderModel(config, self.device, self.precision) for config in (self.splade, self.dense) if config]

    @property
    def identity(self) -> dict[str, Any]:
        """For recipes: what the pseudo queries and the mixture depend on, besides the seed."""
        collection = self.collection
        return {
            "documents": self.full_collection.fingerprint("documents"),
            "encoders": [[encoder.identity("documents"), encoder.identity("queries")] for encoder in self.encoders],
            "idf_power": self.splade.idf_power,
            "bm25": [*collection.bm25],
            "language": unless_english(collection.language),
        }

    @property
    def simulation_identity(self) -> dict[str, Any]:
        """For recipes: what the simulated retrieval depends on, besides the settings of the fusion."""
        impacts = self.encoders[0].config.shaping("impacts", "queries")
        return self.identity | {"impacts": impacts, "hits": self.collection.hits}

    def vectors(self, encoder: EncoderModel) -> Path:
        """The folder of an encoder's vectors, named as in a run folder: of the whole collection if that is small, or is
        encoded by now or by an earlier step; otherwise of the sample."""
        name = "documents" if encoder.config.is_sparse else "dense-documents"
        full, collection = self.folder / name, self.full_collection
        if self._is_small or full in self.planned or artifact.is_up_to_date(full, recipe(collection, encoder)):
            return full
        return self.folder / f"sample-{name}"

    def encode_documents(self, encoder: EncoderModel) -> Path:
        folder = self.vectors(encoder)
        return encode(self.documents if folder.name.startswith("sample-") else self.full_collection, encoder, folder)

    @cached_property
    def _records(self) -> list[Record]:
        return list(self.documents.records())

    @cached_property
    def contents(self) -> list[str]:
        return [self.documents.contents_of(record) for record in self._records]

    @cached_property
    def origins(self) -> np.ndarray:
        """The number of the original document of each document, which may be a passage: (documents,)."""
        in_passages = bool(self.collection.passages)
        ids = [document_of(record.id) if in_passages else record.id for record in self._records]
        return np.unique(np.array(ids), return_inverse=True)[1]

    @cached_property
    def _passages(self) -> list[np.ndarray]:
        """The numbers of the passages of each original document."""
        return np.split(np.argsort(self.origins, kind="stable"), np.cumsum(np.bincount(self.origins))[:-1])

    @cached_property
    def _copies(self) -> Copies:
        return Copies(self.contents)

    def equivalents(self, number: int) -> np.ndarray:
        """The numbers, in order, of the documents that answer the same queries as a document: its copies, and all
        passages of the original documents of it and its copies."""
        origins = np.unique(self.origins[self._copies.of(number)])
        return np.sort(np.concatenate([self._passages[origin] for origin in origins]))

    @cached_property
    def _drawn_queries(self) -> tuple[list[PseudoQuery], int]:
        """Draw pseudo queries in random order; returns them, and how many, the first ones, are held out.

        In collections of passages, the queries of one passage per document are held out, and no passage of this
        document, nor a copy of one, is used for training. Only LANGUAGES have queries, and only English has questions.
        """
        draw, language = random.Random(self.seed), self.collection.language
        if language not in LANGUAGES:
            return [], 0
        queries = list(pseudo_queries([record.title for record in self._records], self.contents, draw))
        draw.shuffle(queries)
        first: dict[int, int] = {}  # original document -> the first of its passages
        for number in dict.fromkeys(query.document for query in queries):
            first.setdefault(int(self.origins[number]), number)
        origins = list(first)[: min(HELD_OUT, int(self.held_out_share * len(first)))]
        held_out_documents = dict.fromkeys(first[origin] for origin in origins)
        passages = (number for origin in origins for number in self._passages[origin])
        not_trained = {int(other) for number in passages for other in self._copies.of(number)}
        held_out = [query for query in queries if query.document in held_out_documents]
        if language == ENGLISH:
            held_out += questions(held_out_documents, self.contents, draw)
        held_out = [query for query in held_out if query.kind in self.held_out_kinds]
        train = [query for query in queries if query.document not in not_trained]
        return held_out + train[: self.queries], len(held_out)

    @property
    def pseudo_queries(self) -> list[PseudoQuery]:
        """The held-out pseudo queries, followed by those for training."""
        return self._drawn_queries[0]

    @cached_property
    def sources(self) -> np.ndarray:
        """The number of each pseudo query's source, (queries,)."""
        return np.array([query.document for query in self.pseudo_queries])

    @cached_property
    def raw(self) -> list[Matrix]:
        """Each encoder's vectors of all documents, SPLADE's without IDF."""
        numbers = {record.id: number for number, record in enumerate(self._records)}
        matrices: list[Matrix] = []
        for encoder in self.encoders:
            order, parts = [], []
            for shard in Vectors(self.encode_documents(encoder)):
                rows = [row for row, id in enumerate(shard.ids) if id in numbers]
                order += [numbers[shard.ids[row]] for row in rows]
                parts.append(shard.vectors[rows])
            matrices.append(stacked(parts)[np.argsort(order)])
        return matrices

    @cached_property
    def idf(self) -> np.ndarray:
        """The IDF of the SPLADE encoder's tokens, (vocabulary,)."""
        return Idf.count(self.contents, self.encoders[0].tokenizer).weights(self.splade.idf_power)

    @cached_property
    def vector_systems(self) -> list[VectorSystem]:
        """Each encoder's vectors of pseudo queries and documents, SPLADE's documents weighted with IDF."""
        splade, *dense = self.raw
        texts = [query.text for query in self.pseudo_queries]
        queries = (encode_queries(encoder, texts) for encoder in self.encoders)
        documents = [weighted(splade, self.idf), *dense]
        return [VectorSystem(*each) for each in zip(queries, documents, strict=True)]

    @cached_property
    def mixture(self) -> Mixture:
        """BM25, SPLADE with IDF, and dense retrieval, if there is a dense encoder, for all pseudo queries."""
        if not self.pseudo_queries:
            raise self.too_small()
        bm25 = Bm25(self.contents, self.collection)
        queries = bm25.queries([query.text for query in self.pseudo_queries])
        systems = [VectorSystem(queries, bm25.documents), *self.vector_systems]
        return Mixture(systems, [1.0, 1.0] if len(systems) == 2 else list(WEIGHTS.values()))

    @cached_property
    def spread(self) -> float:
        """The mean standard deviation of SPLADE's best scores without IDF."""
        queries = self.vector_systems[0].queries[:SPREAD_QUERIES]
        return float(Mixture([VectorSystem(queries, self.raw[0])], [1.0]).spread[0])

    @cached_property
    def _is_found(self) -> np.ndarray:
        """Whether the mixture retrieves each pseudo query's source, (queries,)."""
        return (self.mixture.best[-1, :, :FOUND_DEPTH] == self.sources[:, None]).any(1)

    @property
    def held_out(self) -> np.ndarray:
        """The numbers of the held-out pseudo queries; empty if there are none."""
        _, count = self._drawn_queries
        return np.flatnonzero(self._is_found[:count]) if count else np.zeros(0, np.int64)

    @property
    def train(self) -> np.ndarray:
        """The numbers of the pseudo queries for training."""
        _, held_out = self._drawn_queries
        numbers = held_out + np.flatnonzero(self._is_found[held_out:])
        if not len(numbers):
            raise self.too_small()
        return numbers

    def remainders(self, numbers: np.ndarray, whole: bool = True) -> list[str]:
        """The sources of these pseudo queries, or with `whole` false their best passages, without the query's words."""
        queries = (self.pseudo_queries[number] for number in numbers)
        pairs = ((self.contents[query.document], query.text) for query in queries)
        return [remainder(text if whole else passage(text, query), query) for text, query in pairs]

    def encode(self, encoder: EncoderModel, texts: Sequence[str]) -> Matrix:
        """Encode texts as documents: (texts, dimensions)."""
        with progress(iter(texts), len(texts), "encode", "texts") as bar:
            return encoder.load("documents").encode(texts, encoder.max_length("documents"), done=bar.update)

    def too_small(self) -> CaiError:
        name = self.collection.name
        return CaiError(f"collection {name} yields no training examples: its documents are too few or too short")


def examples_recipe(data: AdaptationData) -> artifact.Recipe:
    return artifact.recipe("adapt: pseudo queries", data.identity, queries=data.queries, seed=data.seed)


def write_examples(data: AdaptationData, output: Path) -> Path:
    """Write the training file of pseudo queries. Raises CaiError for a collection that yields no example.

    A query's positive is its source. Negatives are drawn from the best documents of every system of the mixture,
    without passages of the same document and copies, which are not in-batch negatives either. With a dense encoder,
    margins come from a mixture with less BM25, on the scale of SPLADE's scores without IDF.
    """

    def write(path: Path) -> artifact.Stats:
        count = jsonl.write(path, _examples(data))
        if not count:
            raise data.too_small()
        return {"examples": count}

    return artifact.make(output, examples_recipe(data), write, folder=False)


def _examples(data: AdaptationData) -> Iterator[dict[str, Any]]:
    mixture, contents, draw = data.mixture, data.contents, np.random.default_rng(data.seed)
    scale = data.spread if data.dense else None
    for number in progress(data.train, len(data.train), "negatives", "queries"):
        query = data.pseudo_queries[number]
        equivalents = data.equivalents(query.document)
        candidates = np.setdiff1d(mixture.best[:-1, number, :NEGATIVES_DEPTH], equivalents)
        if len(candidates) < NEGATIVES:
            continue
        negatives = draw.choice(candidates, NEGATIVES, replace=False)
        example: dict[str, Any] = {
            "query": query.text,
            "kind": query.kind,
            "positive": passage(contents[query.document], query.text),
            "negatives": [passage(contents[other], query.text) for other in negatives],
            "ids": [str(data.equivalents(other)[0]) for other in (query.document, *negatives)],
        }
        if scale:
            best = mixture.best[-1, number]
            documents = np.concatenate([best, [query.document], negatives])
            scores = mixture.scores(np.array([number]), documents, list(TEACHER.values()))[0]
            positive, *others = scale * scores[len(best) :] / max(float(scores[: len(best)].std()), MIN_DEVIATION)
            example["margins"] = [round(float(positive - other), 4) for other in others]
        yield example
