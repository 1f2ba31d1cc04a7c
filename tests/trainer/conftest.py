"""Shared by the tests of the trainer."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.settings import SpladeSettings
from tests.conftest import corpus_of


@pytest.fixture(scope="session")
def steady(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """splade-tiny without dropout, so that a step depends only on its batch."""
    folder = Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("steady") / "checkpoint"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def triples(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 lines with margins: first words of a document, the document, and two others."""
    texts = [document.contents for document in BeirFolder(tiny, "tiny").documents() if document.contents.strip()]
    path = tmp_path_factory.mktemp("triples") / "triples.jsonl"
    with path.open("w") as file:
        for i, text in enumerate(texts):
            for width in (4, 8):
                others = [texts[(i + 1) % len(texts)], texts[(i + 5) % len(texts)]]
                line = {"query": " ".join(text.split()[:width]), "positive": text, "negatives": others}
                file.write(json.dumps(line | {"margins": [8.0, 6.0]}) + "\n")
    return path


@pytest.fixture(scope="session")
def splade_settings(triples: Path, steady: Path) -> Callable[..., SpladeSettings]:
    """Settings of a short, exactly repeatable SPLADE training; the first checkpoint after a step."""
    defaults: dict[str, Any] = {
        "data": triples, "base": str(steady), "batch_size": 4, "max_steps": 12, "learning_rate": 1e-4,
        "warmup": 0.15, "lambda_q": 0.01, "lambda_d": 0.01, "log_steps": 3, "save_seconds": 0.0,
        "precision": "float32", "device": "cpu",
    }  # fmt: skip

    def settings(output: Path, **changes: Any) -> SpladeSettings:
        return SpladeSettings(**defaults | {"output": output} | changes)

    return settings


@pytest.fixture(scope="session")
def generator(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small T5 with splade-tiny's tokenizer and random weights."""
    folder = tmp_path_factory.mktemp("generator")
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters of a checkpoint."""
    return load_file(folder / "model.safetensors")


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
    corpus_of(folder, texts)
    data = adaptation_data(folder, folder / "vectors", dense=dense)
    return changed(data, collection={"passages": 12, "passage_overlap": 4})


@pytest.fixture(scope="session")
def with_dense(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptationData:
    """AdaptationData of the tiny collection with a dense encoder."""
    return adaptation_data(tiny, tmp_path_factory.mktemp("data") / "vectors", dense=True)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A collection whose documents are too short for pseudo queries."""
    corpus_of(folder := tmp_path / "short", {"1": "two words", "2": "more words"})
    return folder
