"""Compute the IDF of a collection (see models.idf)."""

import logging
from dataclasses import asdict
from pathlib import Path

import numpy as np

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, Weighting
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.folder import model_folder, tokenizer_of
from cai_pyserini.models.idf import Idf

logger = logging.getLogger(__name__)


def compute(collection: Collection, encoder: EncoderConfig, output: Path, formula: Weighting = "idf") -> Path:
    """Write the IDF of the tokens of an encoder's tokenizer in a collection to a folder, for a formula of models.idf.

    Warns if the vocabulary lacks words of most documents, as that of another language does.
    """
    checkpoint = model_folder(encoder)
    tokenizer = checkpoint_digest(checkpoint, tokenizer_only=True)
    inputs = {"documents": collection.fingerprint("documents"), "tokenizer": tokenizer}
    recipe = artifact.recipe("idf", inputs, formula=None if formula == "idf" else formula)

    def write(folder: Path) -> artifact.Stats:
        documents = progress(collection.documents(), collection.size, "idf")
        reader = tokenizer_of(encoder)
        idf = Idf.count((document.contents for document in documents), reader)
        unknown = 0 if reader.unknown_id is None else int(idf.frequencies[reader.unknown_id])
        if 2 * unknown > idf.documents:
            logger.warning(
                "%s of %s documents have words or characters that the vocabulary of %s lacks: to the encoder, they are "
                "all one token, [UNK]; choose an encoder for the language of the collection",
                *(f"{unknown:,}", f"{idf.documents:,}", checkpoint),
            )
        np.savez(folder / "idf.npz", allow_pickle=False, **{k: v for k, v in asdict(idf).items() if k != "formula"})
        return {"documents": idf.documents, "tokens": int((idf.frequencies > 0).sum())}

    return artifact.make(output, recipe, write)
