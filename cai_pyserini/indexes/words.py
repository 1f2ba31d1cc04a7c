"""Count the words of documents, those of their names included, and of random text spans; or the n-grams of words.

The impact stage computes BM25 from the counts, with its own k1 and b. There, the spans stand in for queries when BM25
and SPLADE are balanced, so they are random, and need neither titles nor punctuation. The lexicon is for the expand
stage: words are stems, which a dense encoder does not know, so each is listed with a form that occurs in texts. That
stage also learns the meanings of words from contexts, which are more spans. Their sampling is stable: unchanged
documents yield the same contexts, which need not be encoded again.

With a glossary, the folder also has translated words (vectors.translations).
"""

import random
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import batched
from pathlib import Path

import numpy as np
import regex
from scipy.sparse import csr_matrix, save_npz

from cai_pyserini.collections.contract import Collection, Record
from cai_pyserini.collections.glossary import read_glossary
from cai_pyserini.collections.spans import CONTEXTS, Contexts, Reservoir, random_span
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import ENGLISH, Language, joined_languages, unless_english
from cai_pyserini.core.grams import grams
from cai_pyserini.core.terminal import progress
from cai_pyserini.core.text import JOINED, UNSPACED_SCRIPTS
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.vectors.shards import SHARD, Shard, write_shards
from cai_pyserini.vectors.translations import FILE, translations

SPANS = 500
SEED = 42
LEXICON = 50_000  # words
FORM = regex.compile(rf"[\p{{L}}\p{{M}}\p{{N}}--[\p{{Nd}}{UNSPACED_SCRIPTS}\p{{Hangul}}]]{{2,}}", regex.V1)


def count_words(collection: Collection, output: Path) -> Path:
    """Write a folder with shards of counts (documents, words); words.txt, one word per line in the order of the
    columns; spans.jsonl and contexts.jsonl, {"text": …, "words": {word: count}}; and lexicon.jsonl, {"word": …,
    "form": …}, the words with the highest document frequency, each with its most frequent form. With a glossary,
    words.txt also has translations, after the words of documents, and translations.npz their degrees (words,
    columns)."""
    language, inputs = collection.language, {"documents": collection.fingerprint("documents")}
    if glossary := collection.glossary:
        inputs["glossary"] = artifact.file_digest(glossary)
    by_script = language != ENGLISH or None
    recipe = artifact.recipe("words", inputs, language=unless_english(language), by_script=by_script)

    def write(folder: Path) -> artifact.Stats:
        analyzer = Analyzer(language)
        columns: dict[str, int] = {}
        draw = random.Random(SEED)
        spans, contexts = Reservoir[str](SPANS, draw), Contexts(CONTEXTS, language)
        forms = Counter[tuple[str, str]]()  # document frequency of each, by its language

        def counted(records: Sequence[Record]) -> Shard:
            words = []
            for record in records:
                contents = collection.contents_of(record)
                words.append(Counter(analyzer.of(record.language)(f"{contents} {record.names}")))
                own_forms = filter(JOINED.search, words[-1]) if by_script else ()
                found = [*dict.fromkeys(FORM.findall(contents.lower())), *own_forms]
                forms.update((record.language, form) for form in found)
                if span := random_span(contents, draw, language):
                    spans.add(span)
                contexts.add(contents)
            return Shard([record.id for record in records], _count(words, columns))

        stats = _write_counts(folder, recipe, collection, counted, columns)
        jsonl.write(folder / "lexicon.jsonl", _lexicon(forms, analyzer, columns))
        if glossary:
            stats["query_language"] = _translate(glossary, analyzer, language, columns, folder / FILE)
        _write_names(folder, columns)
        for name, sample in (("spans", spans.items), ("contexts", contexts.items)):
            lines = ({"text": span, "words": Counter(analyzer(span))} for span in sample)
            jsonl.write(folder / f"{name}.jsonl", lines)
        return stats

    return artifact.make(output, recipe, write)


def count_grams(collection: Collection, output: Path) -> Path:
    """Write a folder with shards of counts (documents, n-grams), and words.txt, one n-gram per line in the order of the
    columns."""
    recipe = artifact.recipe("words", {"documents": collection.fingerprint("documents")}, grams=True)

    def write(folder: Path) -> artifact.Stats:
        columns: dict[str, int] = {}

        def counted(records: Sequence[Record]) -> Shard:
            texts = (f"{collection.contents_of(record)} {record.names}" for record in records)
            return Shard([record.id for record in records], _count([Counter(grams(text)) for text in texts], columns))

        stats = _write_counts(folder, recipe, collection, counted, columns)
        _write_names(folder, columns)
        return stats

    return artifact.make(output, recipe, write)


def _write_counts(
    folder: Path,
    recipe: artifact.Recipe,
    collection: Collection,
    counted: Callable[[Sequence[Record]], Shard],
    columns: Mapping[str, int],
) -> artifact.Stats:
    parts = batched(progress(collection.records(), collection.size, "words"), SHARD)
    counts = write_shards(folder, artifact.digest(recipe), parts, counted)
    stats = {"encoder": {"kind": "words"}, "documents_digest": collection.documents_digest}
    return counts | stats | {"words": len(columns)}


def _write_names(folder: Path, columns: Mapping[str, int]) -> None:
    with (folder / "words.txt").open("w", encoding="utf-8") as file:
        file.writelines(f"{word}\n" for word in columns)


def _translate(glossary: Path, analyzer: Analyzer, language: Language, columns: dict[str, int], file: Path) -> Language:
    """Write the degrees of translations by a glossary into the language of the documents, whose words have `columns`;
    translations get new ones. Returns the languages of queries, of the documents and of the glossary."""
    words, found = len(columns), csr_matrix((len(columns), 0), dtype=np.float32)
    pairs = read_glossary(glossary, language)
    for other, texts in progress(pairs.items(), len(pairs), "translations", "languages"):
        foreign = Analyzer(other).many([text for text, _ in texts])
        own = analyzer.many([translation for _, translation in texts])
        degrees = translations(zip(foreign, own, strict=True), columns, words)
        found.resize(degrees.shape)
        found = found.maximum(degrees)  # a word of several languages
    save_npz(file, found)
    return joined_languages([language, *pairs])


def _lexicon(forms: Counter[tuple[str, str]], analyzer: Analyzer, columns: Container[str]) -> Iterator[dict[str, str]]:
    """The words with the highest document frequency, with their most frequent forms, which several documents have. Of
    equally frequent forms, the one that was found first is first."""
    listed: set[str] = set()
    for (language, form), documents in forms.most_common():
        if len(listed) == LEXICON or documents == 1:
            return
        match [form] if JOINED.search(form) else analyzer.of(language)(form):
            case [word] if word in columns and word not in listed:
                listed.add(word)
                yield {"word": word, "form": form}


def _count(texts: Sequence[Counter[str]], columns: dict[str, int]) -> csr_matrix:
    """Counts (texts, words so far); new words are added to `columns`."""
    indices, counts, indptr = array("i"), array("f"), [0]
    for words in texts:
        indices.extend([columns.setdefault(word, len(columns)) for word in words])
        counts.extend(words.values())
        indptr.append(len(indices))
    shape = len(texts), len(columns)
    matrix = csr_matrix((np.array(counts, np.float32), np.array(indices, np.int32), np.array(indptr)), shape=shape)
    matrix.sort_indices()
    return matrix
