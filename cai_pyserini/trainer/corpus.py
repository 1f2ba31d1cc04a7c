"""The texts of a domain, streamed: collections, BEIR folders, text and JSONL files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cai_pyserini.artifact import file_digest
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import lines, open_collection
from cai_pyserini.config import load_index_config

HELP = (
    "a name in index_configs/, a YAML file, a BEIR folder, or a .txt (a text a line) or .jsonl file "
    '({"text": …}, perhaps "title"), .gz or not; several are read one after the other'
)


def texts(corpora: Sequence[str], min_words: int = 0) -> Iterator[str]:
    """The texts of all corpora that have at least `min_words` words, blank ones left out.

    The paper keeps abstracts of at least 128 words. Raises CaiError for a broken line, and where nothing is left.
    """
    count = 0
    for corpus in corpora:
        for text in _texts(corpus):
            if text.strip() and (min_words <= 1 or len(text.split()) >= min_words):
                count += 1
                yield text
    if not count:
        raise CaiError(f"no text of at least {max(1, min_words)} words in {', '.join(corpora)}")


def fingerprint(corpora: Sequence[str]) -> list[str]:
    """Names the contents of the corpora."""
    return [
        file_digest(path)
        if (path := _file(corpus))
        else open_collection(load_index_config(corpus)).fingerprint("documents")
        for corpus in corpora
    ]


def _file(corpus: str) -> Path | None:
    path = Path(corpus)
    if not path.name.removesuffix(".gz").endswith((".txt", ".jsonl")):
        return None
    if not path.is_file():
        raise CaiError(f"no file {path}")
    return path


def _texts(corpus: str) -> Iterator[str]:
    path = _file(corpus)
    if path is None:
        for document in open_collection(load_index_config(corpus)).documents():
            yield document.contents
        return
    jsonl = ".jsonl" in path.suffixes
    for number, line in lines(path):
        if not jsonl:
            yield line.rstrip("\r\n")
        elif line.strip():
            data = record(line, f"{path}:{number}", ("text",))
            yield " ".join(part for part in (data.get("title"), data["text"]) if part)


def record(line: str, where: str, strings: Sequence[str]) -> dict:
    """A JSON object that has these keys, with strings. Raises CaiError with the place of any other line."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise CaiError(f"{where}: not JSON ({error.msg}); mend or remove it") from None
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in strings):
        raise CaiError(f"{where}: expected an object with {', '.join(strings)} as strings")
    return data
