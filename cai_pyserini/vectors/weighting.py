"""Impacts as JSON vectors, which Anserini's JsonVectorCollection and the index stage read.

There is one line per document, {"id": …, "contents": "", "vector": {term: impact, …}}, and an encoder.yaml with the
settings used, so that the Pyserini plugin encodes queries and further documents in the same way.

Joint impacts also contain the BM25 weights of words, under names that begin with `bm25:`, and maybe those of n-grams
(`gram:`), quantized with their own range. Query weights balance both parts (see vectors.queries), so that one search
scores alpha * BM25 + SPLADE. Words are not pruned: they are few, and the relation of their impacts to SPLADE's depends
on the query. By default, alpha is estimated without labels, so that both parts have the same spread of scores:

    alpha = mean over queries of deviation(SPLADE's top scores) / mean over queries of deviation(BM25's top scores)

Queries are spans of documents, with the top 100 scores each; BM25 is without expansion. (The mean of the ratios is not
usable: a query that matches a handful of documents makes it explode.)

Impacts of words alone have no vectors, and the encoder `words`, whose vocabulary has no word pieces.
"""

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig, Joint, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import processes_for, spread
from cai_pyserini.core.text import normalized
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import idf_digest, idf_weights
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.quantization import Weighting, loss_stats, weighted
from cai_pyserini.vectors.queries import Queries, Representation, as_terms, encode_queries
from cai_pyserini.vectors.shards import (
    Shard,
    Vectors,
    different_documents,
    require_same_documents,
    shard_progress,
    with_first_passage,
)

MIN_SHARDS = 4  # per process, which takes longer to start than to write one shard
logger = logging.getLogger(__name__)

ALPHA = 1.0  # where it cannot be estimated
TYPICAL_RANGE = 5.0  # SPLADE weights rarely exceed it; Pyserini's own encoders also quantize with it
BEST = 100  # top scores per query from which alpha is estimated


class WrittenShard(NamedTuple):
    """Counts of a written shard."""

    number: int
    documents: int
    nonzeros: int
    loss: np.ndarray  # Quantizer.loss


class Terms(Sequence[str]):
    """The names of the columns of impacts: the tokens of a vocabulary, then possibly millions, with prefixes."""

    def __init__(self, tokens: Sequence[str], others: Sequence[tuple[str, Sequence[str]]]):
        self.tokens, self._parts = tokens, [("", tokens), *others]
        self._starts = [*accumulate((len(names) for _, names in self._parts), initial=0)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, column: Any) -> Any:
        place = range(len(self))[column]
        part = bisect_right(self._starts, place) - 1
        prefix, names = self._parts[part]
        return prefix + names[place - self._starts[part]]

    def __iter__(self) -> Iterator[str]:
        return (prefix + name for prefix, names in self._parts for name in names)


@dataclass(frozen=True)
class Impacts:
    """The impacts of a collection; joint ones with `bm25`, and of words alone without vectors.

    Iterating yields int32 impacts (documents, columns), shard by shard. The columns are `terms`: the tokens of the
    vocabulary, then the words.
    """

    vectors: Vectors | None
    weighting: Weighting
    terms: Terms
    bm25: Bm25 | None = None

    @property
    def counted(self) -> Vectors:
        """What has the same documents and shards."""
        return _counted(self.vectors, self.bm25)

    def __iter__(self) -> Iterator[Shard]:
        return (self.shard(number)[0] for number in range(self.counted.shards))

    def shard(self, number: int) -> tuple[Shard, np.ndarray]:
        """A shard of impacts, and Quantizer.loss of its SPLADE weights."""
        words = self._passages(self.bm25.shard, number) if self.bm25 and self.weighting.config.joint else None
        if self.vectors:
            shard = self._passages(self.vectors.shard, number)
        else:
            ids = words.ids if words else []
            shard = Shard(ids, csr_matrix((len(ids), len(self.terms.tokens)), dtype=np.float32))
        if words and self.bm25 and words.ids != shard.ids:
            raise different_documents(self.counted, self.bm25.counts)
        impacts, loss = self.weighting.impacts(shard.vectors, words and words.vectors, shard.ids)
        return Shard(shard.ids, impacts), loss

    def _passages(self, read: Callable[[int], Shard], number: int) -> Shard:
        before = map(read, range(number - 1, -1, -1))
        return with_first_passage(read(number), before, self.weighting.config.first_passage)

    def queries(self, queries: Queries) -> csr_matrix:
        """Query weights (queries, columns), in the order of the topics."""
        encoded: dict[str, Any] = queries.for_search(self.weighting.config.query_scale)[0]
        return term_matrix(encoded.values(), self.terms)

    def write(self, folder: Path, numbers: Sequence[int]) -> Generator[WrittenShard]:
        for number in numbers:
            shard, loss = self.shard(number)
            with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json_vectors(shard.ids, shard.vectors, self.terms))
            yield WrittenShard(number, len(shard.ids), int(np.count_nonzero(shard.vectors.data)), loss)


