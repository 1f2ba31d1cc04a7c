"""Describe an encoder, compare its vectors with those of sentence-transformers, and measure its speed on this machine.

sentence-transformers opens its own folders itself. A bare checkpoint does not say how its tokens are pooled, so the
library gets modules with the encoder's settings.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.models.checkpoint import checkpoint_folder
from cai_pyserini.models.device import Precision
from cai_pyserini.models.encoder import EncoderModel, Role
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Matrix
from cai_pyserini.vectors.speed import measure

MAX_DIFFERENCE = 1e-4  # vectors count as equal up to it, relative to the largest weight if that is above 1
REPEATS = 200  # of the texts, on which the speed is measured
TOKENS = 100  # of a document
TEXTS: tuple[str, ...] = (
    "short fingers",
    "How long does a fever of 39.5 °C last?",
    "An impact index stores a weight for each term of a document; the score of a document is a sum of products.",
    "The liver's role in cholesterol metabolism (HMG-CoA reductase, LDL receptors) is well established.",
    "Naïve Bayes vs. k-NN: a comparison",
    "Die Straße ist wegen Überschwemmung gesperrt; bitte fahren Sie über die Brücke.",
    "東京都の人口は約1400万人です。",
    "COVID-19 vaccines, mRNA-1273 & BNT162b2, elicited neutralizing antibodies in 94.1% of participants!",
    "Under the agreement, the lessee shall return the premises in the condition in which they were received.",
    "A text that is longer than the model reads is cut at the end. " * 60,
)


def check(requested: EncoderConfig, device: str = "auto", precision: Precision = "auto") -> dict[str, Any]:
    """Describe an encoder, as load_encoder returns it, in JSON values by name.

    The differences from the library's vectors are maxima, in float32; None for queries that the library does not
    encode. The difference of document vectors from float32 is relative to their length. Raises CaiError for an encoder
    that cannot be loaded.
    """
    # Leave out what the library does not know: everything that is done to the vectors of the model.
    plain = requested.replace(idf=None, projection=None, binary_queries=False, expand_queries=True)
    measured, exact = EncoderModel(plain, device, precision), EncoderModel(plain, "cpu", "float32")
    exact.require_loadable("documents")
    config, documents, is_sparse = exact.config, _documents(exact), exact.config.is_sparse
    # The library makes bags of words only if the folder itself has token weights.
    has_token_weights = not exact.has_query_model and not config.query_weights
    queries = encode_queries(exact, TEXTS) if not is_sparse or config.query == "splade" or has_token_weights else None
    del exact  # one model at a time

    library = open_library(config)
    differences = [_difference(documents, _reference(library, plain, measured, "documents"))]
    if config.query_checkpoint:
        library = open_library(config.replace(checkpoint=config.query_checkpoint, revision=config.query_revision))
    if queries is not None:
        differences.append(_difference(_dense(queries), _reference(library, plain, measured, "queries")))
    del library
    return {
        "folder": str(checkpoint_folder(requested)),
        "kind": config.kind,
        "settings": config.shaping("vectors", "query vectors", "queries"),
        "queries": "bags of words" if is_sparse and config.query == "bow" else "model",
        "documents_differ_by": differences[0],
        "queries_differ_by": differences[1] if len(differences) > 1 else None,
        "equal": max(differences) <= MAX_DIFFERENCE,
        "precision": measured.precision("documents"),
        "differs_from_float32_by": float(np.linalg.norm(_documents(measured) - documents) / np.linalg.norm(documents)),
        "documents_per_second": measure(measured, TEXTS * REPEATS, "documents") / TOKENS,
    }


def verdict(result: dict[str, Any]) -> str:
    """Say in a sentence whether the vectors equal the library's."""
    library = f"sentence-transformers {version('sentence-transformers')}"
    texts, limit = f"The vectors of {len(TEXTS)} texts", f"{MAX_DIFFERENCE:.4f}, in float32"
    if result["equal"]:
        return f"{texts} are those of {library}: they differ by at most {limit}."
    return (
        f"{texts} are NOT those of {library}: they differ by more than {limit}. Does the encoder's YAML file "
        "contradict the folder, or does the model weight entries that its tokenizer does not have?"
    )


def _documents(encoder: EncoderModel) -> np.ndarray:
    """Encode TEXTS as documents, truncated at the end."""
    return _dense(encoder.load("documents").encode(TEXTS, encoder.max_length("documents")))


def open_library(config: EncoderConfig) -> SentenceTransformer | SparseEncoder:
    """Open an encoder, whose settings are complete, with sentence-transformers, in float32."""
    folder, is_sparse = checkpoint_folder(config), config.is_sparse
    kind: Any = SparseEncoder if is_sparse else SentenceTransformer
    options = {"dtype": torch.float32, "use_safetensors": True}
    if (folder / "modules.json").is_file():
        return kind(str(folder), device="cpu", local_files_only=True, model_kwargs=options)
    task: Any = "fill-mask" if is_sparse else "feature-extraction"
    model = Transformer(str(folder), transformer_task=task, model_kwargs=options)
    if is_sparse:
        pooling: Any = SpladePooling("max", activation_function=config.activation)
    else:
        pooling = Pooling(model.get_embedding_dimension(), config.pooling or "mean")
    return kind(modules=[model, pooling], device="cpu")


def _reference(library: Any, requested: EncoderConfig, encoder: EncoderModel, role: Role) -> np.ndarray:
    """The library's vectors of TEXTS, (texts, width), with the settings that the YAML adds to the folder's."""
    config, prompt = encoder.config, "query_prompt" if role == "queries" else "document_prompt"
    folder_prompt = library.prompts.get(prompt.removesuffix("_prompt"))  # the only name that encode_document looks up
    options: dict[str, Any] = {}
    if prompt in requested.model_fields_set or not folder_prompt:
        options["prompt"] = getattr(config, prompt)
    is_sparse = config.is_sparse
    setting, argument = ("max_active_dims", "max_active_dims") if is_sparse else ("dimensions", "truncate_dim")
    if setting in requested.model_fields_set:
        options[argument] = getattr(requested, setting)
    library.max_seq_length = encoder.max_length(role)
    encode = library.encode_query if role == "queries" else library.encode_document
    encoded = encode(list(TEXTS), show_progress_bar=False, convert_to_tensor=True, **options)
    vectors = (encoded.to_dense() if is_sparse else encoded).float()
    if not is_sparse and config.similarity == "cosine":  # the length does not matter
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
    result: np.ndarray = vectors.numpy(force=True)
    return result


def _dense(vectors: Matrix) -> np.ndarray:
    return vectors.toarray() if isinstance(vectors, csr_matrix) else vectors


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest weight if that is above 1. The narrower side is padded with
    zeros: a model's logits may extend beyond the vocabulary."""
    width = max(ours.shape[1], theirs.shape[1])
    found, expected = (np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each in (ours, theirs))
    return float(np.abs(found - expected).max() / max(1, np.abs(expected).max()))
