"""Shared by the tests of adaptation."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.trainer.adapt_material import AdaptationData
from tests.trainer.conftest import triples as triples


def adaptation_data(
    collection: Path, folder: Path, queries: int = 100, seed: int = 1, dense: bool = False
) -> AdaptationData:
    """AdaptationData with splade-tiny, and with minilm if `dense`, whose vectors are in a folder."""
    teacher = load_encoder("minilm") if dense else None
    config = load_index_config(str(collection))
    return AdaptationData(config, load_encoder("splade-tiny"), teacher, folder, queries, seed, "cpu")


def changed(
    data: AdaptationData, collection: dict[str, Any] | None = None, encoder: dict[str, Any] | None = None
) -> AdaptationData:
    """The same data with other settings of its collection, and of its SPLADE encoder."""
    config, splade = data.collection.replace(**collection or {}), data.splade.replace(**encoder or {})
    return replace(data, collection=config, splade=splade)


def in_passages(folder: Path, dense: bool = False) -> AdaptationData:
    """AdaptationData of eight documents of 36 words, and almost equal copies c0 to c3 of the first four, in passages of
    12 words that share 4."""
    words = ["".join(syllables) for syllables in product(*[("ka", "lo", "mi", "ru", "ta", "ne", "so", "vi")] * 3)]
    texts = {f"d{number}": " ".join(words[36 * number : 36 * number + 36]) for number in range(8)}
    texts |= {f"c{number}": texts[f"d{number}"].title().rpartition(" ")[0] + ", again." for number in range(4)}
    jsonl.write(folder / "corpus.jsonl", ({"_id": id, "text": text} for id, text in texts.items()))
    data = adaptation_data(folder, folder / "vectors", dense=dense)
    return changed(data, collection={"passages": 12, "passage_overlap": 4})


@pytest.fixture(scope="session")
def with_dense(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptationData:
    """AdaptationData of the tiny collection with a dense encoder."""
    return adaptation_data(tiny, tmp_path_factory.mktemp("data") / "vectors", dense=True)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A collection whose documents are too short for pseudo queries."""
    (tmp_path / "short").mkdir()
    lines = '{"_id": "1", "text": "two words"}\n{"_id": "2", "text": "more words"}\n'
    (tmp_path / "short" / "corpus.jsonl").write_text(lines)
    return tmp_path / "short"
