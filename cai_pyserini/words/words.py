"""Count the words of a collection, and of spans of its text.

The counts are what BM25 is computed from; k1 and b come later, in the impact stage. The spans stand in for queries
there: they balance BM25 and SPLADE, so they are random, and need neither titles nor punctuation. The lexicon is for the
expand stage: words are stems, which a dense encoder does not know, so each has a form that occurs in the text.
"""

import random
import re
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import batched
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.collection.contract import Collection, Document
from cai_pyserini.collection.sample import Reservoir
from cai_pyserini.collection.spans import random_span
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.shards import SHARD, Shard, shard_path, write_shard
from cai_pyserini.words.analyzer import Analyzer

SPANS = 500
SEED = 42
LEXICON = 50_000  # words
FORM = re.compile(r"[^\W\d_]{2,}")


def count_words(collection: Collection, output: Path) -> Path:
    """Write a folder with shards of counts (documents, words), as those of raw vectors; words.txt, one word a line,
    in the order of the columns; spans.jsonl, {"text": …, "words": {word: count}}; and lexicon.jsonl, {"word": …,
    "form": …}, the words of most documents, each in its most frequent form."""
    recipe = {
        **artifact.made_by(__name__, "words"),
        "kind": "words",
        "documents": collection.fingerprint("documents"),
    }

    def write(folder: Path) -> artifact.Stats:
        analyzer = Analyzer()
        columns: dict[str, int] = {}
        draw = random.Random(SEED)
        spans: Reservoir[str] = Reservoir(SPANS, draw)
        forms: Counter[str] = Counter()
        documents = shards = nonzeros = 0
        bar = progress(collection.documents(), collection.size, "words")
        for shards, slice_ in enumerate(batched(bar, SHARD), 1):
            counts = _count(slice_, analyzer, columns)
            write_shard(
                shard_path(folder, shards - 1), Shard([d.id for d in slice_], counts), artifact.digest(recipe), 0.0, 1
            )
            documents += len(slice_)
            nonzeros += counts.nnz
            for document in slice_:
                forms.update(set(FORM.findall(document.contents.lower())))
                if span := random_span(document.contents, draw):
                    spans.add(span)
        artifact.write_text(folder / "words.txt", "".join(f"{word}\n" for word in columns))
        jsonl.write(folder / "lexicon.jsonl", _lexicon(forms, analyzer, columns))
        jsonl.write(folder / "spans.jsonl", ({"text": span, "words": Counter(analyzer(span))} for span in spans.items))
        return {"vectors": documents, "shards": shards, "nonzeros": nonzeros, "words": len(columns)}

    return artifact.make(output, recipe, write)


def _lexicon(forms: Counter[str], analyzer: Analyzer, columns: Container[str]) -> Iterator[dict[str, str]]:
    """The words of most documents, with their most frequent forms; `forms` has the numbers of documents."""
    found: set[str] = set()
    for form, documents in forms.most_common():
        if documents < 2 or len(found) == LEXICON:
            return
        match analyzer(form):
            case [word] if word in columns and word not in found:
                found.add(word)
                yield {"word": word, "form": form}


def _count(documents: Sequence[Document], analyzer: Analyzer, columns: dict[str, int]) -> csr_matrix:
    """Counts (documents, words so far); `columns` gets the new words."""
    indices, counts, indptr = array("i"), array("f"), [0]
    for document in documents:
        words = Counter(analyzer(document.contents))
        indices.extend([columns.setdefault(word, len(columns)) for word in words])
        counts.extend(words.values())
        indptr.append(len(indices))
    shape = len(documents), len(columns)
    matrix = csr_matrix((np.array(counts, np.float32), np.array(indices, np.int32), np.array(indptr)), shape=shape)
    matrix.sort_indices()
    return matrix
