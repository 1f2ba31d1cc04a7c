"""Which stages are made again when a module is edited: those whose results it shapes, and no others."""

import re
import shutil
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cai_pyserini.collections.file_text import READERS
from cai_pyserini.collections.formats import SUFFIXES
from cai_pyserini.core import identity
from cai_pyserini.core.identity import STAGES, changed_code, code_of_stages
from cai_pyserini.core.source_code import CHOOSING, MACHINERY, PACKAGE, SourceCode, recorded
from tests.core.stages import record

ENCODE = {f"encode {role} {kind}" for role in ("documents", "queries") for kind in ("splade", "dense", "dense idf")}
QUERIES = {name for name in ENCODE if "queries" in name}
SPLADE = {name for name in ENCODE if name.endswith("splade")}
SEARCH = {f"search {kind}" for kind in ("bm25", "dense", "impact")}
FOLDERS = {"collection beir_folder", "collection file_folder"}
READ = FOLDERS | {"beir check", "beir evaluation", "collection hpo", "collection ir_dataset", "idf", "words"}
SPARSE_INDEXES = {"index bm25", "index impact"}
# Of the main way (docs/design/architecture.md), in its order: an expression, another, and the stages that it shapes.
EDITS = {
    "experiments.plan": ("yield", "yield", set()),
    "core.steps": ("width=len", "width=1 + len", set()),
    "experiments.execute": ("outputs = []", "outputs = [*()]", set()),
    "collections.contract": (" + ", " + '' + ", READ | ENCODE | SEARCH | SPARSE_INDEXES | {"expand", "fusion rerank"}),
    "collections.beir_folder": ("utf-8", "latin-1", FOLDERS),
    "impacts.document_frequencies": ("document.contents for", "document.contents[9:] for", {"idf"}),
    "models.idf": (
        "np.log(documents / np.maximum(frequencies, 1))",
        "np.log(documents / np.maximum(frequencies, 1)) ** 3",
        {"encode documents dense idf", "encode queries dense idf", "expand", "idf", "impact", "search dense"},
    ),
    "vectors.encode": ("text.contents for", "text.contents[9:] for", ENCODE | {"expand"}),
    "vectors.shards": (
        "np.float32",
        "np.float16",
        ENCODE | SEARCH | {"expand", "impact", "index dense", "near", "smooth", "words"},
    ),
    "models.encoder": ("max_query_length", "max_document_length", ENCODE | SEARCH - {"search bm25"} | {"expand", "impact"}),
    "models.splade": ("log1p", "sqrt", SPLADE | {"search impact"}),
    "models.head": ("log1p", "sqrt", SPLADE | {"search impact"}),
    "lucene.words": ("+ 1", "+ 2", {"words"}),
    "impacts.bm25": ("k1 + 1", "k1 + 2", {"impact"}),
    "impacts.quantization": ("np.rint", "np.floor", {"impact"}),
    "impacts.weighting": ("np.float64", "np.float32", {"impact"}),
    "lucene.impact_index": ("+ 1", "+ 2", {"index impact"}),
    "vectors.queries": ("> 0", ">= 0", QUERIES | SEARCH - {"search bm25"} | {"expand", "impact"}),
    "lucene.searcher": ("+ 1", "+ 2", SEARCH),
    "lucene.retrieve": ("hits + remove_query", "hits", SEARCH),
    "runs.trec": ("score", "rank", SEARCH | {"beir evaluation", "fusion fuse", "fusion rerank"}),
    "runs.measures": ("nDCG@10", "nDCG@5", {"beir evaluation"}),
    "experiments.report": ("0.05", "0.01", set()),
}
BRANCHES = re.compile("adapt|convert|export|judge|plugin|ship|text|trainer")  # off the main way
