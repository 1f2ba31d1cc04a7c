"""The settings of every analysis."""

from typing import ClassVar

from cai_pyserini.core.flags import COLLECTION, ENCODER, SPLIT
from cai_pyserini.core.settings import AnyPath, Settings, flag

OUTPUT = flag(help="output folder; earlier results in it are replaced")
RUN_FOLDER = "run folder, written by run_beir.sh"


class CoverageSettings(Settings):
    """Measure vocabulary coverage: which words of a collection an encoder has to split into word pieces.

    It also estimates how many fewer pieces the collection would have with these words in the vocabulary.
    For comparison, with BERT's vocabulary (splade-tiny):

      collection  pieces per word  covered: occurrences  distinct words  1,000 words save  3,000 words save
      cacm                   1.12                 92.3%           56.2%              7.0%              9.5%
      scifact                1.30                 83.7%           28.9%             10.3%             15.4%
      hpo                    1.40                 80.5%           34.8%             16.9%             23.1%
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.analysis coverage --collection hpo --encoder splade-tiny --output analysis"
    )
    collection: str = COLLECTION
    encoder: str = ENCODER
    output: AnyPath = OUTPUT
    top: int = flag(30, "number of words to show", ge=0)


class OverlapSettings(Settings):
    """Measure vocabulary overlap: how similar the word frequencies of collections are.

    The measure is weighted Jaccard similarity. Counting the words of a large collection takes a while;
    --save-frequencies saves the counts as a table, which can be given instead of the collection next time.
    """

    example: ClassVar[str] = "python -m cai_pyserini.analysis overlap hpo scifact msmarco.tsv --output analysis"
    collections: list[str] = flag(
        help="names in index_configs/, YAML files, folders in BEIR's layout, files of documents (.jsonl, .parquet, "
        ".csv), .txt files (one text per line), or saved tables (.tsv)",
        positional=True,
    )
    output: AnyPath = OUTPUT
    save_frequencies: bool = flag(False, "save the word counts of each collection as a table, NAME.tsv")


class RsjSettings(Settings):
    """Show which query words runs overestimate or underestimate, by their RSJ weight and IDF."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.analysis rsj --collection hpo --runs splade.trec splade-idf.trec --output analysis"
    )
    collection: str = COLLECTION
    runs: list[AnyPath] = flag(help="TREC runs to compare")
    output: AnyPath = OUTPUT
    split: str | None = SPLIT
    depth: int = flag(100, "treat this many best documents per query as those that the run considers relevant", ge=1)


class CostSettings(Settings):
    """Show what systems cost: non-zeros, index size, products per query-document pair, latency."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.analysis cost --run-folders runs/hpo/splade-tiny runs/hpo/adapted --output analysis"
    )
    run_folders: list[AnyPath] = flag(help=f"{RUN_FOLDER}; one or more")
    output: AnyPath = OUTPUT


class EfficiencySettings(Settings):
    """Show how fast a system is, and how good, with pruned documents and queries.

    It builds the indexes in the output folder, where a later call finds them, and searches them side by side with stock
    LuceneImpactSearcher on the index that is not pruned: one thread, queries encoded before. The aim is half of stock's
    median and 99th percentile, at a loss of at most 1% of nDCG@10.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.analysis efficiency --run-folder runs/hpo/splade-tiny --output analysis"
    )
    run_folder: AnyPath = flag(help=RUN_FOLDER)
    output: AnyPath = OUTPUT
    system: str = flag("splade-idf", "a SPLADE system with an index and qrels")
    keep_mass: list[float] = flag([0.9], "prune documents to the largest impacts with these shares of their sum")
    keep_terms: list[int] = flag([], "prune documents to these numbers of impacts")
    keep_query_terms: list[int] = flag(
        [16, 8], "prune queries to these numbers of terms, with each pruning of documents"
    )
    rescore: list[int] = flag([100], "with each of them, also score as many documents with all terms of the query")
    hits: list[int] = flag([10, 1000], "hits per query")
    queries: int = flag(300, "number of queries to time; all are evaluated", ge=1)
    rounds: int = flag(3, "how often each query is timed, after a warm-up", ge=1)


class ExplainSettings(Settings):
    """Explain the scores of documents for a query, term by term, in the systems of a finished run.

    It explains the best documents of each system, and relevant documents wherever they are ranked.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.analysis explain --run-folder runs/hpo/splade-tiny --query q7 --output analysis"
    )
    run_folder: AnyPath = flag(help=RUN_FOLDER)
    query: str = flag(help="id of a query")
    output: AnyPath = OUTPUT
    systems: list[str] = flag(["bm25", "splade-idf", "hybrid-splade-idf"], "systems, named as in the table of results")
    depth: int = flag(5, "number of best documents of each system to explain", ge=0)
    relevant: int = flag(3, "number of relevant documents to explain as well, highest grades first", ge=0)
    documents: list[str] = flag([], "explain the documents with these ids instead")
    terms: int = flag(10, "number of terms to show per document; explain.json has all of them", ge=1)


class CompareSettings(Settings):
    """Compare two runs query by query: significance tests, and the queries that differ most."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.analysis compare --collection hpo --runs bm25.trec splade-idf.trec --output analysis"
    )
    collection: str = COLLECTION
    runs: list[AnyPath] = flag(help="two TREC runs, A and B", min_length=2, max_length=2)
    output: AnyPath = OUTPUT
    split: str | None = SPLIT
    measure: str = flag("nDCG@10", "measure to compare, as ir_measures names it")
    top: int = flag(10, "number of queries to show with the largest gain, and with the largest loss", ge=0)
