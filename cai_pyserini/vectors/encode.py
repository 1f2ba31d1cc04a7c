"""Encode the documents or queries of a collection into shards of raw vectors.

A shard is the unit of work: a pure function of a slice of the collection. Several processes (on several GPUs, or on
machines that share a folder) can each encode some of the shards; the last to finish writes the manifest. Vectors of
texts that were encoded before with the same settings come from an earlier folder or from this machine's cache (both in
vectors.cache). The cache gets new vectors every few seconds, so that an interruption loses only
seconds of work; without a cache, it loses the shard.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.collections.contract import Collection, Document
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import trim_memory
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.encoder import EncoderModel, Role
from cai_pyserini.models.rows import stacked
from cai_pyserini.models.tokenizer import Done
from cai_pyserini.vectors.cache import EarlierVectors, VectorCache, cache_folder
from cai_pyserini.vectors.queries import apply_query_settings
from cai_pyserini.vectors.shards import (
    SHARD,
    SHARD_NAMES,
    Matrix,
    Shard,
    Vectors,
    finish_shards,
    shard_path,
    shard_progress,
    shard_stats,
    text_keys,
    write_shard,
    write_shards,
)
from cai_pyserini.vectors.speed import remember

if TYPE_CHECKING:
    from cai_pyserini.models.dense import Dense
    from cai_pyserini.models.splade import Splade

GPU_SHARDS = 3  # encoded at a time on a GPU: it computes one while others are tokenized, put together, and written
SAVE_SECONDS = 5.0  # seconds between additions to the cache
ENOUGH = 2_000  # texts encoded at once, whose speed is kept for estimates
MAX_DIFFERENCE = 0.1  # largest distance of a text's vectors, relative to length; low precision gives 0.01

type NumberedShards = Iterator[tuple[int, Sequence[Document]]]  # shard numbers and their texts


def encode(
    collection: Collection,
    encoder: EncoderModel,
    output: Path,
    role: Role = "documents",
    *,
    split: str = "test",
    batch_size: int | None = None,
    shard_id: int = 0,
    shard_num: int = 1,
    earlier: Path | None = None,
) -> Path:
    """Encode the documents of a collection, or the queries of a split, into a folder of shards.

    Encodes only the shards whose number modulo `shard_num` is `shard_id`. Reuses vectors of the folder `earlier` where
    it can.
    """
    made_from = recipe(collection, encoder, role, split)
    digest = artifact.digest(made_from)

    def write(folder: Path) -> artifact.Stats | None:
        texts: Iterable[Document] = collection.documents()
        total = collection.size
        if role == "queries":
            topics = collection.topics(split)
            texts, total = (Document(*topic) for topic in topics.items()), len(topics)
        # List the folder instead of probing single files: NFS caches that a file is missing.
        existing = sorted(folder.glob("*.npz"))
        done = {path for path in existing if shard_stats(path, digest)}
        shards, at_a_time = 0, _shards_at_a_time(encoder, total)
        source = _TextVectors(encoder, role, batch_size, _open_earlier(earlier, made_from), at_a_time)

        def missing() -> NumberedShards:
            nonlocal shards
            for number, part in enumerate(batched(texts, SHARD)):
                shards += 1
                if number % shard_num != shard_id or shard_path(folder, number) in done:
                    bar.update(len(part))
                else:
                    yield number, part

        def write_one(number: int, part: Sequence[Document]) -> None:
            start = time.perf_counter()
            encoded = source.get([text.contents for text in part], bar.update, [text.id for text in part])
            seconds = (time.perf_counter() - start) / at_a_time
            shard = Shard([text.id for text in part], encoded.vectors, encoded.keys)
            write_shard(shard_path(folder, number), shard, digest, seconds, encoded.found, encoded.seconds)

        with progress(range(0), total, f"encode {role}", role) as bar:
            _each(write_one, missing(), at_a_time)
        trim_memory()
        stats = _finished_stats(folder, shards, digest, encoder, role)
        return stats and stats | ({"documents_digest": collection.documents_digest} if role == "documents" else {})

    return artifact.make(output, made_from, write, resumable=True, names=SHARD_NAMES, shared=shard_num > 1)


def recipe(
    collection: Collection, encoder: EncoderModel, role: Role = "documents", split: str = "test"
) -> artifact.Recipe:
    texts = artifact.digest([*collection.topics(split).items()]) if role == "queries" else collection.fingerprint(role)
    inputs = {"texts": texts, "encoder": encoder.identity(role)}
    return artifact.recipe("encode", inputs, encoder.variant(role), role=role)


def _shards_at_a_time(encoder: EncoderModel, texts: int | None) -> int:
    if resolve_device(encoder.device).type == "cpu":
        return 1
    return GPU_SHARDS if texts is None else max(1, min(GPU_SHARDS, -(-texts // SHARD)))


def _each(work: Callable[[int, Sequence[Document]], None], shards: NumberedShards, at_a_time: int) -> None:
    """Apply `work` to shards in threads, at most `at_a_time`; one at a time in this thread."""
    if at_a_time == 1:
        for shard in shards:
            work(*shard)
        return
    with ThreadPoolExecutor(at_a_time) as pool:
        running = deque[Future[None]]()
        for shard in shards:
            if len(running) == at_a_time:
                running.popleft().result()
            running.append(pool.submit(work, *shard))
        for future in running:
            future.result()


def encode_texts(encoder: EncoderModel, texts: Sequence[str], length: int, done: Done) -> Matrix:
    """Encode the first `length` tokens of one or more texts as documents. Equal texts are encoded once, and texts in
    the cache not at all."""
    source = _TextVectors(encoder.truncated(length), "documents")
    return stacked([source.get(part, done).vectors for part in batched(texts, SHARD)])


class _EncodedTexts(NamedTuple):
    """The vectors of texts (texts, width), and their text_keys (texts, 16)."""

    vectors: Matrix
    keys: np.ndarray
    found: int  # texts whose vectors were stored
    seconds: float  # that encoding took; stored vectors count with the time they took originally


@dataclass
class _TextVectors:
    """Vectors of texts in one role: those in `earlier` or in the cache, and others by the model. Equal texts are
    encoded once. Threads that encode `at_a_time` share the time that passes."""

    encoder: EncoderModel
    role: Role
    batch_size: int | None = None
    earlier: EarlierVectors | None = None
    at_a_time: int = 1

    def __post_init__(self) -> None:
        self._cache = _open_cache(self.encoder, self.role)

    def get(self, texts: Sequence[str], done: Done, names: Sequence[str] | None = None) -> _EncodedTexts:
        """The vectors of texts; `names` are in error messages, by default the texts."""
        keys = text_keys(texts)
        rows = [bytes(key) for key in keys]
        first = dict(zip(reversed(rows), reversed(range(len(rows))), strict=True))  # the text of each key
        known, parts, seconds = list[bytes](), list[Matrix](), 0.0
        for store in (self.earlier, self._cache):
            if store and len(known) < len(first):
                found = store.get(list(first.keys() - known))
                known += found.keys
                parts += [] if found.vectors is None else [found.vectors]
                seconds += found.seconds
        missing = sorted(first[key] for key in first.keys() - known)
        done(len(texts) - len(missing))
        if missing:
            self._require_unchanged({texts[first[key]]: row for row, key in enumerate(known)}, parts)
            keys_of_missing, names = [rows[i] for i in missing], names and [names[i] for i in missing]
            encoded, took = self._encode([texts[i] for i in missing], keys_of_missing, done, names)
            known, parts, seconds = known + keys_of_missing, [*parts, encoded], seconds + took
        places = {key: place for place, key in enumerate(known)}
        vectors = stacked(parts)[[places[key] for key in rows]]
        if self.role == "queries":
            vectors = apply_query_settings(self.encoder, vectors, texts, self.encoder.max_length("queries"))
        return _EncodedTexts(vectors, keys, len(texts) - len(missing), seconds)

    def _model(self) -> "Splade | Dense":
        with self.encoder.lock:
            return self.encoder.load(self.role)

    def _require_unchanged(self, stored: Mapping[str, int], parts: Sequence[Matrix]) -> None:
        """Raise CaiError if the model no longer reproduces a stored vector, a row of `parts`, for instance after a
        library update that changes tokenization: old and new vectors must not be mixed."""
        if not (nonblank := [text for text in stored if text.strip()]):
            return
        shortest, encoder = min(nonblank, key=len), self.encoder
        before = stacked(parts)[[stored[shortest]]]
        now = self._model().encode([shortest], encoder.max_length(self.role))
        if np.sqrt(_square(now - before)) > MAX_DIFFERENCE * np.sqrt(_square(before)):
            raise CaiError(
                f"{encoder.config.name} no longer makes the vectors that it made before, for instance of "
                f"{shortest[:50]!r}, perhaps because of other library versions: delete the cache, {cache_folder()}, "
                "and encode everything again, into another folder"
            )

    def _encode(
        self, texts: Sequence[str], keys: Sequence[bytes], done: Done, names: Sequence[str] | None = None
    ) -> tuple[Matrix, float]:
        """Encode texts, and add their vectors to the cache by their keys: (texts, width), and the seconds it took."""
        model = self._model()
        batches, unsaved = list[tuple[np.ndarray, Matrix]](), np.ones(len(texts), bool)
        start = saved_at = time.perf_counter()

        def save(positions: np.ndarray, vectors: Matrix) -> None:
            nonlocal saved_at
            seconds, saved_at = time.perf_counter() - saved_at, time.perf_counter()
            unsaved[positions] = False
            if self._cache:
                self._cache.put([keys[i] for i in positions.tolist()], vectors, seconds / self.at_a_time)

        tokens = model.token_ids(texts, self.encoder.max_length(self.role), names)
        for batch in model.encode_batches(tokens, self.batch_size, done):
            batches.append(batch)
            if time.perf_counter() - saved_at > SAVE_SECONDS:
                new = [each for each in batches if unsaved[each[0][0]]]
                save(np.concatenate([positions for positions, _ in new]), stacked([vectors for _, vectors in new]))
        vectors = model.in_order(batches, len(texts))
        save(rest := np.flatnonzero(unsaved), vectors[rest])  # also blank texts
        seconds = (saved_at - start) / self.at_a_time
        if len(texts) >= ENOUGH:
            remember(self.encoder, self.role, tokens.padded / seconds)
        return vectors, seconds


def _square(vectors: Matrix) -> float:
    return float((vectors.multiply(vectors) if isinstance(vectors, csr_matrix) else vectors * vectors).sum())


def uncached(encoder: EncoderModel, role: Role, texts: Sequence[str]) -> list[str]:
    """The texts that are not in the cache."""
    keys = [bytes(key) for key in text_keys(texts)]
    cache = _open_cache(encoder, role)
    found = {*cache.get([*dict.fromkeys(keys)]).keys} if cache else set()
    return [text for key, text in zip(keys, texts, strict=True) if key not in found]


def _open_cache(encoder: EncoderModel, role: Role) -> VectorCache | None:
    """The cache of the vectors that this encoder makes for a role; None if caching is off."""
    if (folder := cache_folder()) is None:
        return None
    made_from = artifact.recipe("encode", {"encoder": encoder.identity(role)}, encoder.variant(role), role=role)
    width = len(encoder.tokenizer) if encoder.config.is_sparse else None
    return VectorCache(folder, artifact.digest(made_from), f"{encoder.config.name} ({role})", width)


def _open_earlier(folder: Path | None, made_from: artifact.Recipe) -> EarlierVectors | None:
    """The vectors of a folder; None if there are none, or if they differ from this recipe in more than the texts."""
    if folder and (manifest := artifact.read_manifest(folder)):
        of_its_texts = {"inputs": made_from["inputs"] | {"texts": manifest.recipe["inputs"].get("texts")}}
        if artifact.digest(manifest.recipe) == artifact.digest(made_from | of_its_texts):
            with suppress(CaiError):
                return EarlierVectors(Vectors(folder))
    return None


def _finished_stats(folder: Path, count: int, digest: str, encoder: EncoderModel, role: Role) -> artifact.Stats | None:
    """The manifest's statistics of all shards; None while a shard is missing."""
    found = [shard_stats(shard_path(folder, number), digest) for number in range(count)]
    shards = [stats for stats in found if stats]
    if len(shards) < count:
        return None
    totals = {
        "seconds": round(sum(shard.seconds for shard in shards), 3),
        "found": sum(shard.found for shard in shards),
        "encoding_seconds": round(sum(shard.encoding for shard in shards), 3),
    }
    return finish_shards(folder, shards) | totals | {"vocabulary": encoder.tokenizer.vocabulary}


def project_vectors(vectors: Vectors, encoder: EncoderModel, output: Path) -> Path:
    """Write the document vectors of an encoder with a projection by projecting `vectors`, which the same encoder made
    without it. The result has the recipe of the encode stage, and differs from its vectors only by rounding."""
    inputs = {"texts": vectors.manifest.recipe["inputs"]["texts"], "encoder": encoder.identity("documents")}
    recipe = artifact.recipe("encode", inputs, encoder.variant("documents"), role="documents")

    def write(folder: Path) -> artifact.Stats:
        from cai_pyserini.models.dense import load_projection, project  # loads torch

        matrix = load_projection(encoder.projection, vectors.width) if encoder.projection else None
        shards = shard_progress(vectors, len(vectors), "project")

        def projected(shard: Shard) -> Shard:
            return shard if matrix is None else shard._replace(vectors=project(shard.vectors, matrix))

        counts = write_shards(folder, artifact.digest(recipe), shards, projected)
        return counts | {"vocabulary": vectors.vocabulary, "documents_digest": vectors.documents_digest}

    return artifact.make(output, recipe, write)
