"""Rerankers of every kind score like their own libraries; other models are refused."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.cross_encoder.modules import LogitScore, Transformer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.cross_encoder import CrossEncoder
from tests.conftest import damaged

PAIRS = [
    ("bladder infection", "Recurrent infections of the bladder are treated with nitrofurantoin."),
    ("a", "Salt"),
    ("what lowers high blood pressure?", "Salt restriction lowers blood pressure. " * 120),
    ("fever", ""),
    *((f"what causes fever {'and cough ' * (n % 4)}?", "Infections cause fever. " * n) for n in range(1, 16)),
]
CHAT = (
    "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} [SEP] {% endfor %}"
    "{% if add_generation_prompt %}answer{% endif %}"
)
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(checkpoint))


def saved(model: PreTrainedModel, tokenizer: Any, folder: Path) -> Path:
    """A checkpoint with large random weights, so that scores differ."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def classifier(name: str, tokenizer: Any, folder: Path) -> Path:
    config, model = {
        "roberta": (RobertaConfig, RobertaForSequenceClassification),
        "modernbert": (ModernBertConfig, ModernBertForSequenceClassification),
    }[name]
    positions = {"roberta": 514, "modernbert": 2048}[name]
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    more = {"max_position_embeddings": positions, "num_labels": 1, "vocab_size": len(tokenizer)}
    if name == "modernbert":
        tokenizer = AutoTokenizer.from_pretrained(tokenizer.name_or_path, model_max_length=positions)
    return saved(model(config(**SIZES, **special, **more)), tokenizer, folder)


def causal(tokenizer: Any, folder: Path) -> Path:
    config = Qwen3Config(
        **SIZES, vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=16, max_position_embeddings=1024
    )
    return saved(Qwen3ForCausalLM(config), tokenizer, folder)


