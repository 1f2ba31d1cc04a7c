"""Train SPLADE and dense retrievers on queries with positive and negative documents (Iida & Okazaki 2022, Appendices A
and G).

The ranking loss L_ranking is Margin-MSE with the margins delta^ of a teacher (Hofstätter et al. 2020, "Improving
Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation"), or in-batch negatives (MNRL) for
labelled pairs. SPLADE adds the FLOPS regularizer:

    Margin-MSE:  mean over i of (delta_i - delta^_i)^2,  delta = score of the positive - score of the negative
    MNRL:        cross-entropy of each query's own positive among all documents of the batch
    FLOPS:       sum over v of (mean over texts of |w_v|)^2

    L = L_ranking + lambda_Q L_FLOPS(queries) + lambda_D L_FLOPS(documents)

The lambdas are constant, as in the paper, or rise quadratically over a fraction `flops_warmup` of the steps (Formal et
al. 2021). IDF weights the documents in the score, but not in the regularizer.

In dense retrieval, IDF weights the token vectors in the mean (the paper's CAI for dense retrieval). A score is a cosine
times `scale`, because a teacher's margins go far beyond 2.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import TrainingArguments

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest, require_positions, require_safetensors
from cai_pyserini.models.dense import load_transformer, pooled
from cai_pyserini.models.folder import model_folder, require_standard
from cai_pyserini.models.head import splade_weights
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.splade import bypass_decoder
from cai_pyserini.models.tokenizer import Tokenizer, load_tokenizer
from cai_pyserini.trainer import evaluation, training
from cai_pyserini.trainer.examples import Collator, examples, in_epoch
from cai_pyserini.trainer.settings import DenseSettings, Loss, SpladeSettings, inherited, recorded

CHUNK_TOKENS = {"cpu": 4_608, "cuda": 65_536}  # per forward pass
EAGER_TOKENS = 128  # document length up to which plain attention trains faster than fused attention on a CPU
TERM_MULTIPLE = 1024  # the number of computed terms is a multiple of it
ENCODED = 256  # documents that are encoded together in an evaluation
DEFAULT_LAMBDAS = {"margin-mse": (0.08, 0.1), "in-batch": (0.0006, 0.0008)}  # the paper's, for queries and documents

type Batch = dict[str, Any]  # from Collator
type EncodeChunk = Callable[[dict[str, torch.Tensor]], torch.Tensor]  # a chunk of tokenized texts -> their vectors


def base_encoder(settings: SpladeSettings | DenseSettings) -> EncoderConfig:
    """The encoder to train, with the maximum lengths of the training. Raises CaiError for lengths beyond what it reads,
    and for an encoder whose vectors a training cannot compute."""
    encoder = load_encoder(settings.base)
    encoder = require_standard(
        encoder.replace(kind="dense") if isinstance(settings, DenseSettings) else encoder, "a training"
    )
    if settings.max_document_length:
        encoder = encoder.replace(max_document_length=settings.max_document_length)
    lengths = {"max_document_length": encoder.max_document_length, "max_query_length": encoder.max_query_length}
    require_safetensors(checkpoint := model_folder(encoder))
    require_positions(checkpoint, lengths)
    return encoder


def train(settings: SpladeSettings | DenseSettings) -> Path:
    """Train a checkpoint, and write it. Raises CaiError for a missing file or checkpoint, and for maximum lengths
    beyond what the checkpoint reads."""
    encoder = base_encoder(settings)
    checkpoint = model_folder(encoder)
    name = "dense" if isinstance(settings, DenseSettings) else "splade"

    def write(arguments: TrainingArguments) -> artifact.Stats:
        margins, negatives = settings.loss == "margin-mse", settings.negatives
        held_out, sample = None, evaluation.judged_sample(settings)
        if settings.eval_data or sample:
            lines = list(examples(settings.eval_data, margins, negatives)) if settings.eval_data else []
            held_out = training.Epochs(lines, partial(in_epoch, negatives=negatives))
        rows = training.dataset(examples, arguments, path=settings.data, margins=margins, negatives=negatives)
        data = training.Epochs(rows, partial(in_epoch, negatives=negatives))
        if min(len(data), settings.batch_size) * (1 + negatives) == 1:
            raise CaiError("loss in-batch: a batch has only one document; use more examples, or negatives")
        tokenizer, idf = load_tokenizer(checkpoint), None
        if settings.idf:
            idf = Idf.load(settings.idf, Tokenizer(checkpoint).vocabulary).weights(encoder.idf_power)
        chunk = max(1, CHUNK_TOKENS[arguments.device.type] // encoder.max_document_length)
        collator = Collator(tokenizer, encoder.max_query_length, encoder.max_document_length, chunk)
        kind: Any = DenseTrainer if name == "dense" else SpladeTrainer
        trainer: PairTrainer = kind(checkpoint, idf, settings, arguments, collator, data, held_out)
        if sample:
            trainer.ndcg = partial(sample.ndcg, trainer.scores)
        return training.run(name, trainer, settings, encoder, tokenizer)

    inputs = {
        "data": artifact.file_digest(settings.data),
        "checkpoint": checkpoint_digest(checkpoint),
        "encoder": inherited(encoder),
        **evaluation.identities(settings),
    }
    recipe = artifact.recipe(f"trainer {name}", inputs, **recorded(settings, "data", "base"))
    return training.make(settings, recipe, write)


def margin_mse(queries: torch.Tensor, documents: torch.Tensor, margins: torch.Tensor) -> torch.Tensor:
    """Margin-MSE of dot products: queries (texts, dimensions), documents (texts, 1 + n, dimensions) with the positive
    first, and the teacher's margins (texts, n)."""
    scores = (documents * queries[:, None]).sum(-1)
    return F.mse_loss(scores[:, :1] - scores[:, 1:], margins)


