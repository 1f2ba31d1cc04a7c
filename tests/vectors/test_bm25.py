"""BM25 as vectors, compared with Lucene's scores and lengths."""

import random
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Collection
from cai_pyserini.core.config import Bm25Parameters
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes import words as stage
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.indexes.words import count_words
from cai_pyserini.vectors.bm25 import Bm25, stored_lengths
from tests.conftest import corpus_of
from tests.indexes.stock import bm25

SETTINGS = [(0.9, 0.4), (1.2, 0.75), (0.0, 0.4), (2.0, 0.0), (3.0, 1.0)]
LENGTHS = [*range(1, 60, 3), 39, 40, 41, 42, 43, 100, 255, 256, 511, 1000, 2047, 3000]


@pytest.mark.parametrize(
    "length, stored",
    [
        (0, 0),
        (1, 1),
        (23, 23),
        (40, 40),
        (41, 40),  # from here on, every other length
        (42, 42),
        (57, 56),  # every fourth
        (1000, 984),  # 24 + 15 · 64
        (3000, 2840),  # 24 + 11 · 256
    ],
)
def test_stored_lengths_by_hand(length: int, stored: int) -> None:
    assert stored_lengths(np.array([length])).tolist() == [stored]


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_stored_lengths_equal_lucenes() -> None:
    lucene = jvm.java_class("org.apache.lucene.util.SmallFloat")
    lengths = [*range(300), *(base + d for base in (1 << i for i in range(9, 31)) for d in (-1, 0, 23, 24, 25))]
    expected = [lucene.byte4ToInt(lucene.intToByte4(length)) for length in lengths]
    assert stored_lengths(np.array(lengths)).tolist() == expected


def random_collection(folder: Path, lengths: list[int]) -> Collection:
    """Documents of random words with these lengths, plus a blank one and one of stopwords."""
    draw = random.Random(1)
    vocabulary = [f"w{i}" for i in range(50)]
    texts = [" ".join(draw.choices(vocabulary, k=length)) for length in lengths]
    return corpus_of(folder, {str(number): text for number, text in enumerate([*texts, " ", "the of a"])})


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("long", [False, True])
def test_scores_equal_lucenes(long: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SHARD", 5)
    collection = random_collection(tmp_path / "long", LENGTHS) if long else BeirFolder(tiny, "tiny")
    queries = ["w1", "w2 w2 w3 w3 w3 w17 absent"] if long else list(collection.topics("test").values())
    words, index = count_words(collection, tmp_path / "words"), index_bm25(collection, tmp_path / "index", 1)
    analyze = Analyzer()
    for k1, b in SETTINGS:
        weights = Bm25(words, Bm25Parameters(k1, b))
        columns = {word: column for column, word in enumerate(weights.words)}
        for query, expected in zip(queries, bm25(index, queries, k1, b), strict=True):
            counts = np.zeros(len(columns))
            for word in analyze(query):
                if word in columns:
                    counts[columns[word]] += 1
            products = ((shard.ids, (shard.vectors @ counts).tolist()) for shard in weights.shards())
            scores = {id: score for ids, row in products for id, score in zip(ids, row, strict=True)}
            found = {id: score for id, score in scores.items() if score > 0}
            assert found == pytest.approx(dict(expected), abs=1e-4), (k1, b, query)
            assert found or query == "heart attack while running"
