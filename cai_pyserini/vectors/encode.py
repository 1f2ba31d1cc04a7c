"""Encode the documents or queries of a collection into shards of raw vectors.

A shard is the unit of work: a pure function of a slice of the collection. Several processes (on several GPUs, or on
machines that share a folder) can each encode some of the shards; the last to finish writes the manifest. Finished
batches of the current shard are saved every few seconds, so that an interruption loses only seconds of work. Vectors of
texts that were encoded before with the same settings come from an earlier folder (vectors.earlier) or from this
machine's cache (vectors.cache).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import batched
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.collections.contract import Collection, Document
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import trim_memory
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.encoder import Encoder, Role
from cai_pyserini.models.rows import stacked
from cai_pyserini.models.tokenizer import Done
from cai_pyserini.vectors.cache import VectorCache, cache_folder
from cai_pyserini.vectors.earlier import EarlierVectors
from cai_pyserini.vectors.queries import apply_query_settings
from cai_pyserini.vectors.shards import (
    SHARD,
    SHARD_NAMES,
    Matrix,
    Shard,
    Vectors,
    finish_shards,
    read_shard,
    shard_path,
    shard_progress,
    shard_stats,
    stats_of_shards,
    text_keys,
    write_shard,
    write_shards,
)
from cai_pyserini.vectors.speed import padded, remember

GPU_SHARDS = 3  # encoded at a time on a GPU: it computes one while others are tokenized, put together, and written
SAVE_SECONDS = 5.0  # between saves of an unfinished shard
ENOUGH = 2_000  # texts encoded at once, whose speed is kept for estimates
MAX_DIFFERENCE = 0.1  # between vectors of a text, relative to its length; batches in low precision differ by 0.01

type Shards = Iterator[tuple[int, Sequence[Document]]]  # shard numbers and their texts


def encode(
    collection: Collection,
    encoder: Encoder,
    output: Path,
    role: Role = "documents",
    split: str = "test",
    batch_size: int | None = None,
    shard_id: int = 0,
    shard_num: int = 1,
    earlier: Path | None = None,
    encode_remotely: Callable[[Path, artifact.Recipe, Shards], Iterator[int]] | None = None,
) -> Path:
    """Encode the documents of a collection, or the queries of a split, into a folder of shards.

    Encodes only the shards whose number modulo `shard_num` is `shard_id`. Reuses vectors of the folder `earlier` where
    it can. `encode_remotely(folder, recipe, shards)` encodes missing shards on other machines, and yields the number of
    each shard once it is written.
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
        done = {path for path, stats in zip(existing, stats_of_shards(existing, digest), strict=True) if stats}
        sizes: list[int] = []

        def missing() -> Shards:
            for number, part in enumerate(batched(texts, SHARD)):
                sizes.append(len(part))
                if number % shard_num != shard_id or shard_path(folder, number) in done:
                    bar.update(len(part))
                else:
                    yield number, part

        with progress(range(0), total, f"encode {role}", role) as bar:
            if encode_remotely:
                for number in encode_remotely(folder, made_from, missing()):
                    bar.update(sizes[number])
            else:
                cache = _open_cache(encoder, role)
                known = _open_earlier(earlier, made_from) if earlier else None
                at_a_time = _shards_at_a_time(encoder, total)

                def encode_one(number: int, part: Sequence[Document]) -> None:
                    path = shard_path(folder, number)
                    encode_shard(encoder, role, part, path, digest, batch_size, bar.update, cache, known, at_a_time)

                _each(encode_one, missing(), at_a_time)
        trim_memory()
        stats = _finished_stats(folder, len(sizes), digest, encoder, role)
        return stats and stats | ({"documents_digest": collection.documents_digest} if role == "documents" else {})

    return artifact.make(output, made_from, write, resumable=True, names=SHARD_NAMES, shared=shard_num > 1)


def recipe(collection: Collection, encoder: Encoder, role: Role = "documents", split: str = "test") -> artifact.Recipe:
    texts = artifact.digest([*collection.topics(split).items()]) if role == "queries" else collection.fingerprint(role)
    inputs = {"texts": texts, "encoder": encoder.identity(role)}
    return artifact.recipe("encode", inputs, encoder.variant(role), role=role)


