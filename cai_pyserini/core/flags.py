"""Flags that several commands share."""

import re
from typing import Literal

from cai_pyserini.core.settings import flag
from cai_pyserini.core.tables import Format

COLLECTION_TEXT = (
    "a name in index_configs/, a YAML file, a folder in BEIR's layout or of files (PDF, Word, HTML, …), a file of "
    "documents, or pyserini:INDEX"
)
COLLECTION = flag(help=COLLECTION_TEXT)
ENCODER_TEXT = "a name in encoders/, a YAML file, a checkpoint folder, or a Hugging Face model id"
ENCODER = flag(help=ENCODER_TEXT)
SPLIT = flag(None, "split of the queries and qrels to use (default: the collection's, usually test)")
STRICT = flag(
    None,
    "refuse judgments of documents that the collection lacks, queries without text, metadata of another type, and "
    "files that cannot be read (default: leave them out)",
)
OUTPUT_FOLDER = flag(help="output folder")
OUTPUT_ANALYSIS = flag(help="output folder; earlier results in it are replaced")
RUN_FOLDER = flag(help="run folder, written by `cai-pyserini run`", positional=True)
VECTORS = flag(help="folder written by the encode stage")
OUTPUT_RUN = flag(help="output file, a TREC run")
MEASURES = ("nDCG@10", "R@100", "RR@10")
MEASURES_FLAG = flag(
    [*MEASURES], "measures, in ir_measures' syntax; systems are compared by the first one", min_length=1
)
FORMAT: Format = flag(
    "text", "format of the tables; latex is for the package booktabs; csv and tsv have all numbers in one table"
)
DEVICE = flag("auto", "cpu, cuda, cuda:1, …; auto: the GPU if there is one")
PRECISION = flag("auto", "precision of matrix products; auto: bfloat16 where the hardware runs it faster than float32")
DOCUMENT_PRECISION = flag(
    "auto",
    "precision of matrix products for documents; auto: bfloat16 where the hardware runs it faster than float32; int8, "
    "on CPUs with VNNI: up to 1.8 times as fast as bfloat16 for models of 66 million parameters or more, but vectors "
    "deviate by 3 to 10% from float32's",
)
BATCH_SIZE = flag(
    None,
    "texts of maximum length per batch; batches of shorter texts hold more (default: on a CPU 2,048 / the width of the "
    "model, such as 16 for splade-tiny; on a GPU 256)",
    ge=1,
)
QUERY = flag(None, "SPLADE queries, or bags of words, which need no model (default: the encoder's setting)")
REMOVE_QUERY = flag(
    None,
    "whether to remove a hit that has the id of its query; auto: if the qrels judge no such hit relevant "
    "(default: the collection's, usually auto)",
)
FILTER = flag(None, "search only documents with such metadata and words: year>=2020 AND NOT contents:mouse")
TOPICS_FILE = "JSONL, Parquet, CSV, TSV with id and text, or TREC's topics; -: standard input"
Search = Literal["exact", "fast"]
DenseMethod = Literal["flat", "hnsw", "ivfpq"]
DENSE_METHOD: DenseMethod = flag(
    "flat",
    "flat: exact search; the others are approximate, for millions of vectors: hnsw, a graph, the fastest; ivfpq: "
    "clusters of compressed vectors, the smallest. The recall of an approximate search is measured and printed",
)
API_KEY = "CAI_PYSERINI_API_KEY"  # environment variable with the key of a service
MODEL_KEY = "CAI_PYSERINI_MODEL_KEY"  # environment variable with the key for a language model
THREADS = flag(0, "processors to use at most (default: 0, all)", ge=0)
NO_RAW = flag(False, "do not store the documents in the index, which is then smaller, but cannot show titles and texts")


def without_password(uri: str) -> str:
    """A URI without user and password, to print and store."""
    return re.sub(r"(?<=://).*@", "", uri)
