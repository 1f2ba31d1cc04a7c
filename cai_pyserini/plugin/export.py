"""Export encoders and pre-encoded topics for Pyserini without this package.

Stock Pyserini treats a folder as a SPLADE encoder if its path contains `splade`, and loads PyTorch weights from it, not
safetensors. It treats a .jsonl file as pre-encoded queries, {"id": …, "contents": query, "vector": {term: weight}}.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.retrieve import word_queries
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_files, require_safetensors
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.folder import model_folder, require_standard
from cai_pyserini.models.tokenizer import require_tokenizer
from cai_pyserini.vectors.queries import Queries, Representation

TOPICS: dict[str, Representation] = {"splade.jsonl": "splade", "splade-doc.jsonl": "bow"}


def export_encoder(config: EncoderConfig, output: Path) -> Path:
    """Write a checkpoint as a folder for Pyserini's SpladeQueryEncoder and SpladeDocumentEncoder.

    Raises CaiError for the encoder of a joint index, and for a folder that Pyserini would not recognize.
    """
    if "splade" not in output.resolve().name.lower():
        raise CaiError(f"{output}: stock Pyserini knows a SPLADE encoder by `splade` in its name; rename the folder")
    if config.joint:
        raise CaiError(
            f"{config.name} is the encoder of a joint index: Pyserini's own encoder would leave the words of BM25 out "
            "of queries; use `export-topics` instead"
        )
    require_standard(config, "Pyserini's own encoder")
    checkpoint = model_folder(config)
    require_safetensors(checkpoint)
    require_tokenizer(checkpoint)

    def write(folder: Path) -> None:
        state: dict[str, torch.Tensor] = {}
        for path in checkpoint_files(checkpoint):
            if path.suffix == ".safetensors":
                state |= load_file(path)
            elif not path.name.endswith(".index.json"):
                shutil.copy(path, folder / path.name)
        torch.save(state, folder / "pytorch_model.bin")

    recipe = artifact.recipe("plugin", {"checkpoint": checkpoint_digest(checkpoint)}, "export")
    return artifact.make(output, recipe, write)


def export_topics(topics: dict[str, str], config: EncoderConfig, output: Path, device: str = "auto") -> Path:
    """Write topics.json, in Pyserini's format, and pre-encoded topics: splade-doc.jsonl, and splade.jsonl if the
    encoder has a query model."""
    encoder = EncoderModel(config, device)
    words = word_queries(config)

    def write(folder: Path) -> None:
        titles = {id: {"title": text} for id, text in topics.items()}
        (folder / "topics.json").write_text(json.dumps(titles, indent=1), encoding="utf-8")
        for name, query in TOPICS.items():
            if query == "splade" and not encoder.has_query_model:
                continue
            encoded, _ = Queries(topics, encoder, query, words=words).for_search(config.query_scale)
            records = ({"id": id, "contents": topics[id], "vector": vector} for id, vector in encoded.items())
            jsonl.write(folder / name, records)

    identity = Queries(topics, encoder, words=words).identity
    recipe = artifact.recipe("plugin", identity, "export", query_scale=config.query_scale)
    return artifact.make(output, recipe, write)
