"""Rerank the first documents of a run with a cross-encoder (Nogueira & Cho 2019).

    score = w · h_[CLS](query, document) + b                               (Iida & Okazaki 2022, Appendix A)

The model reads query and document together: a forward pass a pair.
"""

import time
from collections.abc import Callable, Sequence
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cai_pyserini import cli
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Collection, open_collection
from cai_pyserini.config import checkpoint_folder, load_encoder, load_index_config
from cai_pyserini.splade import BATCH_SIZE, Precision, TextEncoder, batches, load_pretrained
from cai_pyserini.trec import Run, read_run, write_run

if TYPE_CHECKING:
    import pandas as pd

MAX_LENGTH = 512  # tokens of a query and document together
PART = 4096  # pairs that are tokenized at a time


class CrossEncoder(TextEncoder):
    """A cross-encoder: any checkpoint for sequence classification with one label."""

    def __init__(self, checkpoint: Path, device: str = "auto", precision: Precision = "auto"):
        super().__init__(checkpoint, device, precision)
        model = load_pretrained("AutoModelForSequenceClassification", checkpoint, "sequence-classification head")
        if model.config.num_labels != 1:
            raise CaiError(f"{checkpoint} has {model.config.num_labels} labels; a cross-encoder has one, the score")
        self._take(model)

    def score(
        self, queries: Sequence[str], documents: Sequence[str], done: Callable[[int], object] = lambda count: None
    ) -> np.ndarray:
        """Score pairs of queries and documents: float32 (pairs,)."""
        size = BATCH_SIZE[self.device.type]
        scores = np.empty(len(queries), np.float32)
        for part in batched(range(len(queries)), PART):
            pairs = self.tokenizer.pairs(
                [queries[i] for i in part], [documents[i] for i in part], min(MAX_LENGTH, self._max_length)
            )
            grouped = list(batches([len(pair) for pair in pairs], size * MAX_LENGTH, 8 * size))
            for batch, (found,) in zip(grouped, self._each([[pairs[i] for i in b] for b in grouped]), strict=True):
                scores[[part[i] for i in batch]] = found
                done(len(batch))
        return scores

    @torch.inference_mode()
    def _entries(self, pairs: list[Any]) -> tuple[np.ndarray, ...]:
        """The scores of tokenized pairs."""
        ids, mask = self._padded([pair.ids for pair in pairs])
        more = {}
        if self.tokenizer.has_types:
            types, _ = self._padded([pair.type_ids for pair in pairs])
            more["token_type_ids"] = types * mask
        return (self._run(ids, mask, **more).logits[:, 0].float().numpy(force=True),)


def rerank(
    run: "pd.DataFrame", topics: dict[str, str], collection: Collection, model: CrossEncoder, depth: int
) -> tuple[Run, float]:
    """The first `depth` documents of every query of a run, as read_run gives it, in the order of the model's scores,
    and the seconds that scoring took."""
    top = run.groupby("query_id", sort=False).head(depth)
    if unknown := sorted(set(top.query_id) - topics.keys()):
        raise CaiError(f"the run has results of query {unknown[0]!r}, which is not among the topics")
    contents = collection.contents(set(top.doc_id), "the run")
    start = time.perf_counter()
    with cli.progress(range(0), len(top), "rerank", "pair") as bar:
        scores = model.score(
            [topics[query] for query in top.query_id], [contents[document] for document in top.doc_id], bar.update
        )
    seconds = time.perf_counter() - start
    scored = top.assign(score=scores).sort_values(["score", "doc_id"], ascending=[False, True])
    return {
        str(query): list(zip(hits.doc_id, hits.score.astype(float), strict=True))
        for query, hits in scored.groupby("query_id")
    }, seconds


def main() -> None:
    parser = cli.parser(
        "Rerank the first documents of a run with a cross-encoder.",
        "python -m cai_pyserini.rerank --collection scifact --run bm25.trec "
        "--cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output reranked.trec",
    )
    parser.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--split", help="whose queries; default: the collection's, test")
    parser.add_argument("--run", type=Path, required=True, help="run to rerank")
    parser.add_argument("--depth", type=int, default=100, help="documents a query")
    parser.add_argument(
        "--cross-encoder",
        required=True,
        help="a checkpoint folder or a hub id, such as cross-encoder/ms-marco-MiniLM-L-6-v2",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto: cuda where there is one")
    parser.add_argument("--output", type=Path, required=True, help="run to write")
    args = parser.parse_args()
    config = load_index_config(args.collection)
    collection = open_collection(config)
    model = CrossEncoder(checkpoint_folder(load_encoder(args.cross_encoder)), args.device)
    run, seconds = rerank(
        read_run(args.run), collection.topics(args.split or config.split), collection, model, args.depth
    )
    write_run(run, args.output, "cross-encoder")
    print(f"{args.output}: {len(run):,} queries, {1000 * seconds / len(run):.1f} ms each")


if __name__ == "__main__":
    cli.run(main)
