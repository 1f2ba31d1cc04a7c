"""The IDF of a collection under an encoder's own tokenizer (Iida & Okazaki 2022, section 3.2.2).

N is the number of documents and N_t the number of documents whose untruncated contents contain token t, special tokens
excluded. FORMULAS has the weight of a token by N and N_t. IDF is among the models because it weights the token vectors
of dense encoders; it weights SPLADE vectors when they become impacts.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, IdfFormula
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import require_content
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.tokenizer import Tokenizer, text_batches

if TYPE_CHECKING:  # or an edit of how collections are read would change the code of all that IDF weights
    from cai_pyserini.collections.contract import Collection

logger = logging.getLogger(__name__)


# From N and the N_t of tokens in the collection; any other token keeps its SPLADE weight.
FORMULAS: dict[IdfFormula, Callable[[int, np.ndarray], np.ndarray]] = {
    "idf": lambda documents, frequencies: np.log(documents / frequencies),
    "bm25idf": lambda documents, frequencies: np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)),
}


@dataclass(frozen=True)
class Idf:
    """Document frequencies: `frequencies[t]` of `documents` documents contain token t."""

    documents: int
    frequencies: np.ndarray  # int64 (vocabulary,)
    vocabulary: str  # Tokenizer.vocabulary
    formula: IdfFormula = "idf"

    def weights(self, power: float = 1.0) -> np.ndarray:
        """idf ** power, float64 (vocabulary,): power 1 is the paper's, 0.5 its authors' default, 0 means no IDF."""
        weights = FORMULAS[self.formula](self.documents, np.maximum(self.frequencies, 1))
        return np.where(self.frequencies > 0, weights, 1.0) ** power

    @classmethod
    def count(cls, contents: Iterable[str], tokenizer: Tokenizer) -> "Idf":
        """Count the document frequencies of a stream of contents."""
        frequencies = np.zeros(len(tokenizer), np.int64)
        documents = 0
        for texts in text_batches(contents, len):
            documents += len(texts)
            distinct = chain.from_iterable(map(set, tokenizer.encode(texts, max_length=None, special=False)))
            frequencies += np.bincount(np.fromiter(distinct, np.int64), minlength=len(frequencies))
        return cls(documents, frequencies, tokenizer.vocabulary)

    @classmethod
    def load(cls, folder: Path, vocabulary: str | None = None) -> "Idf":
        """Read a folder of the idf stage. Raises CaiError for another `vocabulary`, if it is given."""
        manifest = artifact.require(folder, "idf")
        require_content(folder / "idf.npz")
        with (folder / "idf.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            values = int(arrays["documents"]), arrays["frequencies"], str(arrays["vocabulary"])
        idf = cls(*values, manifest.recipe["settings"].get("formula", "idf"))
        artifact.require_count(folder, idf.documents, manifest.stats["documents"])
        if vocabulary not in (None, idf.vocabulary):
            raise CaiError(
                f"{folder} has the IDF of another vocabulary than the encoder's: compute it with this encoder"
            )
        return idf


def compute(collection: "Collection", encoder: EncoderConfig, output: Path, formula: IdfFormula = "idf") -> Path:
    """Write the IDF of the tokens of an encoder's tokenizer in a collection to a folder, for a formula.

    Warns if the vocabulary lacks words of most documents, as that of another language does.
    """
    checkpoint = model_folder(encoder)
    tokenizer = checkpoint_digest(checkpoint, tokenizer_only=True)
    inputs = {"documents": collection.fingerprint("documents"), "tokenizer": tokenizer}
    recipe = artifact.recipe("idf", inputs, formula=None if formula == "idf" else formula)

    def write(folder: Path) -> artifact.Stats:
        documents = progress(collection.documents(), collection.size, "idf")
        reader = Tokenizer(checkpoint)
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


def idf_digest(folder: Path | None) -> str | None:
    """The digest of a folder of the idf stage; None without a folder."""
    return artifact.require(folder, "idf").digest if folder else None


def idf_weights(config: EncoderConfig, vocabulary: str) -> np.ndarray | None:
    """An encoder's IDF weights for documents (vocabulary,); None for plain SPLADE (no idf, or idf_power 0)."""
    if config.idf_folder is None or config.idf_power == 0:
        return None
    return Idf.load(config.idf_folder, vocabulary).weights(config.idf_power)
