"""A folder that SparseEncoder of sentence-transformers loads.

With SPLADE queries, the model encodes both sides. With bags of words, queries are inference-free: each token has a
static weight, its IDF. CAI multiplies document weights by the IDF instead; here documents have SPLADE's raw weights,
and the scores are the same:  sum over t of idf_t * w_td
"""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling, Transformer
from transformers import AutoTokenizer

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.encoder import EncoderModel, Role
from cai_pyserini.models.idf import idf_digest, idf_weights
from cai_pyserini.vectors.queries import Representation


def export_encoder(config: EncoderConfig, output: Path, query: Representation | None = None) -> artifact.Manifest:
    """Make the artifact `output` of an encoder.

    Raises CaiError for a dense encoder, for the encoder of a joint index, whose words are in no vocabulary, and for
    lengths beyond the checkpoint's positions.
    """
    encoder = EncoderModel(config, "cpu")
    config = encoder.config
    if not config.is_sparse:
        raise CaiError(f"{config.name} is a dense encoder: only SPLADE encoders are exported")
    if config.joint:
        raise CaiError(
            f"{config.name} is the encoder of a joint index: sentence-transformers would leave the words of BM25 out "
            "of queries. Export the impacts with their queries (milvus, opensearch, …), or the queries with "
            "`cai-pyserini plugin export-topics`"
        )
    representation = query or config.query
    roles: list[Role] = ["documents", "queries"] if representation == "splade" else ["documents"]
    encoder.require_loadable(*roles)
    inputs = {
        "checkpoint": checkpoint_digest(encoder.checkpoint),
        "encoder": config.shaping("vectors", "impacts", "query vectors"),
        "idf": idf_digest(config.idf_folder),
    }
    settings = {"query": representation, "queries": encoder.query_only_identity}
    recipe = artifact.recipe("export", inputs, format="sentence-transformers", **settings)

    def make(folder: Path) -> artifact.Stats:
        loses = _write(encoder, representation, folder)
        return {"bytes": files.folder_bytes(folder), "loses": loses}

    return artifact.require(artifact.make(output, recipe, make), "export")


def _write(encoder: EncoderModel, query: Representation, folder: Path) -> list[str]:
    """Write the folder, and return what the format loses."""
    config, checkpoint = encoder.config, str(encoder.checkpoint)
    for setting in ("binary_queries", "expand_queries"):
        if query == "splade" and setting in config.shaping("query vectors"):
            raise CaiError(f"{config.name} has a setting {setting}, which sentence-transformers has no module for")
    model = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=config.max_document_length)
    pooling = SpladePooling("max", config.activation)
    documents = [model, pooling]
    settings: dict[str, Any] = {
        "max_active_dims": config.max_active_dims,
        "prompts": {"query": config.query_prompt, "document": config.document_prompt},
    }
    loses = ["quantization: vectors have float weights, and scores are not rounded as in a Lucene index"]
    if config != config.unpruned():
        loses.append("static pruning: documents keep all their terms")
    if query == "bow":
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
        tokenizer.model_max_length = config.max_query_length - 2
        width = model.model.get_output_embeddings().out_features
        if width != len(tokenizer):
            raise CaiError(
                f"{checkpoint}: the decoder has {width:,} entries, the vocabulary {len(tokenizer):,}; "
                "sentence-transformers takes bags of words only if they are equal"
            )
        token_weights = None if config.binary_queries else encoder.token_weights
        static = torch.ones(width)
        for weights in (token_weights, idf_weights(config, encoder.tokenizer.vocabulary)):
            if weights is not None:
                static *= torch.from_numpy(weights).float()
        queries = [SparseStaticEmbedding(tokenizer, static, frozen=True)]
        SparseEncoder(modules=[Router.for_query_document(queries, documents)], **settings).save_pretrained(str(folder))
        if token_weights is None and not config.binary_queries:
            loses.append("counts of repeated tokens in queries: a token counts once")
    else:
        modules, changes_length = documents, config.max_query_length != config.max_document_length
        if (query_folder := encoder.model_side("queries").folder) != encoder.checkpoint:
            query_model = Transformer(
                str(query_folder), transformer_task="fill-mask", max_seq_length=config.max_query_length
            )
            modules, changes_length = [Router.for_query_document([query_model, pooling], documents)], False
        SparseEncoder(modules=modules, **settings).save_pretrained(str(folder))
        if config.idf and config.idf_power:
            loses.append("the IDF weights of documents: no module of the library holds them; --query bow keeps them")
        if changes_length:
            loses.append(f"the length of queries: up to {config.max_document_length} tokens are read, as of documents")
    return loses
