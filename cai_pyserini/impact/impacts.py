"""Impacts as JSON vectors, which Anserini's JsonVectorCollection and the index stage read.

One line per document, {"id": …, "contents": "", "vector": {term: impact, …}}, and an encoder.yaml with the settings
used, so that the Pyserini plugin can encode queries, and further documents, in the same way.

Joint impacts also hold the BM25 weights of words, quantized with a range of their own; a word's name begins with
`bm25:`. The query balances both (encode.queries), so that one search has the score alpha * BM25 + SPLADE. Pruning
leaves the words as they are: they are few, and how much their impacts weigh beside SPLADE's depends on the query.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, Joint, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Queries
from cai_pyserini.encode.shards import Shard, Vectors
from cai_pyserini.impact.alpha import estimate_alpha
from cai_pyserini.impact.bm25 import NEAR, Bm25
from cai_pyserini.impact.pruning import prune
from cai_pyserini.impact.quantization import QuantizationLoss, Quantizer
from cai_pyserini.impact.weighting import idf_weights, weighted
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.tokenizer import WORD, Tokenizer


class Impacts:
    """The impacts of a collection, as an encoder.yaml of this stage says; with `bm25`, joint ones.

    Iterating yields int32 impacts (documents, columns), shard by shard; columns are the tokens of the vocabulary, and
    then the words. `loss` adds up what quantization loses of SPLADE.
    """

    def __init__(self, vectors: Vectors, config: EncoderConfig, bm25: Bm25 | None = None):
        terms = Tokenizer(checkpoint_folder(config)).terms
        self.terms = [*terms, *(WORD + word for word in (bm25.words if bm25 else ()))]
        self.quantizer = Quantizer.of(config.bits, config.range or 1.0)
        self.loss = QuantizationLoss(self.quantizer)
        self._vectors, self._config, self._bm25 = vectors, config, bm25
        self._weights = idf_weights(config, len(terms))

    @classmethod
    def of_index(cls, index: Path, vectors: Path, words: Path, expansion: Path) -> "Impacts":
        """Those of an index, made again from the vectors and, for a joint index, the words and expansion it was made
        from."""
        config = load_encoder(str(index))
        joint = config.joint
        near = expansion if joint and joint.expanded else None
        return cls(Vectors(vectors), config, Bm25(words, joint.k1, joint.b, expansion=near) if joint else None)

    def __iter__(self) -> Iterator[Shard]:
        impacts: csr_matrix
        words = self._bm25.shards() if self._bm25 else repeat(None)
        for shard, of_words in zip(self._vectors, words, strict=self._bm25 is not None):
            weights = weighted(shard.vectors, self._weights)
            impacts = self.quantizer.impacts(weights)
            self.loss.add(weights, impacts)
            impacts = prune(impacts, self._config)
            if of_words and self._bm25 and self._config.joint:
                if of_words.ids != shard.ids:
                    raise _other_documents(self._vectors, self._bm25)
                more = Quantizer.of(self._config.joint.bits, self._config.joint.range).impacts(of_words.vectors)
                impacts = hstack([impacts, more], format="csr")
            yield Shard(shard.ids, impacts)

    def queries(self, queries: Queries) -> csr_matrix:
        """Query weights (queries, columns), in the order of the topics."""
        columns = {term: column for column, term in enumerate(self.terms)}
        encoded: dict[str, Any] = queries.for_search(self._config.query_scale)[0]
        entries = [
            (row, columns[term], weight)
            for row, query in enumerate(encoded.values())
            for term, weight in query.items()
            if term in columns
        ]
        rows, indices, weights = np.array(entries, np.int64).reshape(-1, 3).T
        return csr_matrix((weights.astype(np.float32), (rows, indices)), shape=(len(encoded), len(columns)))


def write_impacts(
    vectors: Vectors, config: EncoderConfig, output: Path, bm25: Bm25 | None = None, encoder: Encoder | None = None
) -> Path:
    """Write the impacts of a collection as JSON vectors, one file per shard; with `bm25`, joint ones.

    `encoder` encodes the spans that alpha is estimated with; it is that of the vectors, and only needed to share a
    loaded model. Raises CaiError for dense vectors, for vectors of another encoder, and for words of other documents.
    """
    recipe = {
        "stage": "impact",
        "vectors": vectors.manifest.digest,
        "checkpoint": vectors.manifest.recipe["checkpoint"],
        "idf": artifact.require(Path(config.idf), "idf").digest if config.idf else None,
        "encoder": config.model_dump(exclude={"name", "checkpoint", "revision", "idf", "source"}),  # its encoder.yaml
        "bm25": bm25 and [bm25.counts.manifest.digest, bm25.k1, bm25.b, bm25.alpha],
        "expansion": bm25 and bm25.near and [bm25.near.manifest.digest, NEAR],
    }

    def write(folder: Path) -> artifact.Stats:
        if vectors.kind == "dense":
            raise CaiError(f"{vectors.folder} has dense vectors: index them with `index dense`")
        if checkpoint_digest(checkpoint_folder(config)) != recipe["checkpoint"]:
            raise CaiError(f"{vectors.folder} was not encoded with {config.name}: encode the documents again with it")
        if bm25 and (len(bm25.counts), bm25.counts.shards) != (len(vectors), vectors.shards):
            raise _other_documents(vectors, bm25)
        weights = idf_weights(config, vectors.width)
        largest = config.range or _largest((weighted(s.vectors, weights) for s in vectors), vectors.folder)
        used = config.replace(range=largest, joint=None)
        if bm25:
            alpha = estimate_alpha(vectors, weights, bm25, encoder or Encoder(config))
            largest = _largest((shard.vectors for shard in bm25.shards()), bm25.folder)
            used = used.replace(
                joint=Joint(alpha=alpha, range=largest, k1=bm25.k1, b=bm25.b, expanded=bm25.near is not None)
            )
        impacts = Impacts(vectors, used, bm25)
        nonzeros = 0
        for number, shard in enumerate(progress(impacts, vectors.shards, f"impacts {output.name}", "shard")):
            nonzeros += int(np.count_nonzero(shard.vectors.data))
            with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json_vectors(shard.ids, shard.vectors, impacts.terms))
        artifact.write_text(folder / "encoder.yaml", encoder_yaml(used, output))
        return {
            "vectors": len(vectors),
            "nonzeros": nonzeros,
            "document_scale": impacts.quantizer.scale,
            "loss": impacts.loss.stats(),
            "alpha": used.joint and used.joint.alpha,
        }

    return artifact.make(output, recipe, write)


def _other_documents(vectors: Vectors, bm25: Bm25) -> CaiError:
    return CaiError(f"{vectors.folder} and {bm25.folder} have different documents: count the words again")


def _largest(vectors: Iterable[csr_matrix], folder: Path) -> float:
    """The largest weight of a collection. Raises CaiError where there is none."""
    largest = max(float(matrix.data.max(initial=0)) for matrix in vectors)
    if not largest > 0:
        raise CaiError(f"{folder}: no document has any weight; is this a SPLADE checkpoint?")
    return largest


def json_vectors(ids: Sequence[str], impacts: csr_matrix, terms: Sequence[str]) -> list[str]:
    """One JSON line per row, with its newline; terms are in vocabulary order."""
    names = {column: json.dumps(terms[column], ensure_ascii=False) for column in np.unique(impacts.indices).tolist()}
    lines = []
    for row, id in enumerate(ids):
        entries = slice(impacts.indptr[row], impacts.indptr[row + 1])
        pairs = zip(impacts.indices[entries].tolist(), impacts.data[entries].tolist(), strict=True)
        vector = ", ".join([f"{names[column]}: {value}" for column, value in pairs])
        lines.append(f'{{"id": {json.dumps(id)}, "contents": "", "vector": {{{vector}}}}}\n')
    return lines
