"""What has changed, and how far: numbers worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.update import compare, idf_drift, idf_line, lines
from cai_pyserini.vectors.shards import shard_path, text_keys, write_shard
from tests.conftest import corpus_of, stored_idf, stored_vectors
from tests.experiments.conftest import change


def test_documents_are_known_by_their_ids_and_texts(broken: Path, tmp_path: Path) -> None:
    """The faults: a document that only moved counts as changed; one that was replaced counts as unchanged."""
    documents = list(BeirFolder(broken, "tiny").documents())
    ids = [document.id for document in documents]
    vectors = stored_vectors(
        tmp_path / "vectors", np.eye(5, dtype=np.float32), np.eye(7, 5, dtype=np.float32), ids=[ids[:5], ids[5:]]
    )
    with pytest.raises(CaiError, match="is broken or of other vectors"):
        compare(vectors, BeirFolder(broken, "tiny"))  # has no keys
    for number, part in enumerate((documents[:5], documents[5:])):
        shard = vectors.shard(number)._replace(keys=text_keys([document.contents for document in part]))
        write_shard(shard_path(vectors.folder, number), shard, vectors.manifest.digest, 0.5)
    assert compare(vectors, BeirFolder(broken, "tiny")) == (12, 0, 0, 0, None)
    change(broken)
    found = compare(vectors, BeirFolder(broken, "tiny"))
    assert found == (12, 1, 1, 1, None) and str(found) == "added 1, changed 1, deleted 1 of 12 documents"


def test_changes_of_passages_are_those_of_documents(tmp_path: Path) -> None:
    """The fault: a line more in one document counts as as many changed documents as it has passages."""
    texts = {"a": "one two three four five six", "b": "seven eight", "c": "nine ten eleven"}
    before = list(corpus_of(tmp_path / "a", texts).in_passages(2, 0).documents())
    vectors = stored_vectors(tmp_path / "vectors", np.eye(6, dtype=np.float32), ids=[[each.id for each in before]])
    shard = vectors.shard(0)._replace(keys=text_keys([each.contents for each in before]))
    write_shard(shard_path(vectors.folder, 0), shard, vectors.manifest.digest, 0.5)
    after = corpus_of(tmp_path / "b", {"a": "zero one two three four five six", "b": "seven eight", "d": "new"})
    assert str(compare(vectors, after.in_passages(2, 0))) == (
        "added 1, changed 1, deleted 1 of 3 documents; 4 new passages"
    )


def test_idf_that_moves(tmp_path: Path) -> None:
    """Four tokens: one as frequent as before, one twice as, one that is rare, and one that is new."""
    before = stored_idf(tmp_path / "before", 100, [50, 10, 1, 0])
    after = stored_idf(tmp_path / "after", 200, [100, 42, 1, 6])
    drift = idf_drift(before, after, ["same", "twice", "rare", "new"])
    twice, rare = np.log(10) - np.log(200 / 42), np.log(2)
    assert drift["mean_difference"] == pytest.approx((twice + rare) / 3)
    assert drift["doubled_or_halved"] == pytest.approx(42 / 149)
    assert drift["moved_most"] == {"twice": [2.3026, 1.5606]}
    assert drift["length"] == [0.61, 0.745]
    assert idf_line(drift) == (
        "since the earlier run, IDF has moved by 0.4784 in the mean, by ln 2 or more for 28.2% of the tokens in "
        "documents; most: twice 2.30 → 1.56; documents have 0.6 → 0.7 different tokens"
    )


def test_adapting_again_is_proposed_when_many_documents_are_new() -> None:
    report = {
        "documents": None,
        "nonzeros_per_document": [None, None],
        "alpha": {"joint-splade": [{"bow": 1.5}, {"bow": 2.0}]},
        "decision": ["splade-auto: idf, because …"],
    }
    said = {}
    for new in (None, 0.1, 0.3, 1.4):
        what, alpha, auto, said[new] = lines(report | {"adaptation": {"created": "2026-01-02T03:04:05Z", "new": new}})
        assert auto == "splade-auto: idf, because …"
        assert what == "the collection has changed" and alpha == "alpha of joint-splade: 1.5 → 2 (bow queries)"
    stays = "the encoder stays as adapted on 2026-01-02; new or changed since: "
    again = "; by the rule of thumb (above 20%), adapt it again: `cai-pyserini run --adapt`"
    assert said[None] == f"{stays}an unknown share of the documents" and said[0.1] == f"{stays}10.0% of the documents"
    assert (
        said[0.3] == f"{stays}30.0% of the documents{again}" and said[1.4] == f"{stays}100.0% of the documents{again}"
    )
