"""The IDF of a collection as idf.json, from which OpenSearch's sparse tokenizers take the weights of query tokens.

The file that comes with them has weights of MS MARCO. `query_weights` in an encoder's YAML reads the same format.
"""

from pathlib import Path

from cai_pyserini.core import files
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.models.idf import load_weights
from cai_pyserini.vectors.queries import Representation

LEAST = 1e-6  # of tokens in all documents: OpenSearch refuses queries with weight 0, and takes 1 for missing tokens


def write_idf(config: EncoderConfig, query: Representation, folder: Path) -> list[str]:
    """Write idf.json, {token: weight}, and the encoder's tokenizer.json. Raises CaiError for a tokenizer without."""
    tokenizer = Encoder(config, "cpu").tokenizer
    if config.idf_folder is None:
        raise CaiError(f"{config.name} has no IDF: name a folder of the idf stage")
    if not tokenizer.settings:
        raise CaiError(f"{config.name} has a tokenizer written in Python, which has no tokenizer.json for OpenSearch")
    weights = load_weights(config.idf_folder, config.idf_power or 1.0, tokenizer.vocabulary)
    values = {token: max(float(weights[id]), LEAST) for token, id in tokenizer.ids.items()}
    files.write_text(folder / "idf.json", files.json_text(values))
    files.write_text(folder / "tokenizer.json", files.json_text(tokenizer.settings))
    return ["counts of repeated tokens in queries: a token counts once"]
