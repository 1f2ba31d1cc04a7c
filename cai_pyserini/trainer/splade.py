"""SPLADE training: Margin-MSE with a teacher's margins, or in-batch negatives for labelled pairs, and FLOPS.

    L = L_ranking + lambda_Q L_FLOPS(queries) + lambda_D L_FLOPS(documents)        (Iida & Okazaki 2022, Appendix A)

Lambdas are constant, as in the paper, or rise quadratically over `flops_warmup` steps (Formal et al. 2021). With `idf`
the documents of the score, not those of the regularizer, are weighted with it.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cai_pyserini import cli
from cai_pyserini.cli import CaiError
from cai_pyserini.config import load_encoder
from cai_pyserini.trainer import pairs, settings

LAMBDAS = {"margin-mse": (0.08, 0.1), "in-batch": (0.0006, 0.0008)}  # the paper's, query and document


@dataclass(frozen=True, kw_only=True)
class Settings(pairs.Settings):
    """What SPLADE training can be told. Defaults are the paper's."""

    lambda_q: float | None = field(default=None, metadata={"help": "FLOPS of queries; default: 0.08, in-batch 0.0006"})
    lambda_d: float | None = field(default=None, metadata={"help": "FLOPS of documents; default: 0.1, in-batch 0.0008"})
    flops_warmup: int = field(default=0, metadata={"help": "steps in which the lambdas rise quadratically from 0"})
    max_document_length: int | None = field(default=None, metadata={"help": "tokens; default: the encoder's, 256"})
    batch_size: int = field(default=40, metadata={"help": "queries a device and step"})


def make_trainer(*arguments: Any, decoder: Any, given: Settings, idf: Any) -> Any:
    """A transformers.Trainer of a masked language model whose decoder passes its input through."""
    import torch
    from transformers import Trainer

    from cai_pyserini.head import splade_weights
    from cai_pyserini.trainer import loss

    lambda_q, lambda_d = (
        default if chosen is None else chosen
        for chosen, default in zip((given.lambda_q, given.lambda_d), LAMBDAS[given.loss], strict=True)
    )

    terms: defaultdict[str, list[torch.Tensor]] = defaultdict(list)  # since the last log

    class SpladeTrainer(Trainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
            with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):  # the head, too
                queries, documents = (self.weights(model, inputs[side]) for side in ("queries", "documents"))
            documents = documents.unflatten(0, (-1, len(queries))).transpose(0, 1)  # (texts, 1 + negatives, vocabulary)
            queries, documents = loss.gathered(queries), loss.gathered(documents)
            scored = documents if idf is None else documents * idf.to(documents)
            ranking = loss.ranking(given.loss, queries, scored, inputs)
            flops_q, flops_d = loss.flops(queries), loss.flops(documents.flatten(0, 1))
            self.note(ranking_loss=ranking, flops_q_loss=flops_q, flops_d_loss=flops_d)
            self.note(queries_active=(queries > 0).sum(-1).float().mean())
            self.note(documents_active=(documents > 0).sum(-1).float().mean())
            rise = min(1.0, self.state.global_step / given.flops_warmup) ** 2 if given.flops_warmup else 1.0
            return loss.shared(ranking + rise * (lambda_q * flops_q + lambda_d * flops_d))

        def weights(self, model: Any, texts: dict[str, Any]) -> torch.Tensor:
            bias = decoder.weight.new_zeros(len(decoder.weight)) if decoder.bias is None else decoder.bias
            parts = [
                splade_weights(model(**part).logits, part["attention_mask"].bool(), decoder.weight, bias)
                for part in texts["parts"]
            ]
            return torch.cat(parts)[texts["places"]]

        def note(self, **values: torch.Tensor) -> None:
            for name, value in values.items():
                terms[name].append(value.detach())

        def log(self, logs: dict[str, float], *more: Any) -> None:
            means = {name: float(torch.stack(values).mean()) for name, values in terms.items()}
            terms.clear()
            super().log(logs | means, *more)
            if means:
                refuse_collapse(
                    means["documents_active"],
                    means["queries_active"],
                    len(decoder.weight),
                    self.state.global_step > given.warmup_steps,
                )

    return SpladeTrainer(*arguments)


def refuse_collapse(documents: float, queries: float, vocabulary: int, warm: bool) -> None:
    """Raise CaiError where vectors have become empty, or, after the warm-up, are not sparse at all."""
    for side, active in (("documents", documents), ("queries", queries)):
        if active < 1:
            raise CaiError(
                f"the {side} have {active:.1f} active dimensions: collapse. Lower the lambdas, or --learning-rate, or "
                "let the lambdas rise over --flops-warmup steps"
            )
        if warm and active > vocabulary / 2:
            raise CaiError(
                f"the {side} have {active:,.0f} of {vocabulary:,} dimensions active: not sparse. Raise the lambdas, "
                "or shorten --flops-warmup"
            )


def train(given: Settings) -> Path:
    """Write the trained checkpoint."""
    encoder = load_encoder(given.base)
    if given.max_document_length:
        encoder = replace(encoder, max_document_length=given.max_document_length)

    def prepare(checkpoint: Path, weights: Any) -> tuple[Any, Any]:
        import torch

        from cai_pyserini.splade import pass_through
        from cai_pyserini.trainer import run

        model = run.load(checkpoint)
        decoder = pass_through(model)
        idf = None
        if weights is not None:
            idf = torch.ones(len(decoder.weight))  # may be padded beyond the vocabulary
            idf[: len(weights)] = torch.from_numpy(weights)
        return model, partial(make_trainer, decoder=decoder, given=given, idf=idf)

    return pairs.train("splade", given, encoder, prepare)


def main() -> None:
    given = settings.parse(
        Settings,
        "Train SPLADE on queries with positive and negative documents.",
        "python -m cai_pyserini.trainer.splade --data triples.jsonl --base models/hpo-pretrained --output models/hpo",
    )
    pairs.say(train(given), "splade")


if __name__ == "__main__":
    cli.run(main)