def encode_shard(
    encoder: Encoder,
    role: Role,
    texts: Sequence[Document],
    path: Path,
    digest: str,
    batch_size: int | None,
    done: Done,
    cache: VectorCache | None = None,
    earlier: EarlierVectors | None = None,
    at_a_time: int = 1,
) -> None:
    """Write one shard. Equal texts are encoded once, and texts in `earlier` or in the cache not at all. Shards encoded
    `at_a_time` share the time that passes."""
    start = time.perf_counter()
    unfinished = path.with_suffix(".unfinished.npz")
    contents = [text.contents for text in texts]
    known = _KnownVectors(contents, cache, earlier)
    done(len(texts) - len(known.missing))
    batches, seconds = 0, (time.perf_counter() - start) / at_a_time
    if known.missing:
        missing = [texts[i] for i in known.missing]
        added, batches, added_seconds = _encode(encoder, role, missing, unfinished, digest, batch_size, done, at_a_time)
        known.require_unchanged(encoder, role, contents)
        known.add(added, added_seconds)
        seconds += added_seconds
    vectors = known.vectors()
    if role == "queries":
        vectors = apply_query_settings(encoder, vectors, contents, encoder.max_length(role))
    shard, found = Shard([text.id for text in texts], vectors, known.keys), len(texts) - len(known.missing)
    write_shard(path, shard, digest, seconds, batches, found=found, encoding=known.seconds)
    unfinished.unlink(missing_ok=True)


