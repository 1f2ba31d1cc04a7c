"""Words, vectors and impacts in the formats of the stages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import jsonl
from cai_pyserini.models.tokenizer import WORD
from cai_pyserini.vectors import encode, shards
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import json_lines, stored_vectors


def counted(
    folder: Path,
    words: Sequence[str],
    *counts: object,
    ids: list[list[str]] | None = None,
    spans: Mapping[str, dict[str, int]] | None = None,
) -> Path:
    """A folder like that of the words stage, with a shard per matrix of counts."""
    parts = [csr_matrix(np.asarray(part, np.float32)) for part in counts]
    stored_vectors(folder, *parts, stage="words", kind="words", ids=ids)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words))
    jsonl.write(folder / "spans.jsonl", [{"text": text, "words": of} for text, of in (spans or {}).items()])
    return folder


def vectors_of(folder: Path) -> dict[str, dict[str, int]]:
    """JSON vectors: document -> term -> impact."""
    return {line["id"]: line["vector"] for path in sorted(folder.glob("*.jsonl")) for line in json_lines(path)}


def words_of(vector: Mapping[str, int]) -> dict[str, int]:
    """The BM25 part of a vector."""
    return {term.removeprefix(WORD): impact for term, impact in vector.items() if term.startswith(WORD)}


def matrix_of(vectors: Vectors) -> np.ndarray:
    """All vectors (documents, width)."""
    matrices: list[Any] = [shard.vectors for shard in vectors]
    return np.vstack([matrix if isinstance(matrix, np.ndarray) else matrix.toarray() for matrix in matrices])


@contextmanager
def interrupted_after(writes: int) -> Iterator[None]:
    """Simulate Ctrl-C after this number of shards is written."""
    written, write_shard = 0, shards.write_shard

    def write(*args: Any, **options: Any) -> shards.ShardStats:
        nonlocal written
        stats = write_shard(*args, **options)
        written += 1
        if written == writes:
            raise KeyboardInterrupt
        return stats

    with pytest.MonkeyPatch.context() as patch:
        for module in (shards, encode):
            patch.setattr(module, "write_shard", write)
        yield