def reranker(base: Path, folder: Path, template: str | None = None, **settings: Any) -> Path:
    """A folder saved by CrossEncoder."""
    if json.loads((base / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]:
        more = {"processor_kwargs": {"chat_template": template}} if template else {}
        first = Transformer(str(base), transformer_task="text-generation", **more)
        yes, no = first.tokenizer.convert_tokens_to_ids(["fever", "cough"])
        model = sentence_transformers.CrossEncoder(modules=[first, LogitScore(yes, no)], **settings)
    else:
        model = sentence_transformers.CrossEncoder(str(base), **settings)
    model.save_pretrained(str(folder))
    return folder


def with_config(base: Path, folder: Path, **settings: Any) -> Path:
    shutil.copytree(base, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


IDENTITY = "torch.nn.modules.linear.Identity"
KINDS: dict[str, Callable[[Path, Any, Path], Path]] = {
    "bare": lambda b, t, f: b,
    "older settings": lambda b, t, f: with_config(b, f / "x", sentence_transformers={"activation_fn": IDENTITY}),
    "oldest settings": lambda b, t, f: with_config(b, f / "x", sbert_ce_default_activation_function=IDENTITY),
    "identity": lambda b, t, f: reranker(b, f, activation_fn=torch.nn.Identity()),
    "prompt": lambda b, t, f: reranker(
        b, f, prompts={"web": "find: "}, default_prompt_name="web", activation_fn=torch.nn.Identity()
    ),
    "length": lambda b, t, f: reranker(b, f, max_length=40),
    "roberta": lambda b, t, f: classifier("roberta", t, f),
    "modernbert": lambda b, t, f: classifier("modernbert", t, f),
    "language model": lambda b, t, f: reranker(causal(t, f / "x"), f / "y", activation_fn=torch.nn.Identity()),
    "chat": lambda b, t, f: reranker(causal(t, f / "x"), f / "y", CHAT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_sentence_transformers(
    kind: str, cross_encoder: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cai_pyserini.models.cross_encoder.PAIR_TOKENS", 16)  # in several batches
    folder = KINDS[kind](cross_encoder, tokenizer, tmp_path)
    expected = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS, batch_size=8)
    counted: list[int] = []
    found = CrossEncoder(folder, "cpu", "float32").score(*zip(*PAIRS, strict=True), counted.append)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5) and len(set(expected.round(4))) > 9
    assert sum(counted) == len(PAIRS)


def test_logits_are_not_squashed(cross_encoder: Path) -> None:
    """A teacher's margins of up to 1 would teach nothing."""
    queries, documents = zip(*PAIRS[:3], strict=True)
    scores, logits = (
        torch.tensor(CrossEncoder(cross_encoder, "cpu", "float32", activated).score(queries, documents))
        for activated in (True, False)
    )
    assert scores.tolist() == pytest.approx(logits.sigmoid().tolist())


def test_scores_in_bfloat16_are_not_rounded_to_it(cross_encoder: Path) -> None:
    """With 8 bits, documents of almost equal scores would be ties."""
    model = CrossEncoder(cross_encoder, "cpu", "bfloat16", activated=False)
    scores = torch.tensor(model.score(*zip(*PAIRS, strict=True)))
    assert (scores.bfloat16() != scores).float().mean() > 0.9


def test_a_score_that_is_not_finite_is_refused(cross_encoder: Path, tmp_path: Path) -> None:
    model = CrossEncoder(damaged(cross_encoder, tmp_path / "x", "position_embeddings.weight", 200, math.nan), "cpu")
    queries, documents = zip(*PAIRS[:3], strict=True)
    assert len(model.score(queries[:2], documents[:2])) == 2
    with pytest.raises(CaiError, match=r"the score of 'what lowers high blood pressure.' and 'd3' has NaN or infinity"):
        model.score(queries, documents, names=["d1", "d2", "d3"])


def labels(bert: Path, tokenizer: Any, folder: Path) -> Path:
    base = load_checkpoint("splade-tiny")
    return saved(AutoModelForSequenceClassification.from_pretrained(str(base), num_labels=3), tokenizer, folder)


def with_dense(bert: Path, tokenizer: Any, folder: Path) -> Path:
    first = Transformer(str(bert), transformer_task="sequence-classification")
    modules = [first, Dense(1, 1, module_input_name="scores", module_output_name="scores")]
    sentence_transformers.CrossEncoder(modules=modules).save_pretrained(str(folder))
    return folder


def gpt2(bert: Path, tokenizer: Any, folder: Path) -> Path:
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=512, n_embd=32, n_layer=1, n_head=2)
    first = Transformer(str(saved(GPT2LMHeadModel(config), tokenizer, folder)), transformer_task="text-generation")
    sentence_transformers.CrossEncoder(modules=[first, LogitScore(7)]).save_pretrained(str(folder / "x"))
    return folder / "x"


def chatless(bert: Path, tokenizer: Any, folder: Path) -> Path:
    return reranker(causal(tokenizer, folder / "x"), folder / "y", "{% for m in messages %}{{ 'x' }}{% endfor %}")


REFUSED: dict[str, tuple[Callable[[Path, Any, Path], Path], str]] = {
    "SPLADE": (lambda b, t, f: load_checkpoint("splade-tiny"), "is a BertForMaskedLM, not a reranker"),
    "dense": (lambda b, t, f: load_checkpoint("minilm"), "is a SentenceTransformer, not a reranker"),
    "several labels": (labels, "has 3 labels; a reranker has one, the score"),
    "language model": (lambda b, t, f: causal(t, f), "is a language model: save it as a reranker"),
    "positions": (gpt2, "its scores would depend on the batch"),
    "template": (chatless, "cannot carry a 'query'/'document' pair"),
    "activation": (
        lambda b, t, f: with_config(b, f / "x", sbert_ce_default_activation_function="os.getcwd"),
        "activation function 'os.getcwd' is not one of Identity, Sigmoid, Tanh",
    ),
    "module": (with_dense, r"modules\.json: .*Dense is not one of Transformer, LogitScore"),
    "head": (lambda b, t, f: without_score(b, t, f), "a reranker is a Transformer, with LogitScore if that is causal"),
    "remote code": (
        lambda b, t, f: with_config(b, f / "x", model_type="own", auto_map={"AutoConfig": "code.Config"}),
        r"cannot be read as a reranker \(The repository .* contains custom code",
    ),
}


def without_score(bert: Path, tokenizer: Any, folder: Path) -> Path:
    made = reranker(causal(tokenizer, folder / "x"), folder / "y")
    modules = json.loads((made / "modules.json").read_text())
    (made / "modules.json").write_text(json.dumps(modules[:1]))
    return made


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_reranker_is_refused(kind: str, cross_encoder: Path, tokenizer: Any, tmp_path: Path) -> None:
    make, message = REFUSED[kind]
    folder = make(cross_encoder, tokenizer, tmp_path)
    with pytest.raises(CaiError, match=message) as error:
        CrossEncoder(folder, "cpu").score(["a query"], ["a document"])
    assert "\n" not in str(error.value)
