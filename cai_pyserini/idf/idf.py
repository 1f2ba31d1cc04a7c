"""Compute the IDF of a collection, see models.idf."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.tokenizer import Tokenizer


def compute(collection: Collection, checkpoint: Path, output: Path) -> Path:
    """Write the IDF of a collection under a checkpoint's tokenizer to a folder."""
    tokenizer = checkpoint_digest(checkpoint, tokenizer_only=True)
    recipe = artifact.recipe("idf", {"documents": collection.fingerprint("documents"), "tokenizer": tokenizer})

    def write(folder: Path) -> artifact.Stats:
        documents = progress(collection.documents(), collection.size, "idf")
        idf = Idf.of((document.contents for document in documents), Tokenizer(checkpoint))
        np.savez(folder / "idf.npz", allow_pickle=False, **asdict(idf))
        return {"documents": idf.documents, "tokens": int((idf.frequencies > 0).sum())}

    return artifact.make(output, recipe, write)
