"""What an adaptation works with: documents and their vectors, pseudo queries, and the mixture that judges them.

Documents are encoded once, by the encode stage. A sample stands for a large collection; its vectors are taken from
those of the whole collection where these exist.
"""

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.adapt.mixture import LANGUAGES, WEIGHTS, Bm25, Mixture, Products
from cai_pyserini.adapt.pseudo_queries import PseudoQuery, passage, pseudo_queries, questions, remainder
from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.collection.contract import Collection, Record
from cai_pyserini.collection.copies import Copies, source
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.collection.spans import Reservoir
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import ENGLISH, EncoderConfig, IndexConfig, unless_english
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.rows import stacked
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encode import encode, recipe
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import encode_queries
from cai_pyserini.fusion.fusions import DEPTH
from cai_pyserini.idf.idf import Idf
from cai_pyserini.impact.quantization import weighted
from cai_pyserini.models.device import Precision
from cai_pyserini.vectors.shards import Matrix, Vectors

SAMPLE = 100_000  # documents: more would need much memory and teach little more
HELD_OUT = 600  # documents whose queries judge, and do not train; at most a fifth
SPREAD = 300  # pseudo queries to measure the spread of scores with
FOUND = 10  # a pseudo query is kept if the mixture has its source among this many best documents


@dataclass(frozen=True)
class Material:
    """The inputs of an adaptation; each part of the material is made when it is first needed."""

    collection: IndexConfig
    splade: EncoderConfig
    dense: EncoderConfig | None
    folder: Path  # for the sample, and for vectors
    queries: int  # the most that train
    seed: int
    device: str
    precision: Precision = "auto"  # the precision of the vectors
    made: Container[Path] = ()  # folders of vectors that other steps make
    alpha: float | None = None  # the weight of BM25 in joint systems; None: estimated
    weights: Sequence[float] = ()  # of BM25 + SPLADE + dense in their fusion; empty: chosen
    depth: int = DEPTH  # documents per query of each part that are fused

    @cached_property
    def whole(self) -> Collection:
        return open_collection(self.collection)

    @cached_property
    def documents(self) -> Collection:
        """The collection, or a BEIR folder with a sample of it."""
        whole = self.whole
        made_from = artifact.recipe("adapt: sample", {"documents": whole.fingerprint("documents")}, seed=self.seed)

        def write(folder: Path) -> artifact.Stats:
            kept: Reservoir[Record] = Reservoir(SAMPLE, random.Random(self.seed))
            for record in whole.records():
                kept.add(record)
            lines = ({"_id": record.id, "title": record.title, "text": record.text} for record in kept.items)
            return {"documents": jsonl.write(folder / "corpus.jsonl", lines), "of": kept.seen}

        if self._is_small:
            return whole
        return BeirFolder(artifact.make(self.folder / "sample", made_from, write), whole.name, whole.fields)

    @cached_property
    def _is_small(self) -> bool:
        return self.whole.size is not None and self.whole.size <= SAMPLE

    @cached_property
    def encoders(self) -> list[Encoder]:
        """The SPLADE encoder, and the dense one if there is one."""
        return [Encoder(config, self.device, self.precision) for config in (self.splade, self.dense) if config]

    @property
    def identity(self) -> dict[str, Any]:
        """What pseudo queries and their mixture depend on, besides the seed, for recipes."""
        collection = self.collection
        return {
            "documents": self.whole.fingerprint("documents"),
            "encoders": [[encoder.identity("documents"), encoder.identity("queries")] for encoder in self.encoders],
            "idf_power": self.splade.idf_power,
            "bm25": [collection.k1, collection.b],
            "language": unless_english(collection.language),
        }

    @property
    def judged_identity(self) -> dict[str, Any]:
        """What the scores of judges depend on, besides the settings of the fusion."""
        impacts = self.encoders[0].config.shaping("impacts", "queries")
        return self.identity | {"impacts": impacts, "hits": self.collection.hits}

    def vectors(self, encoder: Encoder) -> Path:
        """The folder of an encoder's vectors, named as in a run folder: of the whole collection if it is small or has
        been encoded, or will be, else of the sample."""
        name = "dense-documents" if encoder.config.kind == "dense" else "documents"
        whole = self.folder / name
        if self._is_small or whole in self.made or artifact.is_up_to_date(whole, recipe(self.whole, encoder)):
            return whole
        return self.folder / f"sample-{name}"

    def encode_documents(self, encoder: Encoder) -> Path:
        folder = self.vectors(encoder)
        return encode(self.documents if folder.name.startswith("sample-") else self.whole, encoder, folder)

    @cached_property
    def _records(self) -> list[Record]:
        return list(self.documents.records())

    @cached_property
    def contents(self) -> list[str]:
        return [self.documents.contents_of(record) for record in self._records]

    @cached_property
    def origins(self) -> np.ndarray:
        """The number of the document that each document, perhaps a passage, is of, (documents,)."""
        in_passages = self.collection.passages is not None
        ids = [source(record.id) if in_passages else record.id for record in self._records]
        return np.unique(np.array(ids), return_inverse=True)[1]

    @cached_property
    def _passages(self) -> list[np.ndarray]:
        """The numbers of the documents of each origin."""
        return np.split(np.argsort(self.origins, kind="stable"), np.cumsum(np.bincount(self.origins))[:-1])

    @cached_property
    def _copies(self) -> Copies:
        return Copies(self.contents)

    def alike(self, number: int) -> np.ndarray:
        """The numbers of the documents that answer what a document answers, in order: its copies, and the other
        passages of the documents that these and it are of."""
        origins = np.unique(self.origins[self._copies.of(number)])
        return np.sort(np.concatenate([self._passages[origin] for origin in origins]))

    @cached_property
    def _drawn(self) -> tuple[list[PseudoQuery], int]:
        """Pseudo queries in random order, the held-out ones first, and how many of these there are.

        Of a document in passages, the queries of one passage are held out. No passage of it trains, nor any copy of
        one. There are no queries in languages that are not among LANGUAGES, and questions only in English.
        """
        draw, language = random.Random(self.seed), self.collection.language
        if language not in LANGUAGES:
            return [], 0
        found = list(pseudo_queries([record.title for record in self._records], self.contents, draw))
        draw.shuffle(found)
        first: dict[int, int] = {}  # document -> the first of its passages
        for number in dict.fromkeys(query.document for query in found):
            first.setdefault(int(self.origins[number]), number)
        origins = list(first)[: min(HELD_OUT, len(first) // 5)]
        held = dict.fromkeys(first[origin] for origin in origins)
        passages = (number for origin in origins for number in self._passages[origin])
        unseen = {int(other) for number in passages for other in self._copies.of(number)}
        held_out = [query for query in found if query.document in held]
        held_out += questions(held, self.contents, draw) if language == ENGLISH else []
        train = [query for query in found if query.document not in unseen]
        return held_out + train[: self.queries], len(held_out)

    @property
    def pseudo_queries(self) -> list[PseudoQuery]:
        """Those that are held out, and then those that train."""
        return self._drawn[0]

    @property
    def _texts(self) -> list[str]:
        return [query.text for query in self.pseudo_queries]

    @cached_property
    def sources(self) -> np.ndarray:
        """The number of the source of each pseudo query, (queries,)."""
        return np.array([query.document for query in self.pseudo_queries])

    @cached_property
    def raw(self) -> list[Matrix]:
        """Each encoder's vectors of all documents; SPLADE's without IDF."""
        return [self._vectors(encoder) for encoder in self.encoders]

    def _vectors(self, encoder: Encoder) -> Matrix:
        numbers = {record.id: number for number, record in enumerate(self._records)}
        places, parts = [], []
        for shard in Vectors(self.encode_documents(encoder)):
            rows = [row for row, id in enumerate(shard.ids) if id in numbers]
            places += [numbers[shard.ids[row]] for row in rows]
            parts.append(shard.vectors[rows])
        return stacked(parts)[np.argsort(places)]

    @cached_property
    def idf(self) -> np.ndarray:
        """IDF of the tokens of the SPLADE encoder, (vocabulary,)."""
        return Idf.count(self.contents, self.encoders[0].tokenizer).weights(self.splade.idf_power)

    @cached_property
    def products(self) -> list[Products]:
        """Each encoder's vectors of pseudo queries and of documents; SPLADE's documents are weighted with IDF."""
        splade, *dense = self.raw
        queries = (encode_queries(encoder, self._texts) for encoder in self.encoders)
        documents = [weighted(splade, self.idf), *dense]
        return [Products(*each) for each in zip(queries, documents, strict=True)]

    @cached_property
    def mixture(self) -> Mixture:
        """BM25, SPLADE with IDF, and dense retrieval if there is a dense encoder, for all pseudo queries."""
        if not self.pseudo_queries:
            raise self.too_small()
        bm25 = Bm25(self.contents, self.collection)
        systems = [Products(bm25.queries(self._texts), bm25.documents), *self.products]
        return Mixture(systems, [1.0, 1.0] if len(systems) == 2 else list(WEIGHTS.values()))

    @cached_property
    def spread(self) -> float:
        """The mean deviation of SPLADE's best scores without IDF."""
        return float(Mixture([Products(self.products[0].queries[:SPREAD], self.raw[0])], [1.0]).spread[0])

    @cached_property
    def _found(self) -> np.ndarray:
        """Whether the mixture finds the source of each pseudo query, (queries,)."""
        return (self.mixture.best[-1, :, :FOUND] == self.sources[:, None]).any(1)

    @property
    def held_out(self) -> np.ndarray:
        """The numbers of the pseudo queries that judge."""
        return np.flatnonzero(self._found[: self._drawn[1]])

    @property
    def train(self) -> np.ndarray:
        """The numbers of the pseudo queries that train."""
        numbers = self._drawn[1] + np.flatnonzero(self._found[self._drawn[1] :])
        if not len(numbers):
            raise self.too_small()
        return numbers

    def remainders(self, numbers: np.ndarray, whole: bool = True) -> list[str]:
        """What is left of the sources of these pseudo queries without the queries: of whole sources or of passages."""
        queries = (self.pseudo_queries[number] for number in numbers)
        pairs = ((self.contents[query.document], query.text) for query in queries)
        return [remainder(text if whole else passage(text, query), query) for text, query in pairs]

    def encode(self, encoder: Encoder, texts: Sequence[str]) -> Matrix:
        """Vectors of texts as documents, (texts, dimensions)."""
        with progress(iter(texts), len(texts), "encode") as bar:
            length, overlap = encoder.config.max_document_length, encoder.config.overlap
            return encoder.load("documents").encode(texts, length, done=bar.update, overlap=overlap)

    def too_small(self) -> CaiError:
        name = self.collection.name
        return CaiError(f"collection {name} makes no training examples: its documents are too few or too short")
