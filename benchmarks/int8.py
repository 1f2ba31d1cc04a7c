"""What --precision int8 costs in quality: cosines of vectors with those in float32.

Of small random models of every architecture that tests/models/test_architectures.py makes, as SPLADE and as dense
vectors, on the texts that a model is checked with when it is loaded; and of the trained encoders of the demo, on the
first documents of a collection. For nDCG@10: encode.py --quality.
"""

import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np

DOCUMENTS = 256
LENGTH = 30  # tokens that tiny models read


def cosines(found: Any, expected: Any) -> np.ndarray:
    """Cosines of vectors (texts, width) with those that are not empty."""
    mine, theirs = (each.toarray() if hasattr(each, "toarray") else each for each in (found, expected))
    norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(theirs, axis=1)
    full = theirs.any(1)
    return (mine * theirs).sum(1)[full] / norms[full].clip(1e-20)


def of_random(architecture: str) -> list[float]:
    """The smallest cosines of a tiny random model's SPLADE and dense vectors."""
    from cai_pyserini.models.dense import Dense
    from cai_pyserini.models.int8 import PROBES
    from cai_pyserini.models.splade import Splade
    from tests.models.test_architectures import SENTENCES, make_model

    texts = [*PROBES, *SENTENCES]
    with TemporaryDirectory() as folder:
        checkpoint = make_model(Path(folder), architecture)
        made = [
            [kind(checkpoint, "cpu", each).encode(texts, LENGTH) for each in ("int8", "float32")]
            for kind in (Splade, Dense)
        ]
    return [cosines(*pair).min() for pair in made]


def of_trained(encoder: str, collection: str) -> list[float]:
    """The smallest and the median cosine of the vectors of a collection's first documents."""
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.encoder import EncoderModel

    config = load_encoder(encoder)
    texts = [document.contents for document in islice(harness.opened(collection)[0].documents(), DOCUMENTS)]
    models = (EncoderModel(config, "cpu", each).load("documents") for each in ("int8", "float32"))
    found = cosines(*(model.encode(texts, config.max_document_length) for model in models))
    return [found.min(), np.median(found)]


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.models.test_architectures import ARCHITECTURES

    title = "Cosines of int8 with float32"
    rows = [[name, *(f"{value:.4f}" for value in of_random(name))] for name in ARCHITECTURES]
    harness.show(f"{title}, random weights, the smallest", ("", "SPLADE", "dense"), rows)
    found = [(name, of_trained(name, args.collection)) for name in ("splade-tiny", "minilm")]
    rows = [[name, *(f"{value:.4f}" for value in values)] for name, values in found]
    harness.show(f"{title}, {DOCUMENTS} documents", ("", "smallest", "median"), rows)


if __name__ == "__main__":
    main()