def in_batch_negatives(queries: torch.Tensor, documents: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
    """MultipleNegativesRankingLoss (Henderson et al. 2017) of dot products.

    `documents` (texts, 1 + n, dimensions) has the positive of each query (texts, dimensions) first. Negatives are all
    other documents of the batch, except those that share one of the `document_ids` (texts, 1 + n, ids) with the
    positive.
    """
    positives = torch.arange(len(queries), device=queries.device) * documents.shape[1]
    copies = (document_ids[:, :1] == document_ids.flatten(0, 1)).any(-1)
    copies[torch.arange(len(queries)), positives] = False
    scores = (queries @ documents.flatten(0, 1).T).masked_fill(copies, -torch.inf)
    return F.cross_entropy(scores, positives)


def ranking_loss(name: Loss, queries: torch.Tensor, documents: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The ranking loss `name` of the vectors of a `batch`, with the labels in it."""
    if name == "margin-mse":
        return margin_mse(queries, documents, batch["margins"])
    return in_batch_negatives(queries, documents, batch["document_ids"])


def flops(weights: torch.Tensor, multiplicity: torch.Tensor | float = 1.0) -> torch.Tensor:
    """The FLOPS regularizer (Paria et al. 2020) of non-negative weights (texts, vocabulary), or of a sample of columns
    that each represent `multiplicity` (columns,) columns."""
    return (weights.mean(0).square() * multiplicity).sum()


def _by_query(documents: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Group the vectors of a batch's documents by query: (queries, 1 + negatives, dimensions)."""
    return documents.unflatten(0, (-1, len(queries))).transpose(0, 1)


def _vectors(texts: dict[str, Any], encode: EncodeChunk) -> torch.Tensor:
    """Encode one side of a batch: (texts, dimensions)."""
    return torch.cat([encode(chunk) for chunk in texts["chunks"]])[texts["positions"]]


class PairTrainer(training.Trainer):
    """What the trainings of SPLADE and of dense retrievers share."""

    _idf: torch.Tensor | None = None  # (vocabulary,), for the documents in the score of sparse vectors

    def vectors(self, model: Any, texts: dict[str, Any]) -> torch.Tensor:
        """Encode one side of a batch: (texts, dimensions)."""
        raise NotImplementedError

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16)  # the head, too

    def ranking_loss(self, name: Loss, queries: torch.Tensor, documents: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The ranking loss of a batch, which is logged beside the loss of equal scores."""
        loss = ranking_loss(name, queries, documents, batch)
        zeros = torch.zeros_like(queries[..., :1]), torch.zeros_like(documents[..., :1])
        self.note({"ranking_loss": loss, "chance_loss": ranking_loss(name, zeros[0], zeros[1], batch)})
        return loss

    @torch.no_grad()
    def scores(self, queries: list[str], documents: list[str]) -> np.ndarray:
        """Score texts with the model in training: (queries, documents)."""

        def encode(texts: Sequence[str], length: int) -> torch.Tensor:
            with self.autocast():
                return self.vectors(self.model, self._prepare_inputs(self.data_collator.tokenize(texts, length)))

        lengths: Collator = self.data_collator
        encoded = encode(queries, lengths.max_query_length).float()
        weighted = encoded if self._idf is None else encoded * self._idf.to(encoded)
        parts = (encode(texts, lengths.max_document_length).float() for texts in batched(documents, ENCODED))
        return torch.cat([weighted @ part.T for part in parts], 1).numpy(force=True)


class SpladeTrainer(PairTrainer):
    """Train a checkpoint's masked language model; `idf` (vocabulary,) weights documents."""

    def __init__(self, checkpoint: Path, idf: np.ndarray | None, settings: SpladeSettings, *more: Any):
        model = training.load_model(checkpoint, settings.dropout)
        super().__init__(model, *more)
        if self.args.device.type == "cpu" and self.data_collator.max_document_length <= EAGER_TOKENS:
            model.set_attn_implementation("eager")
        self._settings = settings
        self._decoder = bypass_decoder(model)
        self._idf = None
        if idf is not None:
            self._idf = torch.ones(len(self._decoder.weight))  # may be padded beyond the vocabulary
            self._idf[: len(idf)] = torch.from_numpy(idf)
        default_q, default_d = DEFAULT_LAMBDAS[settings.loss]
        self._lambda_q = default_q if settings.lambda_q is None else settings.lambda_q
        self._lambda_d = default_d if settings.lambda_d is None else settings.lambda_d

    def compute_loss(self, model: Any, inputs: Batch, *_: Any, **__: Any) -> torch.Tensor:
        with self.autocast():
            queries = self.vectors(model, inputs["queries"])
            columns, multiplicity = self._columns(queries)
            documents = _by_query(self.vectors(model, inputs["documents"], columns), queries)
        scored = documents if self._idf is None else documents * self._idf.to(documents)[columns]
        loss = self.ranking_loss(self._settings.loss, queries[:, columns], scored, inputs)
        if not model.training:
            return loss
        terms = {
            "flops_q_loss": flops(queries),
            "flops_d_loss": flops(documents.flatten(0, 1), multiplicity),
            "queries_active": (queries > 0).sum(-1).float().mean(),
            "documents_active": ((documents > 0) * multiplicity).sum(-1).mean(),
        }
        self.note(terms)
        warmup = self._settings.flops_warmup * self.args.max_steps
        rise = min(1.0, self.state.global_step / warmup) ** 2 if warmup else 1.0
        regularizer = self._lambda_q * terms["flops_q_loss"] + self._lambda_d * terms["flops_d_loss"]
        return loss + rise * regularizer

    def _columns(self, queries: torch.Tensor) -> tuple[torch.Tensor | slice, torch.Tensor]:
        """The columns of document vectors that a step computes, and the number of columns each represents in FLOPS.

        With the setting `sampled_terms`, these are the terms of the batch's queries (texts, vocabulary), which
        determine the scores, and a random sample of the others.
        """
        size, count = queries.shape[1], self._settings.sampled_terms
        used = (queries > 0).any(0)
        terms, others = used.nonzero().ravel(), (~used).nonzero().ravel()
        if not self.model.training or not count or count >= len(others):
            return slice(None), queries.new_ones(size)
        # Rounded up, because kernels are compiled for every new shape.
        total = -(-(len(terms) + count) // TERM_MULTIPLE) * TERM_MULTIPLE
        sample = others[torch.randperm(len(others))[: total - len(terms)].to(others.device)]
        weight = queries.new_full((len(sample),), len(others) / len(sample))
        return torch.cat([terms, sample]), torch.cat([queries.new_ones(len(terms)), weight])

    def vectors(self, model: Any, texts: dict[str, Any], columns: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """Encode these columns of the SPLADE vectors of one side of a batch: (texts, columns)."""
        decoder = self._decoder
        whole_bias = decoder.weight.new_zeros(len(decoder.weight)) if decoder.bias is None else decoder.bias
        weight, bias = decoder.weight[columns], whole_bias[columns]

        def encode(chunk: dict[str, torch.Tensor]) -> torch.Tensor:
            return splade_weights(model(**chunk).logits, chunk["attention_mask"].bool(), weight, bias)

        return _vectors(texts, encode)

    def log(self, logs: dict[str, float], *more: Any) -> None:
        last = {name: float(values[-1]) for name, values in self._terms.items()}
        super().log(logs, *more)
        if last and not self._terms:
            warm = self.state.global_step > self.args.get_warmup_steps(self.args.max_steps)
            documents, queries = last["documents_active"], last["queries_active"]
            check_sparsity(self.state.global_step, documents, queries, len(self._decoder.weight), warm)


def check_sparsity(step: int, documents: float, queries: float, vocabulary: int, warm: bool) -> None:
    """Raise CaiError if vectors have become empty, or are not sparse after the warm-up (`warm`). `documents` and
    `queries` are mean numbers of active dimensions in the batch of a step."""
    for side, active in (("documents", documents), ("queries", queries)):
        if active < 1:
            raise CaiError(
                f"step {step:,}: the {side} have {active:.1f} active dimensions: collapse. Lower the lambdas or "
                "learning_rate, or let the lambdas rise slowly with flops_warmup"
            )
        if warm and active > vocabulary / 2:
            raise CaiError(
                f"step {step:,}: the {side} have {active:,.0f} of {vocabulary:,} dimensions active: not sparse. Raise "
                "the lambdas, or shorten flops_warmup"
            )


class DenseTrainer(PairTrainer):
    """Train a checkpoint's transformer; `idf` (vocabulary,) weights the tokens in the mean."""

    def __init__(self, checkpoint: Path, idf: np.ndarray | None, settings: DenseSettings, *more: Any):
        super().__init__(training.rebuild(load_transformer(checkpoint), settings.dropout), *more)
        weights = torch.ones(self.model.config.vocab_size) if idf is None else torch.from_numpy(idf).float()
        self._token_weights = weights.to(self.args.device)
        self._settings = settings

    def compute_loss(self, model: Any, inputs: Batch, *_: Any, **__: Any) -> torch.Tensor:
        with self.autocast():
            queries, documents = (self.vectors(model, inputs[side]) for side in ("queries", "documents"))
        scaled = self._settings.scale * queries
        return self.ranking_loss(self._settings.loss, scaled, _by_query(documents, queries), inputs)

    def vectors(self, model: Any, texts: dict[str, Any]) -> torch.Tensor:
        def encode(chunk: dict[str, torch.Tensor]) -> torch.Tensor:
            weights = self._token_weights[chunk["input_ids"]] * chunk["attention_mask"]
            return pooled(model(**chunk).last_hidden_state, weights)

        return _vectors(texts, encode)
