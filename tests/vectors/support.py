"""Words and impacts in the formats of the stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import jsonl
from cai_pyserini.models.tokenizer import WORD
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
