"""Whether vectors are the same as others, and as good: without Lucene, and for nDCG without quantization."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def agreement(first: str, second: str) -> dict[str, Any]:
    """The share of the entries of either of two matrices that are the same in both."""
    from scipy.sparse import load_npz

    a, b = load_npz(first), load_npz(second)
    either = ((a != 0) + (b != 0)).nnz
    return {"same": 1 - (a != b).nnz / either, "entries": either}


def ndcg(collection: str, encoder: str, device: str, folder: str, precisions: Sequence[str]) -> dict[str, Any]:
    """nDCG@10 of exact dot products, without and with IDF, for each precision of the documents."""
    import numpy as np
    from scipy.sparse import vstack

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.core.trec import run_of, without_query
    from cai_pyserini.encode.encode import encode
    from cai_pyserini.encode.encoder import Encoder
    from cai_pyserini.encode.queries import encode_queries
    from cai_pyserini.evaluate.measures import mean, measure
    from cai_pyserini.idf.idf import Idf
    from cai_pyserini.impact.quantization import weighted
    from cai_pyserini.retrieval.search import removes_query
    from cai_pyserini.vectors.shards import Vectors

    config, index_config = load_encoder(encoder), load_index_config(collection)
    opened = open_collection(index_config)
    topics, qrels = opened.topics(index_config.split), opened.qrels(index_config.split)
    loaded = Encoder(config, device)
    queries = encode_queries(loaded, list(topics.values()), "splade")
    contents = (document.contents for document in opened.documents())
    weightings = {"splade": None, "splade-idf": Idf.of(contents, loaded.tokenizer).weights()}
    remove_query = removes_query(index_config.remove_query, qrels)
    scores: dict[str, Any] = {}
    for precision in precisions:
        shards = list(Vectors(encode(opened, Encoder(config, device, precision), Path(folder, precision))))
        ids = np.array([id for shard in shards for id in shard.ids])
        for name, weights in weightings.items():
            documents = weighted(vstack([shard.vectors for shard in shards], format="csr"), weights).T.tocsr()
            hits = {}
            for number, query in enumerate(topics):
                products = (queries[number] @ documents).toarray()[0]
                best = np.argsort(-products, kind="stable")[:11]  # one more than counts: the query may be a document
                hits[query] = [(str(ids[i]), float(products[i])) for i in best if products[i] > 0]
            run = without_query(run_of(hits)) if remove_query else run_of(hits)
            scores.setdefault(name, {})[precision] = mean(measure(qrels, run, ["nDCG@10"])["nDCG@10"])
    return {"scores": scores}
