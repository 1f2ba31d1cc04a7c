"""The IDF of a collection under an encoder's own tokenizer (Iida & Okazaki 2022, section 3.2.2).

    idf_t = ln(N / N_t), and 1 where N_t = 0

N is the number of documents and N_t the number of those that contain token t, in their untruncated contents, special
tokens left out. A weight of 1 leaves what SPLADE gave a token that the collection does not contain.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cai_pyserini import artifact, cli
from cai_pyserini.collection import Collection, open_collection
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder, load_index_config

if TYPE_CHECKING:
    from cai_pyserini.splade import Tokenizer


@dataclass(frozen=True)
class Idf:
    """Document frequencies: `frequencies[t]` of `documents` documents contain token t."""

    documents: int
    frequencies: np.ndarray  # int64 (vocabulary,)

    def weights(self, power: float = 1.0) -> np.ndarray:
        """idf ** power, float64 (vocabulary,): 1 is the paper's, 0.5 its authors' default, 0 none."""
        met = np.maximum(self.frequencies, 1)
        return np.where(self.frequencies > 0, np.log(self.documents / met), 1.0) ** power

    @classmethod
    def of(cls, contents: Iterable[str], tokenizer: "Tokenizer") -> "Idf":
        """Count documents, streamed."""
        frequencies = np.zeros(len(tokenizer), np.int64)
        documents = 0
        for texts in batched(contents, 1024):
            documents += len(texts)
            for tokens in tokenizer.encode(texts, max_length=None, special=False):
                frequencies[np.unique(np.array(tokens, np.int64))] += 1
        return cls(documents, frequencies)

    @classmethod
    def load(cls, folder: Path) -> "Idf":
        """Read what the idf stage wrote."""
        artifact.require_manifest(folder, "idf")
        with np.load(folder / "idf.npz", allow_pickle=False) as file:
            return cls(int(file["documents"]), file["frequencies"])


def compute(collection: Collection, checkpoint: Path, output: Path) -> Path:
    """Write the IDF of a collection under a checkpoint's tokenizer to a folder, unless it is there already."""
    recipe = {
        "stage": "idf",
        "format": 1,
        "documents": collection.fingerprint("documents"),
        "tokenizer": checkpoint_digest(checkpoint, tokenizer_only=True),
    }
    if not artifact.is_fresh(output, recipe):
        from cai_pyserini.splade import Tokenizer

        with artifact.building(output, recipe) as (partial, facts):
            documents = cli.progress(collection.documents(), collection.size, "idf")
            idf = Idf.of((document.contents for document in documents), Tokenizer(checkpoint))
            np.savez(partial / "idf.npz", documents=np.array(idf.documents), frequencies=idf.frequencies)
            facts |= {"documents": idf.documents, "tokens": int((idf.frequencies > 0).sum())}
    return output


def main() -> None:
    parser = cli.parser(
        "Count the document frequencies of an encoder's tokens in a collection.",
        "python -m cai_pyserini.idf --collection hpo --encoder splade-tiny --output idf",
    )
    cli.add_input_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    collection = open_collection(load_index_config(args.collection))
    compute(collection, checkpoint_folder(load_encoder(args.encoder)), args.output)
    idf = Idf.load(args.output)
    print(f"{args.output}: {(idf.frequencies > 0).sum():,} tokens in {idf.documents:,} documents")


if __name__ == "__main__":
    cli.run(main)
