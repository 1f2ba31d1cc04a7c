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

from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.head import splade_weights
from cai_pyserini.models.splade import bypass_decoder
from cai_pyserini.trainer import loss, training
from cai_pyserini.trainer.pairs import PairTraining
from cai_pyserini.trainer.settings import SpladeSettings

EAGER = 128  # tokens, up to which plain attention trains faster than fused on a CPU
COLUMNS = 1024  # the number of computed terms is a multiple of it
LAMBDAS = {"margin-mse": (0.08, 0.1), "in-batch": (0.0006, 0.0008)}  # the paper's, of queries and documents


class SpladeTraining(PairTraining):
    """A SPLADE training."""

    stage = "trainer splade"
    settings: SpladeSettings

    def __init__(self, settings: SpladeSettings):
        encoder = load_encoder(settings.base)
        if settings.max_document_length:
            encoder = encoder.replace(max_document_length=settings.max_document_length)
        super().__init__(settings, encoder)

    def trainer(self, checkpoint: Path, weights: np.ndarray | None, *arguments: Any) -> training.Trainer:
        model = training.load_model(checkpoint, self.settings.dropout)
        on_cpu = resolve_device(self.settings.device).type == "cpu"
        if on_cpu and self.encoder.max_document_length <= EAGER:
            model.set_attn_implementation("eager")
        decoder = bypass_decoder(model)
        idf = None
        if weights is not None:
            idf = torch.ones(len(decoder.weight))  # may be padded beyond the vocabulary
            idf[: len(weights)] = torch.from_numpy(weights)
        return SpladeTrainer(model, *arguments, decoder=decoder, settings=self.settings, idf=idf)


class SpladeTrainer(training.Trainer):
    """The Trainer of a masked language model whose `decoder` is bypassed; `idf` (vocabulary,) weights documents."""

    def __init__(self, *arguments: Any, decoder: torch.nn.Linear, settings: SpladeSettings, idf: torch.Tensor | None):
        super().__init__(*arguments)
        self._decoder = decoder
        self._settings = settings
        self._idf = idf
        default_q, default_d = LAMBDAS[settings.loss]
        self._lambda_q = default_q if settings.lambda_q is None else settings.lambda_q
        self._lambda_d = default_d if settings.lambda_d is None else settings.lambda_d
        self._terms: defaultdict[str, list[torch.Tensor]] = defaultdict(list)  # since the last log

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):  # the head, too
            queries = self._weights(model, inputs["queries"])
            columns, stands_for = self._columns(queries)
            documents = self._weights(model, inputs["documents"], columns)
        documents = documents.unflatten(0, (-1, len(queries))).transpose(0, 1)  # (texts, 1 + negatives, columns)
        queries, documents = loss.gather(queries), loss.gather(documents)
        scored = documents if self._idf is None else documents * self._idf.to(documents)[columns]
        ranking = loss.ranking(self._settings.loss, queries[:, columns], scored, inputs)
        flops_q, flops_d = loss.flops(queries), loss.flops(documents.flatten(0, 1), stands_for)
        self._record(ranking_loss=ranking, flops_q_loss=flops_q, flops_d_loss=flops_d)
        self._record(queries_active=(queries > 0).sum(-1).float().mean())
        self._record(documents_active=((documents > 0) * stands_for).sum(-1).mean())
        warmup = self._settings.flops_warmup * self.args.max_steps
        rise = min(1.0, self.state.global_step / warmup) ** 2 if warmup else 1.0
        return loss.scale_for_ddp(ranking + rise * (self._lambda_q * flops_q + self._lambda_d * flops_d))

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
        decoder = self._decoder
        bias = decoder.weight.new_zeros(len(decoder.weight)) if decoder.bias is None else decoder.bias
        weight, bias = decoder.weight[columns], bias[columns]  # type: ignore[assignment]
        chunks = [
            splade_weights(model(**chunk).logits, chunk["attention_mask"].bool(), weight, bias)
            for chunk in texts["chunks"]
        ]
        return torch.cat(chunks)[texts["positions"]]

    def _record(self, **values: torch.Tensor) -> None:
        for name, value in values.items():
            self._terms[name].append(value.detach())

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
