"""What an update has moved: IDF, the length of documents, and the balance of joint indexes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import batched
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.idf import Idf
from cai_pyserini.vectors.shards import SHARD, Vectors, document_keys, text_keys

MOST = 10  # tokens shown
FEWEST = 5  # documents that a shown token is in; the IDF of rarer ones moves by chance
DOUBLED = math.log(2)  # how far IDF moves if twice as large a share of the documents has a token, or half of it
MANY = 0.2  # the share of new documents from which on adapting again is proposed


class Changes(NamedTuple):
    """How a collection differs from that of a run, in documents (or passages)."""

    before: int
    added: int
    changed: int
    deleted: int

    def __str__(self) -> str:
        return f"added {self.added:,}, changed {self.changed:,}, deleted {self.deleted:,} of {self.before:,} documents"


def compare(vectors: Vectors, collection: Collection) -> Changes:
    """Compare a collection with the documents that vectors were made from, by ids and keys of texts. Raises CaiError
    for vectors without keys."""
    documents = progress(collection.documents(), collection.size, "compare")
    new = (([d.id for d in part], text_keys([d.contents for d in part])) for part in batched(documents, SHARD))
    (ids, keys), (new_ids, new_keys) = _table(document_keys(vectors)), _table(new)
    common, old, now = np.intersect1d(ids, new_ids, assume_unique=True, return_indices=True)
    changed = int((keys[old] != new_keys[now]).any(1).sum())
    return Changes(len(ids), len(new_ids) - len(common), changed, len(ids) - len(common))


def _table(parts: Iterable[tuple[Sequence[str], np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of ids (documents,) and the keys (documents, 16), in 24 bytes per document."""
    hashed = [(np.fromiter(map(hash, ids), np.int64, len(ids)), keys) for ids, keys in parts]
    return np.concatenate([ids for ids, _ in hashed]), np.concatenate([keys for _, keys in hashed])


def idf_drift(before: Path, after: Path, tokens: Sequence[str]) -> dict[str, Any]:
    """How far IDF has moved between two folders of the idf stage, for tokens that both collections have; and the length
    of documents in both, in different tokens."""
    old, new = Idf.load(before), Idf.load(after)
    both = (old.frequencies > 0) & (new.frequencies > 0)
    weights = old.weights(), new.weights()
    moved = np.where(both, np.abs(weights[1] - weights[0]), 0)
    shown = np.where(np.minimum(old.frequencies, new.frequencies) >= FEWEST, moved, 0)
    most = [number for number in np.argsort(-shown, kind="stable")[:MOST] if shown[number]]
    return {
        "mean_difference": float(moved.sum() / max(both.sum(), 1)),
        "doubled_or_halved": float(new.frequencies[moved > DOUBLED].sum() / new.frequencies.sum()),
        "moved_most": {tokens[number]: [round(float(each[number]), 4) for each in weights] for number in most},
        "length": [float(idf.frequencies.sum() / idf.documents) for idf in (old, new)],
    }


def idf_line(drift: Mapping[str, Any], since: str) -> str:
    most = ", ".join(f"{token} {old:.2f} → {new:.2f}" for token, (old, new) in drift["moved_most"].items())
    length, now = drift["length"]
    return (
        f"since {since}, IDF has moved by {drift['mean_difference']:.4f} in the mean, by ln 2 or more for "
        f"{drift['doubled_or_halved']:.1%} of the tokens in documents{'; most: ' * bool(most)}{most}; documents have "
        f"{length:.1f} → {now:.1f} different tokens"
    )
