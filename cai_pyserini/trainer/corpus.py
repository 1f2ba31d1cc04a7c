"""The texts of a domain, from collections, BEIR folders, text files and JSONL files, and their words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend

from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.folder import model_folder
from cai_pyserini.trainer.settings import PretrainSettings, VocabularySettings, inherited, recorded


def texts(corpora: Sequence[str], min_words: int = 0) -> Iterator[str]:
    """Yield the nonblank texts of all corpora that have at least `min_words` words. Raises CaiError for a broken line,
    and if there is no such text."""
    count = 0
    for corpus in corpora:
        for text in _texts(corpus):
            if text.strip() and (min_words <= 1 or len(text.split()) >= min_words):
                count += 1
                yield text
    if not count:
        raise CaiError(f"no text of at least {max(1, min_words)} words in {', '.join(corpora)}")


def corpus_recipe(stage: str, settings: PretrainSettings | VocabularySettings) -> artifact.Recipe:
    """The recipe of a checkpoint that is trained from a base on a corpus."""
    encoder = load_encoder(settings.base)
    digests = [
        artifact.file_digest(path) if (path := _file(corpus)) else load_collection(corpus).fingerprint("documents")
        for corpus in settings.corpus
    ]
    checkpoint = checkpoint_digest(model_folder(encoder))
    inputs = {"corpus": digests, "checkpoint": checkpoint, "encoder": inherited(encoder)}
    return artifact.recipe(stage, inputs, **recorded(settings, "corpus", "base"))


def _file(corpus: str) -> Path | None:
    """The path of a text or JSONL file; None for a collection."""
    return Path(corpus) if corpus.removesuffix(".gz").endswith((".txt", ".jsonl")) else None


def _texts(corpus: str) -> Iterator[str]:
    path = _file(corpus)
    if path is None:
        for document in load_collection(corpus).documents():
            yield document.contents
    elif ".jsonl" in path.suffixes:
        for where, data in jsonl.read(path, ("text",)):
            title = "" if data.get("title") is None else data["title"]
            if not isinstance(title, str):
                raise CaiError(f"{where}: title and text must be strings")
            yield f"{title} {data['text']}".strip()
    else:
        for _, line in jsonl.read_lines(path):
            yield line.rstrip("\r\n")


def count_words(texts: Iterable[str], backend: Backend) -> Counter[str]:
    """Count words, which a tokenizer's normalizer and pre-tokenizer split."""
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    split = backend.pre_tokenizer.pre_tokenize_str
    return Counter(word for text in texts for word, _ in split(normalize(text)))
