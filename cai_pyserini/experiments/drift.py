"""Drift between two versions of a run: changed documents, and shifts of IDF and document length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import batched
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.idf import Idf
from cai_pyserini.vectors.shards import SHARD, Vectors, document_keys, text_keys

SHOWN_TOKENS = 10
MIN_DOCUMENTS = 5  # rarer tokens are not shown, as their IDF moves by chance
DOUBLED = math.log(2)  # shift of IDF if the share of documents with a token doubles or halves
READAPT_SHARE = 0.2  # share of new documents above which adapting again is suggested


class Changes(NamedTuple):
    """How a collection differs from a run's, in documents. `new_passages` are those whose text the run lacks; None if
    documents have no passages."""

    before: int
    added: int
    changed: int
    deleted: int
    new_passages: int | None = None

    def __str__(self) -> str:
        counts = (
            f"added {self.added:,}, changed {self.changed:,}, deleted {self.deleted:,} of {self.before:,} documents"
        )
        return counts if self.new_passages is None else f"{counts}; {self.new_passages:,} new passages"


def compare(vectors: Vectors, collection: Collection) -> Changes:
    """Compare a collection with the documents behind vectors, by ids and text keys. Raises CaiError for vectors without
    keys."""
    records = progress(collection.documents(), collection.size, "compare")
    current = (([r.id for r in part], text_keys([r.contents for r in part])) for part in batched(records, SHARD))
    (texts, keys), (new_texts, new_keys) = _table(document_keys(vectors), collection), _table(current, collection)
    (ids, sums), (new_ids, new_sums) = _by_document(texts, keys), _by_document(new_texts, new_keys)
    common, old, new = np.intersect1d(ids, new_ids, assume_unique=True, return_indices=True)
    changed = int((sums[old] != new_sums[new]).any(1).sum())
    is_new = np.isin(new_keys.view("S16"), keys.view("S16"), invert=True)
    passages = int(is_new.sum()) if len(texts) > len(ids) else None
    return Changes(len(ids), len(new_ids) - len(common), changed, len(ids) - len(common), passages)


def _table(parts: Iterable[tuple[Sequence[str], np.ndarray]], collection: Collection) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the documents' ids (texts,) and keys of texts (texts, 16), 24 bytes per document or passage."""
    hashed = [
        (np.fromiter((hash(collection.document_of(id)) for id in ids), np.int64, len(ids)), keys) for ids, keys in parts
    ]
    return np.concatenate([ids for ids, _ in hashed]), np.concatenate([keys for _, keys in hashed])


def _by_document(ids: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each document once, with the sum of the keys of its passages (documents, 2)."""
    documents, positions = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(documents), 2), np.uint64)
    np.add.at(sums, positions, keys.view(np.uint64))
    return documents, sums


def idf_drift(before: Path, after: Path, tokens: Sequence[str]) -> dict[str, Any]:
    """The shift of IDF between two folders of the idf stage, for tokens that occur in both collections, and the mean
    number of distinct tokens per document in both."""
    old, new = Idf.load(before), Idf.load(after)
    in_both = (old.frequencies > 0) & (new.frequencies > 0)
    weights = old.weights(), new.weights()
    shift = np.where(in_both, np.abs(weights[1] - weights[0]), 0)
    shown = np.where(np.minimum(old.frequencies, new.frequencies) >= MIN_DOCUMENTS, shift, 0)
    most = [number for number in np.argsort(-shown, kind="stable")[:SHOWN_TOKENS] if shown[number]]
    return {
        "mean_difference": float(shift.sum() / max(in_both.sum(), 1)),
        "doubled_or_halved": float(new.frequencies[shift > DOUBLED].sum() / new.frequencies.sum()),
        "moved_most": {tokens[number]: [round(float(idf[number]), 4) for idf in weights] for number in most},
        "length": [float(idf.frequencies.sum() / idf.documents) for idf in (old, new)],
    }


def idf_line(drift: Mapping[str, Any], since: str) -> str:
    shifts = ", ".join(f"{token} {old:.2f} → {new:.2f}" for token, (old, new) in drift["moved_most"].items())
    most = f"; most: {shifts}" if shifts else ""
    old_length, new_length = drift["length"]
    return (
        f"since {since}, IDF has moved by {drift['mean_difference']:.4f} in the mean, by ln 2 or more for "
        f"{drift['doubled_or_halved']:.1%} of the tokens in documents{most}; documents have "
        f"{old_length:.1f} → {new_length:.1f} different tokens"
    )