def _shards_at_a_time(encoder: Encoder, texts: int | None) -> int:
    if resolve_device(encoder.device).type == "cpu":
        return 1
    return GPU_SHARDS if texts is None else max(1, min(GPU_SHARDS, -(-texts // SHARD)))


def _each(work: Callable[[int, Sequence[Document]], None], shards: Shards, at_a_time: int) -> None:
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


def encode_texts(encoder: Encoder, texts: Sequence[str], length: int, done: Done) -> Matrix:
    """Encode the first `length` tokens of one or more texts as documents. Equal texts are encoded once, and texts in
    the cache not at all."""
    cache, parts = _open_cache(encoder.truncated(length), "documents"), list[Matrix]()
    for part in batched(texts, SHARD):
        known = _KnownVectors(part, cache)
        done(len(part) - len(known.missing))
        if known.missing:
            start = time.perf_counter()
            vectors = encoder.load("documents").encode([part[i] for i in known.missing], length, done=done)
            known.require_unchanged(encoder.truncated(length), "documents", part)
            known.add(vectors, time.perf_counter() - start)
        parts.append(known.vectors())
    return stacked(parts)


class _KnownVectors:
    """One vector for each distinct text: found in `earlier` or in the cache, or added later.

    `keys` are the keys of all texts, `missing` the positions of the texts without a stored vector, and `seconds` is the
    encoding time of all vectors, also of stored ones.
    """

    def __init__(self, contents: Sequence[str], cache: VectorCache | None, earlier: EarlierVectors | None = None):
        self.keys, self.seconds = text_keys(contents), 0.0
        self._rows, self._cache = [bytes(key) for key in self.keys], cache
        self._known, self._parts = list[bytes](), list[Matrix]()
        first = dict(zip(reversed(self._rows), reversed(range(len(self._rows))), strict=True))
        for store in (earlier, cache):
            if store and len(self._known) < len(first):
                found = store.get(list(first.keys() - self._known))
                self._known += found.keys
                self._parts += [] if found.vectors is None else [found.vectors]
                self.seconds += found.seconds
        self.missing = sorted(first[key] for key in first.keys() - self._known)

    def require_unchanged(self, encoder: Encoder, role: Role, contents: Sequence[str]) -> None:
        """Raise CaiError if the encoder no longer reproduces a stored vector, for instance after a library update that
        changes tokenization: old and new vectors must not be mixed."""
        known = {*self._known}
        stored = [i for i, key in enumerate(self._rows) if key in known and contents[i].strip()]
        if not stored:
            return
        shortest = min(stored, key=lambda i: len(contents[i]))
        before = stacked(self._parts)[[self._known.index(self._rows[shortest])]]
        text, length = contents[shortest], encoder.max_length(role)
        now = encoder.load(role).encode([text], length, overlap=encoder.overlap(role))
        if np.sqrt(_square(now - before)) > MAX_DIFFERENCE * np.sqrt(_square(before)):
            raise CaiError(
                f"{encoder.config.name} no longer makes the vectors that it made before, for instance of "
                f"{text[:50]!r}, perhaps because of other library versions: delete the cache, {cache_folder()}, and "
                "encode everything again, into another folder"
            )

    def add(self, vectors: Matrix, seconds: float) -> None:
        """Add the vectors of the missing texts, here and to the cache."""
        keys = [self._rows[i] for i in self.missing]
        if self._cache:
            self._cache.put(keys, vectors, seconds)
        self._known += keys
        self._parts.append(vectors)
        self.seconds += seconds

    def vectors(self) -> Matrix:
        """The vectors of all texts, in the order of the texts."""
        rows = {key: row for row, key in enumerate(self._known)}
        return stacked(self._parts)[[rows[key] for key in self._rows]]


def _square(vectors: Matrix) -> float:
    return float((vectors.multiply(vectors) if isinstance(vectors, csr_matrix) else vectors * vectors).sum())


def _encode(
    encoder: Encoder,
    role: Role,
    texts: Sequence[Document],
    unfinished: Path,
    digest: str,
    batch_size: int | None,
    done: Done,
    at_a_time: int,
) -> tuple[Matrix, int, float]:
    """Encode texts, continuing after the batches that an interrupted attempt has saved. Returns vectors (texts, width),
    and the batches and seconds that encoding them took."""
    with encoder.lock:
        model = encoder.load(role)
    ids, contents = [text.id for text in texts], [text.contents for text in texts]
    size = batch_size or model.transformer.batch_size
    batches_digest = artifact.digest([digest, size, text_keys(contents).tobytes().hex()])
    pieces: list[tuple[np.ndarray, Matrix]] = []
    batches, seconds = 0, 0.0
    if (saved := shard_stats(unfinished, batches_digest)) and (shard := read_shard(unfinished, batches_digest)):
        pieces.append((np.arange(len(ids)), shard.vectors))
        batches, seconds = saved.batches, saved.seconds
    start = last_save = time.perf_counter()
    windows = model.windows(contents, encoder.max_length(role), encoder.overlap(role), ids)
    for piece in model.encode_batches(windows, batch_size, done, skip=batches):
        pieces.append(piece)
        batches += 1
        now = time.perf_counter()
        if now - last_save > SAVE_SECONDS:
            vectors = model.assemble(windows, pieces)
            pieces = [(np.arange(len(ids)), vectors)]
            write_shard(unfinished, Shard(ids, vectors), batches_digest, seconds + (now - start) / at_a_time, batches)
            last_save = now
    vectors = model.finish(model.assemble(windows, pieces), windows)
    took = (time.perf_counter() - start) / at_a_time
    if len(texts) >= ENOUGH and not seconds:  # a continued one did only a part
        remember(encoder, role, padded(windows) / took)
    return vectors, batches, seconds + took


def uncached(encoder: Encoder, role: Role, texts: Sequence[str]) -> list[str]:
    """The texts that are not in the cache."""
    keys = [bytes(key) for key in text_keys(texts)]
    cache = _open_cache(encoder, role)
    found = {*cache.get([*dict.fromkeys(keys)]).keys} if cache else set()
    return [text for key, text in zip(keys, texts, strict=True) if key not in found]


def _open_cache(encoder: Encoder, role: Role) -> VectorCache | None:
    """The cache of the vectors that this encoder makes for a role; None if caching is off."""
    if (folder := cache_folder()) is None:
        return None
    made_from = artifact.recipe("encode", {"encoder": encoder.identity(role)}, encoder.variant(role), role=role)
    width = len(encoder.tokenizer) if encoder.config.kind == "splade" else None
    return VectorCache(folder, artifact.digest(made_from), f"{encoder.config.name} ({role})", width)


def _open_earlier(folder: Path, made_from: artifact.Recipe) -> EarlierVectors | None:
    """The vectors of a folder; None if there are none, or if they differ from this recipe in more than the texts."""
    manifest = artifact.read_manifest(folder)
    if manifest:
        of_its_texts = {"inputs": made_from["inputs"] | {"texts": manifest.recipe["inputs"].get("texts")}}
        if artifact.digest(manifest.recipe) == artifact.digest(made_from | of_its_texts):
            with suppress(CaiError):
                return EarlierVectors(Vectors(folder))
    return None


def _finished_stats(folder: Path, count: int, digest: str, encoder: Encoder, role: Role) -> artifact.Stats | None:
    """The manifest's statistics of all shards; None while a shard is missing."""
    paths = [shard_path(folder, number) for number in range(count)]
    shards = [stats for stats in stats_of_shards(paths, digest) if stats]
    if len(shards) < count:
        return None
    totals = {
        "seconds": round(sum(shard.seconds for shard in shards), 3),
        "found": sum(shard.found for shard in shards),
        "encoding_seconds": round(sum(shard.encoding for shard in shards), 3),
    }
    return finish_shards(folder, shards) | totals | {"vocabulary": encoder.tokenizer.vocabulary}


def project_vectors(vectors: Vectors, encoder: Encoder, output: Path) -> Path:
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
