"""SPLADE training: Margin-MSE with a teacher's margins, or in-batch negatives for labelled pairs, and FLOPS.

    L = L_ranking + lambda_Q L_FLOPS(queries) + lambda_D L_FLOPS(documents)        (Iida & Okazaki 2022, Appendix A)

Margin-MSE is that of Hofstätter et al. 2020. The lambdas are constant, as in the paper, or rise quadratically over a
fraction `flops_warmup` of the steps (Formal et al. 2021). IDF weights the documents in the score, but not in the
regularizer.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainingArguments

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.head import splade_weights
from cai_pyserini.models.splade import bypass_decoder
from cai_pyserini.trainer import loss, training
from cai_pyserini.trainer.examples import Collator, by_query, encoded
from cai_pyserini.trainer.settings import SpladeSettings

EAGER = 128  # tokens, up to which plain attention trains faster than fused on a CPU
COLUMNS = 1024  # the number of computed terms is a multiple of it
LAMBDAS = {"margin-mse": (0.08, 0.1), "in-batch": (0.0006, 0.0008)}  # the paper's, of queries and documents


class SpladeTrainer(training.Trainer):
    """The Trainer of a checkpoint's masked language model; `idf` (vocabulary,) weights documents."""

    def __init__(
        self,
        checkpoint: Path,
        idf: np.ndarray | None,
        settings: SpladeSettings,
        arguments: TrainingArguments,
        collator: Collator,
        data: training.Epochs | None,
    ):
        model = training.load_model(checkpoint, settings.dropout)
        if arguments.device.type == "cpu" and collator.max_document_length <= EAGER:
            model.set_attn_implementation("eager")
        super().__init__(model, arguments, collator, data)
        self._settings = settings
        self._decoder = bypass_decoder(model)
        self._idf = None
        if idf is not None:
            self._idf = torch.ones(len(self._decoder.weight))  # may be padded beyond the vocabulary
            self._idf[: len(idf)] = torch.from_numpy(idf)
        default_q, default_d = LAMBDAS[settings.loss]
        self._lambda_q = default_q if settings.lambda_q is None else settings.lambda_q
        self._lambda_d = default_d if settings.lambda_d is None else settings.lambda_d
        self._terms: defaultdict[str, list[torch.Tensor]] = defaultdict(list)  # since the last log

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):  # the head, too
            queries = self._weights(model, inputs["queries"])
            columns, stands_for = self._columns(queries)
            documents = by_query(self._weights(model, inputs["documents"], columns), queries)
        queries, documents = loss.gather(queries), loss.gather(documents)
        scored = documents if self._idf is None else documents * self._idf.to(documents)[columns]
        terms = {
            "ranking_loss": loss.ranking(self._settings.loss, queries[:, columns], scored, inputs),
            "flops_q_loss": loss.flops(queries),
            "flops_d_loss": loss.flops(documents.flatten(0, 1), stands_for),
            "queries_active": (queries > 0).sum(-1).float().mean(),
            "documents_active": ((documents > 0) * stands_for).sum(-1).mean(),
        }
        for name, value in terms.items():
            self._terms[name].append(value.detach())
        warmup = self._settings.flops_warmup * self.args.max_steps
        rise = min(1.0, self.state.global_step / warmup) ** 2 if warmup else 1.0
        regularizer = self._lambda_q * terms["flops_q_loss"] + self._lambda_d * terms["flops_d_loss"]
        return loss.scale_for_ddp(terms["ranking_loss"] + rise * regularizer)

    def _columns(self, queries: torch.Tensor) -> tuple[torch.Tensor | slice, torch.Tensor]:
        """The entries of documents that a step computes, and how many entries each stands for in FLOPS.

        With the setting `sampled_terms`, these are the terms of the batch's queries (texts, vocabulary), of which
        scores are made, and a random sample of the others. Several processes compute all entries.
        """
        size, count = queries.shape[1], self._settings.sampled_terms
        used = (queries > 0).any(0)
        terms, others = used.nonzero().ravel(), (~used).nonzero().ravel()
        if not count or self.args.world_size > 1 or count >= len(others):
            return slice(None), queries.new_ones(size)
        total = -(-(len(terms) + count) // COLUMNS) * COLUMNS  # every new shape costs the compilation of kernels
        sample = others[torch.randperm(len(others))[: total - len(terms)].to(others.device)]
        weight = queries.new_full((len(sample),), len(others) / len(sample))
        return torch.cat([terms, sample]), torch.cat([queries.new_ones(len(terms)), weight])

    def _weights(self, model: Any, texts: dict[str, Any], columns: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """These columns of the SPLADE vectors of a side of a batch, (texts, columns)."""
        weight, bias = self._decoder.weight, self._decoder.bias
        bias = weight.new_zeros(len(weight)) if bias is None else bias

        def encode(chunk: dict[str, torch.Tensor]) -> torch.Tensor:
            return splade_weights(model(**chunk).logits, chunk["attention_mask"].bool(), weight[columns], bias[columns])

        return encoded(texts, encode)

    def log(self, logs: dict[str, float], *more: Any) -> None:
        means = {name: float(torch.stack(values).mean()) for name, values in self._terms.items()}
        self._terms.clear()
        super().log(logs | means, *more)
        if means:
            check_sparsity(
                means["documents_active"],
                means["queries_active"],
                len(self._decoder.weight),
                self.state.global_step > self.args.get_warmup_steps(self.args.max_steps),
            )


def check_sparsity(documents: float, queries: float, vocabulary: int, warm: bool) -> None:
    """Raise CaiError if vectors have become empty, or, after the warm-up, are not sparse at all.

    `documents` and `queries` are mean numbers of active dimensions.
    """
    for side, active in (("documents", documents), ("queries", queries)):
        if active < 1:
            raise CaiError(
                f"the {side} have {active:.1f} active dimensions: collapse. Lower the lambdas, or --learning-rate, or "
                "let the lambdas rise slowly with --flops-warmup"
            )
        if warm and active > vocabulary / 2:
            raise CaiError(
                f"the {side} have {active:,.0f} of {vocabulary:,} dimensions active: not sparse. Raise the lambdas, "
                "or shorten --flops-warmup"
            )
