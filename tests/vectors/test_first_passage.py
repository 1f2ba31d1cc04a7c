"""First passages in the other passages of their documents."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.vectors.shards import Matrix, Shard, with_first_passage

IDS = ["a#0", "b#0", "b#1", "b#2", "b#3", "b#4", "c#0", "c#1", "c#2", "c#3", "c#4", "c#5", "c#6", "c#7", "c#8", "c#9"]
IDS += ["c#10", "d#0"]


@pytest.mark.parametrize("kind", [csr_matrix, np.asarray])
@pytest.mark.parametrize("size", [1, 2, 5, 18])
def test_passages_of_a_document_may_be_in_several_shards(kind: type[Matrix], size: int) -> None:
    vectors = np.random.default_rng(0).random((len(IDS), 4)).astype(np.float32)
    shards = [Shard(IDS[i : i + size], kind(vectors[i : i + size])) for i in range(0, len(IDS), size)]
    found = [with_first_passage(shard, reversed(shards[:i]), 0.5) for i, shard in enumerate(shards)]
    first = [IDS.index(f"{id[0]}#0") for id in IDS]
    mixed = np.vstack([csr_matrix(shard.vectors).toarray() for shard in found])
    np.testing.assert_allclose(mixed, (vectors + vectors[first] / 2) / 1.5, rtol=1e-6)
    assert [id for shard in found for id in shard.ids] == IDS and found[0].vectors.dtype == np.float32
    assert with_first_passage(shards[-1], shards, 0.0) is shards[-1]
