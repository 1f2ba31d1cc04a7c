"""Whether vectors are the same as others, and as good: without Lucene, and for nDCG without quantization."""

from pathlib import Path
from typing import Any


def agreement(first: str, second: str) -> dict[str, Any]:
    """The share of the entries of either of two matrices that are the same in both."""
    from scipy.sparse import load_npz

    a, b = load_npz(first), load_npz(second)
    either = ((a != 0) + (b != 0)).nnz
    return {"same": 1 - (a != b).nnz / either, "entries": either}


def ndcg(collection: str, encoder: str, device: str, folder: str) -> dict[str, Any]:
    """nDCG@10 of exact dot products, without and with IDF, for each precision of the documents."""
    import numpy as np
    import pandas as pd
    from scipy.sparse import vstack

    from cai_pyserini.collection import open_collection
    from cai_pyserini.config import load_encoder, load_index_config
    from cai_pyserini.encode import LazyEncoder, encode
    from cai_pyserini.evaluate import evaluate, mean
    from cai_pyserini.idf import Idf
    from cai_pyserini.impact import weighted
    from cai_pyserini.search import without_query
    from cai_pyserini.vectors import Vectors

    config, index_config = load_encoder(encoder), load_index_config(collection)
    opened = open_collection(index_config)
    topics, qrels = opened.topics(index_config.split), opened.qrels(index_config.split)
    splade = LazyEncoder(config, device).load("queries")
    queries = splade.encode(list(topics.values()), config.max_query_length)
    contents = (document.contents for document in opened.documents())
    weightings = {"splade": None, "splade-idf": Idf.of(contents, splade.tokenizer).weights()}
    scores: dict[str, Any] = {}
    for precision in ("float32", "bfloat16"):
        shards = list(Vectors(encode(opened, LazyEncoder(config, device, precision), Path(folder, precision))))
        ids = np.array([id for shard in shards for id in shard.ids])
        for name, weights in weightings.items():
            documents = weighted(vstack([shard.matrix for shard in shards], format="csr"), weights).T.tocsr()
            run = {}
            for number, query in enumerate(topics):
                products = (queries[number] @ documents).toarray()[0]
                best = np.argsort(-products, kind="stable")[:11]  # one more than counts: the query may be a document
                run[query] = [(ids[i], products[i]) for i in best if products[i] > 0]
            run = without_query(run, 10) if index_config.remove_query else run
            hits = [(query, id, score) for query, found in run.items() for id, score in found]
            frame = pd.DataFrame(hits, columns=["query_id", "doc_id", "score"])
            scores.setdefault(name, {})[precision] = mean(evaluate(qrels, frame, ["nDCG@10"])["nDCG@10"])
    return {"scores": scores}
