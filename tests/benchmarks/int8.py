"""What --precision int8 costs in quality, by architecture.

Cosines of documents' vectors with those in float32: of tiny random models of every architecture, on the texts that a
model is checked with when it is loaded, as SPLADE and as mean-pooled vectors; and of the trained demo encoders, on a
collection, with the nDCG@10 of exact dot products of dense vectors (of SPLADE's: encode.py --quality). Queries are
encoded in float32.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np

PRECISIONS = ("float32", "bfloat16", "int8")
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
            [kind(checkpoint, "cpu", each).encode(texts, LENGTH) for each in PRECISIONS] for kind in (Splade, Dense)
        ]
    return [float(cosines(int8, float32).min()) for float32, _, int8 in made]


def of_trained(encoder: str, collection: str) -> tuple[np.ndarray, list[float]]:
    """Cosines of a collection's vectors, and nDCG@10 of dense ones in each precision."""
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.core.trec import removes_query, run_of, without_query
    from cai_pyserini.encode.encoder import Encoder
    from cai_pyserini.evaluate.measures import mean, measure

    opened, topics, qrels = harness.opened(collection)
    documents = list(opened.documents())
    config = load_encoder(encoder)
    texts = [document.contents for document in documents]
    vectors: list[Any] = []
    scores: list[float] = []
    for precision in PRECISIONS:
        model = Encoder(config, "cpu", precision)
        vectors.append(model.load("documents").encode(texts, config.max_document_length))
        if config.kind == "dense":
            queries = model.load("queries").encode(list(topics.values()), config.max_query_length)
            products = queries @ vectors[-1].T
            best = np.argsort(-products, axis=1, kind="stable")[:, :11]
            hits = {
                query: [(documents[i].id, float(row[i])) for i in order]
                for query, row, order in zip(topics, products, best, strict=True)
            }
            run = without_query(run_of(hits)) if removes_query("auto", qrels) else run_of(hits)
            scores.append(mean(measure(qrels, run, ["nDCG@10"])["nDCG@10"]))
    return cosines(vectors[2], vectors[0]), scores


def table(rows: Sequence[Sequence[object]], *header: str) -> None:
    harness.show("Cosines of int8 with float32", header, rows)


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.models.test_architectures import ARCHITECTURES

    table([(name, *(f"{value:.4f}" for value in of_random(name))) for name in ARCHITECTURES], "", "SPLADE", "dense")
    rows = []
    for encoder in ("splade-tiny", "minilm"):
        found, scores = of_trained(encoder, args.collection)
        rows.append((encoder, *(f"{value:.4f}" for value in (found.min(), np.median(found), *scores))))
    table(rows, "", "least", "median", *(f"nDCG@10, {precision}" for precision in PRECISIONS))


if __name__ == "__main__":
    main()
