"""The query encoder as ONNX, for Anserini's built-in SPLADE encoders.

Anserini multiplies an encoder's weights by 256 / 5, where we have a query_scale. The graph multiplies them by the
quotient, so that Anserini's impacts are ours, round(weight * query_scale). `encoders/` in the output has the two files
that Anserini's SpladePlusPlusEnsembleDistil looks for in its cache:

    PYSERINI_CACHE=OUTPUT java -cp ANSERINI.jar io.anserini.search.SearchCollection \\
        -encoder SpladePlusPlusEnsembleDistil -impact -pretokenized …
"""

import logging
import warnings
from pathlib import Path

import onnx
import torch

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.folder import model_folder, require_standard, tokenizer_of
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.models.transformer import load_pretrained
from cai_pyserini.vectors.queries import Representation

ENCODER = "SpladePlusPlusEnsembleDistil"
MODEL, VOCABULARY = "splade-pp-ed-optimized.onnx", "splade-pp-ed-vocab.txt"  # names in Anserini's cache
SCALE = 256 / 5  # all of Anserini's SPLADE encoders have this one
MAX_TOKENS = 512  # Anserini reads no more
DROPPED = {0: "[PAD]", 101: "[CLS]", 102: "[SEP]"}  # Anserini drops these ids from queries, whatever the tokens are
IR_VERSION = 8  # the version that Anserini's ONNX runtime reads


class QueryEncoder(torch.nn.Module):
    """Token ids (1, tokens) -> token ids (nnz,) and weights (nnz,), the model's or, without a model, counts."""

    def __init__(self, model: torch.nn.Module | None, width: int, query_scale: int):
        super().__init__()
        self.model, self.width, self.scale = model, width, query_scale / SCALE

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.model is None:
            counts = torch.zeros(self.width, dtype=torch.float32)
            weights = counts.scatter_add(0, input_ids[0], attention_mask[0].float())
        else:
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits[0, :, : self.width]
            weights = torch.log1p(torch.relu(logits.amax(0)))
        entries = weights.nonzero()[:, 0]
        return entries, weights[entries] * self.scale


def write_onnx(config: EncoderConfig, query: Representation, folder: Path) -> list[str]:
    """Write the model and vocab.txt, and return what the format loses.

    Raises CaiError for any tokenizer but BERT's uncased WordPiece, the only one that Anserini has.
    """
    config = require_standard(config, "Anserini's encoder")
    checkpoint = model_folder(config)
    tokenizer = tokenizer_of(config)
    _require_bert(checkpoint, tokenizer)
    output = folder / "encoders"
    output.mkdir()
    (output / VOCABULARY).write_text("".join(f"{term}\n" for term in tokenizer.terms), encoding="utf-8")
    model = None
    if query == "splade":
        model = load_pretrained("AutoModelForMaskedLM", checkpoint, "masked-language-model head")
    encoder = QueryEncoder(model, len(tokenizer), config.query_scale).eval()
    _export(encoder, output / MODEL)
    return [
        "weights of the special tokens [PAD], [CLS] and [SEP]: Anserini drops them",
        f"the length of queries: Anserini reads up to {MAX_TOKENS} tokens, not {config.max_query_length}",
        "characters that Anserini's tokenizer does not split at or does not drop: Chinese, Japanese, invisible ones",
    ]


def _require_bert(checkpoint: Path, tokenizer: Tokenizer) -> None:
    settings = tokenizer.settings
    if not settings or settings["model"]["type"] != "WordPiece" or not (settings["normalizer"] or {}).get("lowercase"):
        raise CaiError(f"{checkpoint}: its tokenizer is not BERT's uncased WordPiece, the one that Anserini has")
    for id, name in DROPPED.items():
        if (term := tokenizer.terms[id]) != name:
            raise CaiError(f"{checkpoint}: token {id} is {term!r}, not {name}; Anserini would drop it from queries")


def _export(encoder: QueryEncoder, path: Path) -> None:
    """Export with the dynamo exporter; the older one would fix the length of queries."""
    example = torch.tensor([[101, 2054, 2003, 102]])
    length = {1: torch.export.Dim("tokens", min=2, max=MAX_TOKENS)}
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):  # all inputs have the same length, which is intended
        torch.onnx.export(
            encoder,
            (example, torch.ones_like(example), torch.zeros_like(example)),
            path,
            input_names=["input_ids", "attention_mask", "token_type_ids"],
            output_names=["output_idx", "output_weights"],
            dynamic_shapes=(length, length, length),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    model.ir_version = IR_VERSION
    onnx.save(model, path)
