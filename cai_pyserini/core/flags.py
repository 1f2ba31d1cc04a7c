"""Values that several commands share, with their help texts."""

from cai_pyserini.core.settings import flag

COLLECTION = flag(help="a name in index_configs/, a YAML file, or a BEIR folder")
ENCODER = flag(help="a name in encoders/, a YAML file, a checkpoint folder, or a hub id")
SPLIT = flag(None, "of the queries and qrels (default: the collection's, test)")
OUTPUT_FOLDER = flag(help="folder to write")
OUTPUT_RUN = flag(help="run to write")
DEVICE = flag("auto", "cpu, cuda, cuda:1, …; auto: cuda if there is one")
PRECISION = flag("auto", "of the matrix products; auto: bfloat16 where the hardware gains from it")
BATCH_SIZE = flag(None, "texts of full length per batch (default: 16 on a CPU, 256 on a GPU)", ge=1)
THREADS = flag(0, "of BM25 indexing and of search; 0: one per processor", ge=0)