def term_matrix(texts: Collection[Mapping[str, int]], terms: Sequence[str]) -> csr_matrix:
    """The weights of texts as a float32 matrix (texts, terms); terms that are not in `terms` are left out."""
    used = {term for text in texts for term in text}
    columns = {term: column for column, term in enumerate(terms) if term in used}
    entries = [(row, columns[t], n) for row, text in enumerate(texts) for t, n in text.items() if t in columns]
    rows, indices, weights = np.array(entries, np.int64).reshape(-1, 3).T
    return csr_matrix((weights.astype(np.float32), (rows, indices)), shape=(len(texts), len(terms)))


def json_vectors(ids: Sequence[str], impacts: csr_matrix, terms: Sequence[str]) -> list[str]:
    """One JSON line per row, with a newline; terms are in vocabulary order."""
    names = {column: json.dumps(terms[column], ensure_ascii=False) for column in np.unique(impacts.indices).tolist()}
    lines = []
    for row, id in enumerate(ids):
        entries = slice(impacts.indptr[row], impacts.indptr[row + 1])
        pairs = zip(impacts.indices[entries].tolist(), impacts.data[entries].tolist(), strict=True)
        vector = ", ".join([f"{names[column]}: {value}" for column, value in pairs])
        lines.append(f'{{"id": {json.dumps(id)}, "contents": "", "vector": {{{vector}}}}}\n')
    return lines


def _counted(vectors: Vectors | None, bm25: Bm25 | None) -> Vectors:
    if counted := vectors or (bm25 and bm25.counts):
        return counted
    raise ValueError("neither vectors nor words")


def open_impacts(vectors: Vectors | None, config: EncoderConfig, bm25: Bm25 | None = None) -> Impacts:
    """The impacts of vectors and words with the settings of an encoder.yaml written by this stage."""
    tokenizer = EncoderModel(config).tokenizer
    terms = Terms(tokenizer.terms, bm25.terms if bm25 else ())
    return Impacts(vectors, Weighting(config, idf_weights(config, tokenizer.vocabulary)), terms, bm25)


def impacts_of_index(
    index: Path, vectors: Path | None, words: Path | None, near_words: Path | None = None, grams: Path | None = None
) -> Impacts:
    """The impacts of an index, recomputed from its vectors and, if it is joint, its words, those near, and n-grams.
    Raises CaiError if the index was made from other inputs."""
    raw, config = Vectors(vectors) if vectors else None, load_encoder(str(index))
    bm25 = _bm25_of_index(config, words, near_words, grams)
    recorded, current = artifact.require(index, "index").stats["made_from"], _inputs(raw, config, bm25)
    if changed := [name for name, digest in current.items() if digest != recorded.get(name)]:
        raise CaiError(f"{index} was made from other {changed[0]} than the current ones: make impacts and index again")
    return open_impacts(raw, config, bm25)


def _inputs(vectors: Vectors | None, config: EncoderConfig, bm25: Bm25 | None) -> dict[str, Any]:
    """The digests of the inputs of impacts."""
    return {
        "vectors": vectors and vectors.manifest.digest,
        "idf": idf_digest(config.idf_folder),
        "words": bm25 and bm25.counts.manifest.digest,
        "expansion": bm25 and bm25.near_vectors and bm25.near_vectors.manifest.digest,
        "grams": bm25 and bm25.of_grams and bm25.of_grams.counts.manifest.digest,
    }


def _bm25_of_index(
    config: EncoderConfig, words: Path | None, near_words: Path | None, grams: Path | None
) -> Bm25 | None:
    """The words and BM25 parameters of the joint index with the encoder `config`; None if it is not joint."""
    joint = config.joint
    if joint is None or words is None:
        return None
    used = near_words if joint.expanded else None
    return Bm25(words, joint.bm25, None, used, joint.documents_only, grams if joint.grams else None)


