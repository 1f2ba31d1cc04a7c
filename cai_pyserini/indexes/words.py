"""Count the words of documents and of random text spans.

The impact stage computes BM25 from the counts, with its own k1 and b. There, the spans stand in for queries when BM25
and SPLADE are balanced, so they are random, and need neither titles nor punctuation. The lexicon is for the expand
stage: words are stems, which a dense encoder does not know, so each is listed with a form that occurs in texts. That
stage also learns the meanings of words from contexts, which are more spans. Their sampling is stable: unchanged
documents yield the same contexts, which need not be encoded again.
"""

import logging
import random
import re
import sqlite3
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import batched
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.collections.contract import Collection, Document
from cai_pyserini.collections.spans import CONTEXTS, UNSPACED, Contexts, Reservoir, random_span
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import unless_english
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.vectors.shards import SHARD, Shard, write_shards

SPANS = 500
SEED = 42
LEXICON = 50_000  # words
FORMS = 500_000  # held in memory before they are written to the file
FORM = re.compile(r"[^\W\d_]{2,}")
INFLECTED = ("pl", "uk")  # languages whose analyzer returns all possible base forms of a word
FORMLESS = UNSPACED | {"bn", "hi", "te"}  # languages whose words FORM cannot find; it excludes vowel signs

logger = logging.getLogger(__name__)


def count_words(collection: Collection, output: Path) -> Path:
    """Write a folder with shards of counts (documents, words); words.txt, one word per line in the order of the
    columns; spans.jsonl and contexts.jsonl, {"text": …, "words": {word: count}}; and lexicon.jsonl, {"word": …,
    "form": …}, the words with the highest document frequency, each with its most frequent form."""
    language, inputs = collection.language, {"documents": collection.fingerprint("documents")}
    recipe = artifact.recipe("words", inputs, language=unless_english(language))

    def write(folder: Path) -> artifact.Stats:
        if language in INFLECTED:
            logger.warning(
                "words of the language %s can have several base forms, all of which count in the length of a document "
                "in a joint index, but not in an index of BM25: its weights are slightly different there",
                language,
            )
        analyzer = Analyzer(language)
        columns: dict[str, int] = {}
        draw = random.Random(SEED)
        spans, contexts = Reservoir[str](SPANS, draw), Contexts(CONTEXTS, language)
        forms = Forms(folder / "forms")

        def counted(documents: Sequence[Document]) -> Shard:
            for document in documents:
                contents = document.contents
                forms.add(analyzer(contents) if language in FORMLESS else FORM.findall(contents.lower()))
                if span := random_span(contents, draw, language):
                    spans.add(span)
                contexts.add(contents)
            return Shard([document.id for document in documents], _count(documents, analyzer, columns))

        parts = batched(progress(collection.documents(), collection.size, "words"), SHARD)
        counts = write_shards(folder, artifact.digest(recipe), parts, counted)
        with (folder / "words.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{word}\n" for word in columns)
        with closing(forms):
            jsonl.write(folder / "lexicon.jsonl", _lexicon(forms, analyzer, columns))
        for name, sample in (("spans", spans.items), ("contexts", contexts.items)):
            lines = ({"text": span, "words": Counter(analyzer(span))} for span in sample)
            jsonl.write(folder / f"{name}.jsonl", lines)
        stats = {"encoder": {"kind": "words"}, "documents_digest": collection.documents_digest}
        return counts | stats | {"words": len(columns)}

    return artifact.make(output, recipe, write)


class Forms:
    """The document frequency of each form, in a file, because there are far more forms than words.

    Iterating yields the forms that occur in at least two documents, most frequent first; ties keep the order in which
    they were found.
    """

    def __init__(self, path: Path):
        self._path, self._recent = path, Counter[str]()
        self._file = sqlite3.connect(path)
        self._file.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE forms (form TEXT PRIMARY KEY, documents INTEGER)"
        )

    def add(self, forms: Iterable[str]) -> None:
        """Count the distinct forms of a document."""
        self._recent.update(list(dict.fromkeys(forms)))
        if len(self._recent) >= FORMS:
            self._write()

    def __iter__(self) -> Iterator[str]:
        self._write()
        rows = self._file.execute("SELECT form FROM forms WHERE documents > 1 ORDER BY documents DESC, rowid")
        return (form for (form,) in rows)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
        self._path.unlink()

    def _write(self) -> None:
        self._file.executemany(
            "INSERT INTO forms VALUES (?, ?) ON CONFLICT DO UPDATE SET documents = documents + excluded.documents",
            self._recent.items(),
        )
        self._recent.clear()


def _lexicon(forms: Iterable[str], analyzer: Analyzer, columns: Container[str]) -> Iterator[dict[str, str]]:
    """The words with the highest document frequency, with their most frequent forms."""
    listed: set[str] = set()
    for form in forms:
        if len(listed) == LEXICON:
            return
        match analyzer(form):
            case [word] if word in columns and word not in listed:
                listed.add(word)
                yield {"word": word, "form": form}


def _count(documents: Sequence[Document], analyzer: Analyzer, columns: dict[str, int]) -> csr_matrix:
    """Counts (documents, words so far); new words are added to `columns`."""
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
