"""The engines that search indexes, by what lies in a folder. A new one is a subclass of Searcher, and an entry here."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.core import artifact
from cai_pyserini.core.config import BM25, Bm25Parameters
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import require_modules
from cai_pyserini.indexes.faiss import FaissSearcher
from cai_pyserini.indexes.lucene_impacts import LuceneImpacts
from cai_pyserini.indexes.lucene_text import LuceneText
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.vectors.queries import TwoStep


class SearchOptions(NamedTuple):
    """How an index is searched, for the engines that can be told."""

    bm25: Bm25Parameters = BM25
    two_step: TwoStep | None = None  # for impacts


DEFAULTS = SearchOptions()


def _milvus(index: Path, options: SearchOptions) -> Searcher:
    require_modules(("pymilvus",), "export")
    from cai_pyserini.indexes.milvus import MilvusSearcher  # of an extra

    return MilvusSearcher(index)


ENGINES: dict[str, Callable[[Path, SearchOptions], Searcher]] = {  # by the kind of an index
    "impact": lambda index, options: LuceneImpacts(index, options.two_step),
    "bm25": lambda index, options: LuceneText(index, options.bm25),
    "dense": lambda index, options: FaissSearcher(index),
    "milvus": _milvus,
}


def open_searcher(index: Path, options: SearchOptions = DEFAULTS) -> Searcher:
    """Open an index, or an export to Milvus. Raises CaiError for another folder."""
    return ENGINES[kind_of(index, artifact.require(index, "index", "export"))](index, options)


def kind_of(folder: Path, manifest: artifact.Manifest) -> str:
    """What an index is searched by, a key of ENGINES. Raises CaiError for one that cannot be searched."""
    if manifest.recipe["stage"] == "export":
        if "milvus" in manifest.stats:
            return "milvus"
        raise CaiError(f"{folder} is no export to Milvus that can be searched here: export again")
    if (kind := manifest.stats["kind"]) not in ENGINES:
        raise CaiError(
            f"{folder} cannot be searched here: it is of the kind {kind}, and known are {', '.join(ENGINES)}"
        )
    return kind