def write_impacts(
    vectors: Vectors | None,
    config: EncoderConfig,
    output: Path,
    bm25: Bm25 | None = None,
    encoder: EncoderModel | None = None,
    threads: int = 0,
) -> Path:
    """Write the impacts of a collection as JSON vectors, one file per shard; joint ones with `bm25`, and of words alone
    without vectors.

    `encoder`, the encoder of the vectors, encodes the spans from which alpha is estimated; pass one whose model is
    already loaded, if there is one. At most `threads` processes write; 0 means one per processor. Raises CaiError for
    dense vectors, for vectors of another encoder, and for words of other documents.
    """
    own = EncoderModel(config, precision="float32")
    encoder = encoder or own
    _require_fitting(vectors, own, bm25)
    counted = _counted(vectors, bm25)
    inputs, words = _inputs(vectors, config, bm25), {}
    if bm25:
        words = bm25.parameters._asdict() | {"alpha": bm25.alpha, "documents_only": bm25.documents_only}
    if bm25 and bm25.alpha is None:
        words["queries"] = encoder.query_only_identity  # the estimate of alpha depends on it
    recipe = artifact.recipe("impact", inputs, **config.replace(joint=None).shaping("impacts"), **words)

    def write(folder: Path) -> artifact.Stats:
        opened = open_impacts(vectors, config, bm25)
        used = _with_ranges(opened, encoder)
        impacts = replace(opened, weighting=Weighting(used, opened.weighting.idf))
        count = processes_for(counted.shards, MIN_SHARDS, threads)
        numbers = [range(counted.shards * i // count, counted.shards * (i + 1) // count) for i in range(count)]
        with spread(partial(Impacts.write, impacts, folder), numbers) as shards:
            written = sorted(shard_progress(shards, len(counted), f"impacts {output.name}"))
        artifact.require_count(counted.folder, sum(shard.documents for shard in written), len(counted))
        files.write_text(folder / "encoder.yaml", encoder_yaml(used, output))
        return {
            "vectors": len(counted),
            "shards": counted.shards,
            "nonzeros": sum(shard.nonzeros for shard in written),
            "document_scale": impacts.weighting.quantizer.scale,
            "loss": loss_stats(sum((shard.loss for shard in written), np.zeros(5))),
            "alpha": used.joint and used.joint.alpha,
            "encoder": vectors.encoder if vectors else own.identity("documents"),
            "documents_digest": counted.documents_digest,
            "made_from": inputs,
            "settings": used.shaping("vectors", "impacts", defaults=True),
        }

    stats = artifact.require(artifact.make(output, recipe, write), "impact").stats
    joint = stats["alpha"] and Joint(alpha=stats["alpha"], **stats["settings"]["joint"])
    used = config.replace(range=stats["settings"]["range"], joint=joint)
    artifact.renew(output / "encoder.yaml", encoder_yaml(used, output))  # query settings may have changed
    return output


def _require_fitting(vectors: Vectors | None, encoder: EncoderModel, bm25: Bm25 | None) -> None:
    if vectors:
        vectors.require("splade", "index them with `index dense`")
        encoder.require_identity(vectors.encoder, vectors.folder)
        if bm25:
            require_same_documents(vectors, bm25.counts)
        elif encoder.config.only_words:
            raise CaiError("keep_terms: 0 leaves nothing of SPLADE: give words too, which make an index of BM25 alone")


def _with_ranges(impacts: Impacts, encoder: EncoderModel) -> EncoderConfig:
    """The settings of impacts, with the ranges that quantize them, and alpha."""
    vectors, bm25, config, idf = impacts.vectors, impacts.bm25, impacts.weighting.config, impacts.weighting.idf
    used, joint = config.replace(joint=None), None
    if bm25:
        joint = Joint(
            alpha=estimate_alpha(vectors, idf, bm25, encoder) if vectors else {"bow": 1.0},
            range=largest_weight((shard.vectors for shard in bm25.shards()), bm25.folder),
            **bm25.parameters._asdict(),
            language=bm25.language,
            expanded=bm25.near_words is not None,
            documents_only=bm25.documents_only,
            grams=bm25.grams is not None,
        )
    if vectors and not config.range:
        used = used.replace(range=largest_weight((weighted(shard.vectors, idf) for shard in vectors), vectors.folder))
    return used.replace(joint=joint, range=used.range or (joint and joint.range))


def largest_weight(vectors: Iterable[csr_matrix], source: object) -> float:
    """The largest weight of a collection. Raises CaiError if there is none."""
    largest = max(float(matrix.data.max(initial=0)) for matrix in vectors)
    if not largest > 0:
        raise CaiError(f"{source}: no document has any weight; is this a SPLADE checkpoint?")
    return largest


def estimate_alpha(
    vectors: Vectors, weights: np.ndarray | None, bm25: Bm25, encoder: EncoderModel
) -> dict[Representation, float]:
    """Estimate alpha for each query representation, from raw vectors and their IDF `weights` (vocabulary,). ALPHA, with
    a warning, if there are too few documents, or none is long enough for spans."""
    spans = [(text, words) for text, words in bm25.spans if words]
    kinds: list[Representation] = ["splade", "bow"] if encoder.has_query_model else ["bow"]
    if bm25.alpha is not None:
        return dict.fromkeys(kinds, bm25.alpha)
    if not spans:
        return _default_alpha(kinds, "short")
    queries = {kind: encode_queries(encoder, [text for text, _ in spans], kind) for kind in kinds}
    words, own_words = (
        term_matrix([counts for _, counts in spans], bm25.words),
        replace(bm25, near_words=None, grams=None),
    )
    shards = zip(shard_progress(vectors, len(vectors), "alpha"), own_words.shards(), strict=True)
    documents = ((weighted(shard.vectors, weights), word_shard.vectors) for shard, word_shard in shards)
    return balanced_alpha(queries, words, documents)


def balanced_alpha(
    queries: Mapping[Representation, csr_matrix],
    words: csr_matrix,
    documents: Iterable[tuple[csr_matrix, csr_matrix]],
) -> dict[Representation, float]:
    """Alpha for each query representation (queries, vocabulary), from the queries' word counts `words` (queries, words)
    and documents in parts: SPLADE weights (documents, vocabulary) and BM25 weights (documents, words)."""
    best: dict[str, np.ndarray] = {kind: np.zeros((words.shape[0], 0)) for kind in (*queries, "bm25")}
    for splade_weights, bm25_weights in documents:
        for kind, matrix in queries.items():
            best[kind] = _merge(best[kind], matrix @ splade_weights.T)
        best["bm25"] = _merge(best["bm25"], words @ bm25_weights.T)
    deviations = {kind: float(scores.std(1).mean()) for kind, scores in best.items()}
    if not all(deviations.values()):
        return _default_alpha(queries, "few")
    return {kind: round(deviations[kind] / deviations["bm25"], 4) for kind in queries}


def _default_alpha(kinds: Iterable[Representation], reason: str) -> dict[Representation, float]:
    logger.warning("the documents are too %s to estimate the weight of BM25, alpha: it is %g", reason, ALPHA)
    return dict.fromkeys(kinds, ALPHA)


def _merge(best: np.ndarray, scores: csr_matrix) -> np.ndarray:
    """Merge the best scores of each query so far (queries, at most BEST) with those of a shard (queries, documents)."""
    merged = np.hstack([best, scores.toarray()])
    return merged if merged.shape[1] <= BEST else np.partition(merged, -BEST, axis=1)[:, -BEST:]


class TextImpacts:
    """Impacts of single texts, without a collection: texts -> [{term: impact}], or dense vectors.

    Impacts are weighted with the encoder's IDF, if it has one. Without a range, as of a bare checkpoint, the range is 5
    times the largest IDF weight. Raises CaiError for the encoder of a joint index.
    """

    def __init__(self, encoder: EncoderModel):
        self._config = config = encoder.config
        if config.joint:
            raise CaiError(
                f"{config.name} is the encoder of a joint index: a document's BM25 weights depend on the whole "
                "collection; build the index again with the new documents"
            )
        self._model, self._terms = encoder.load("documents"), encoder.tokenizer.terms
        if config.is_sparse:
            idf = idf_weights(config, encoder.tokenizer.vocabulary)
            largest = 1.0 if idf is None else float(idf.max())
            self._weighting = Weighting(config.replace(range=config.range or TYPICAL_RANGE * largest), idf)

    def __call__(self, contents: Sequence[str], max_length: int | None = None) -> list[dict[str, int]] | np.ndarray:
        """The impacts, or the vectors (documents, width), of the first `max_length` tokens of each text."""
        length = max_length or self._config.max_document_length
        vectors = self._model.encode([*map(normalized, contents)], length)
        if isinstance(vectors, np.ndarray):
            return vectors
        return as_terms(self._weighting.impacts(vectors)[0], self._terms)
