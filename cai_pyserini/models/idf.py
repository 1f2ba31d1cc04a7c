"""The IDF of a collection under an encoder's own tokenizer (Iida & Okazaki 2022, section 3.2.2).

N is the number of documents and N_t the number of documents whose untruncated contents contain token t, special tokens
excluded. FORMULAS has the weight of a token by N and N_t.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, Weighting
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import require_content
from cai_pyserini.models.tokenizer import Tokenizer, text_batches


def _idf(documents: int, frequencies: np.ndarray) -> np.ndarray:
    """ln(N / N_t); a token that is not in the collection keeps its SPLADE weight."""
    return np.where(frequencies > 0, np.log(documents / np.maximum(frequencies, 1)), 1.0)


FORMULAS: dict[Weighting, Callable[[int, np.ndarray], np.ndarray]] = {"idf": _idf}


@dataclass(frozen=True)
class Idf:
    """Document frequencies: `frequencies[t]` of `documents` documents contain token t."""

    documents: int
    frequencies: np.ndarray  # int64 (vocabulary,)
    vocabulary: str  # Tokenizer.vocabulary
    formula: Weighting = "idf"

    def weights(self, power: float = 1.0) -> np.ndarray:
        """idf ** power, float64 (vocabulary,): power 1 is the paper's, 0.5 its authors' default, 0 means no IDF."""
        return FORMULAS[self.formula](self.documents, self.frequencies) ** power

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
    def load(cls, folder: Path) -> "Idf":
        """Read a folder of the idf stage."""
        manifest = artifact.require(folder, "idf")
        require_content(folder / "idf.npz")
        with (folder / "idf.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            values = int(arrays["documents"]), arrays["frequencies"], str(arrays["vocabulary"])
        idf = cls(*values, manifest.recipe["settings"].get("formula", "idf"))
        artifact.require_count(folder, idf.documents, manifest.stats["documents"])
        return idf


def idf_digest(folder: Path | None) -> str | None:
    """The digest of a folder of the idf stage; None without a folder."""
    return artifact.require(folder, "idf").digest if folder else None


def load_weights(folder: Path, power: float, vocabulary: str) -> np.ndarray:
    """idf ** power, float64 (vocabulary,), from a folder of the idf stage. Raises CaiError for another `vocabulary`."""
    idf = Idf.load(folder)
    if idf.vocabulary != vocabulary:
        raise CaiError(f"{folder} has the IDF of another vocabulary than the encoder's: compute it with this encoder")
    return idf.weights(power)


def idf_weights(config: EncoderConfig, vocabulary: str) -> np.ndarray | None:
    """An encoder's IDF weights for documents (vocabulary,); None for plain SPLADE (no idf, or idf_power 0)."""
    if config.idf_folder is None or config.idf_power == 0:
        return None
    return load_weights(config.idf_folder, config.idf_power, vocabulary)
